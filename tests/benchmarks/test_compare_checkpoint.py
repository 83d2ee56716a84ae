"""The safetensors checkpoint that is made of a GGUF file."""

import json
import shutil

import numpy as np
import pytest

from comparison.artifacts import ArtifactError, Artifacts, size_of
from comparison.checkpoint import write_checkpoint
from comparison.processes import RunError
from octavo import LLM, SamplingParams
from octavo.loading.open import open_checkpoint
from octavo.models.registry import build_model
from octavo.quantization.decode import decode


@pytest.fixture(scope="module")
def checkpoint(fixtures_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "checkpoint"
    write_checkpoint(fixtures_dir / "gguf-tiny-llama" / "tiny-llama-Q4_1.gguf", folder)
    return folder


def test_weights_are_those_of_the_file_to_the_nearest_bfloat16(checkpoint, fixtures_dir):
    with open_checkpoint(checkpoint) as made, open_checkpoint(fixtures_dir / "gguf-tiny-llama" / "tiny-llama-Q4_1.gguf") as source:
        written, given = build_model(made), build_model(source)
        written.check()
        for name in given.graph.weights:
            value, exact = decode(written.weight(name)), decode(given.weight(name))
            # Half a unit in the last of 8 bits.
            assert np.all(np.abs(value - exact) <= np.abs(exact) * 2.0**-8), name
            assert value.shape == exact.shape


def test_ties_go_to_even(tmp_path):
    from comparison.checkpoint import _bfloat16

    values = np.array([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -1.0 - 2**-7, 0.0], np.float32)
    expected = np.array([1.0, 1.0, 1.0 + 2**-6, -1.0 - 2**-7, 0.0], np.float32)
    assert np.array_equal((_bfloat16(values).astype(np.uint32) << 16).view(np.float32), expected)


def test_the_same_tokens_come_out(checkpoint, fixtures_dir):
    """Weights of 4 bits in groups with float16 scales lose little in bfloat16, so tokens agree until two come close."""
    expected = json.loads((fixtures_dir / "gguf-tiny-llama" / "expected-Q4_1.json").read_text())
    llm = LLM(checkpoint, backend="reference", quiet=True)
    try:
        for prompt in expected["prompts"]:
            steps = next((step for step, gap in enumerate(prompt["gaps"]) if gap < 0.15), len(prompt["gaps"]))
            params = SamplingParams(temperature=0.0, max_tokens=len(prompt["output_ids"]), ignore_eos=True)
            output = llm.generate([prompt["input_ids"]], params, use_tqdm=False)[0]
            assert list(output.outputs[0].token_ids)[:steps] == prompt["output_ids"][:steps], prompt["name"]
        assert llm.get_tokenizer().encode(expected["prompts"][1]["text"]) == expected["prompts"][1]["input_ids"]
    finally:
        llm.close()


def artifacts(folder, monkeypatch, outcome):
    """Artifacts whose commands do `outcome`, given their last argument but the kind and threads."""
    ran = []

    def run(command, variables, timeout, **_):
        ran.append(command)
        outcome(command)
        return ""

    class Interpreters:
        def python(self, name):
            return folder / name / "bin" / "python"

    monkeypatch.setattr("comparison.artifacts.run", run)
    monkeypatch.setattr("comparison.artifacts.resolve_model", lambda name: folder / "given.gguf")
    return Artifacts(folder / "work", Interpreters(), 2, lambda line: None), ran


def test_a_form_is_made_once(tmp_path, monkeypatch):
    made, ran = artifacts(tmp_path, monkeypatch, lambda command: shutil.copy(__file__, command[3]))
    for _ in range(2):
        path = made.path("gguf-q8_0")
    assert path == tmp_path / "work" / "gguf-q8_0.gguf"
    assert [command[2:] for command in ran] == [[str(tmp_path / "given.gguf"), f"{path}.making", "Q8_0", "2"]]
    assert size_of(path) == size_of(path.parent) - size_of(path.parent / "seconds.json") > 0
    assert made.seconds("gguf-q8_0") is not None
    assert made.seconds("checkpoint") is None


def test_half_a_form_is_none(tmp_path, monkeypatch):
    def breaks(command):
        (tmp_path / "work" / "gguf-bf16.gguf.making").write_text("half")
        raise RunError("exit status 1: disk full")

    made, _ = artifacts(tmp_path, monkeypatch, breaks)
    for _ in range(2):
        with pytest.raises(ArtifactError, match=r"^python fails: exit status 1: disk full$"):
            made.path("gguf-bf16")
    assert not (tmp_path / "work" / "gguf-bf16.gguf").exists()
