"""A model is told from every other, and known again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import patient

from octavo.loading.open import open_checkpoint
from octavo.models.digest import model_digest
from octavo.models.registry import build_model


def digest_of(path: Path, arithmetic: str = "") -> str:
    with open_checkpoint(path) as checkpoint:
        return model_digest(build_model(checkpoint), arithmetic)


def test_models_and_arithmetics_differ(fixtures_dir: Path) -> None:
    paths = [fixtures_dir / name for name in ("tiny-llama", "tiny-llama3-rope", "tiny-mistral")]
    paths += [fixtures_dir / "gguf-tiny-llama" / f"tiny-llama-{kind}.gguf" for kind in ("Q4_1", "Q8_0")]
    digests = {digest_of(path, arithmetic) for path in paths for arithmetic in ("", "cpu avx2", "cpu portable")}
    assert len(digests) == 3 * len(paths)
    assert {len(digest) for digest in digests} == {32}


def test_the_same_in_every_process_and_folder(fixtures_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(fixtures_dir / "tiny-llama", tmp_path / "other")
    code = (
        "import sys; from pathlib import Path; from octavo.loading.open import open_checkpoint;"
        "from octavo.models.digest import model_digest; from octavo.models.registry import build_model\n"
        "with open_checkpoint(Path(sys.argv[1])) as checkpoint: print(model_digest(build_model(checkpoint), 'x'))"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "other")], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == digest_of(fixtures_dir / "tiny-llama", "x")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_weights_that_were_trained_further_are_another_model(fixtures_dir: Path, tmp_path: Path, share: float) -> None:
    """From some place on every byte of the data differs."""
    path = tmp_path / "model.gguf"
    data = bytearray((fixtures_dir / "gguf-tiny-llama" / "tiny-llama-Q8_0.gguf").read_bytes())
    before = digest_of(fixtures_dir / "gguf-tiny-llama" / "tiny-llama-Q8_0.gguf")
    with open_checkpoint(fixtures_dir / "gguf-tiny-llama" / "tiny-llama-Q8_0.gguf") as checkpoint:
        size = checkpoint.total_bytes
    start = len(data) - size + int(share * size)
    data[start:] = bytes((byte + 1) % 256 for byte in data[start:])
    path.write_bytes(data)
    assert digest_of(path) != before


@pytest.mark.model
def test_it_takes_milliseconds(smollm2_path: Path) -> None:
    with open_checkpoint(smollm2_path) as checkpoint:
        model = build_model(checkpoint)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            model_digest(model, "")
            times.append(time.perf_counter() - start)
    print(min(times))
    assert min(times) < patient(0.2)
