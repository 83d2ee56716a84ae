"""An installation made without a C++ compiler: what it says, and that it works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def configure(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """CMake's part of an installation, with a compiler that isn't there."""
    command = [shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") or "cmake"]
    command += ["-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-Wno-dev", *arguments]
    environment = {**os.environ, "CXX": "/nowhere/c++", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_the_installation_goes_on_and_says_what_is_missing(tmp_path: Path) -> None:
    done = configure(tmp_path, "-DSKBUILD_STATE=wheel")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "Octavo is installed WITHOUT its native CPU backend: no C++ compiler was found." in said
    assert "apt-get install g++ python3-dev" in said
    assert "The reference backend works, slowly." in said


def test_where_the_module_must_come_out_it_fails(tmp_path: Path) -> None:
    done = configure(tmp_path, "-DOCTAVO_NATIVE=ON")
    assert done.returncode != 0
    assert "The native CPU backend can't be built: no C++ compiler was found." in " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Octavo as such an installation leaves it."""
    folder = tmp_path_factory.mktemp("bare")
    shutil.copytree(ROOT / "src/octavo", folder / "octavo", ignore=shutil.ignore_patterns("_native.*", "__pycache__"))
    return folder


def octavo(bare: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo", *arguments]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(bare)}, capture_output=True, text=True, timeout=120)


def test_it_serves_with_the_reference_backend_and_says_so(bare: Path, fixtures_dir: Path) -> None:
    done = octavo(bare, "complete", str(fixtures_dir / "tiny-llama"), "The cat", "--max-tokens", "3", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    notes = done.stderr.splitlines()
    assert (
        "backend: this installation has no native code, so the reference backend runs, slowly; "
        "install a C++ compiler (apt install g++) and Octavo again"
    ) in notes
    assert "on the reference backend" in notes[-1]


def test_the_backend_that_it_lacks_is_refused(bare: Path, fixtures_dir: Path) -> None:
    for arguments in (["complete", str(fixtures_dir / "tiny-llama"), "x", "--backend", "cpu"], ["bench", "kernels"]):
        done = octavo(bare, *arguments)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("octavo: --backend: this installation has no native code")
