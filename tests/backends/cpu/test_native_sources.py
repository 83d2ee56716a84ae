"""A native module that was built from other sources than lie beside it is told of."""

from __future__ import annotations

import shutil
import types
from pathlib import Path

import pytest

from octavo.backends.cpu.native import check_sources, digest_of, load_native
from octavo.protocol.errors import ConfigError

native = pytest.importorskip("octavo._native", reason="Octavo was installed without a C++ compiler")
CSRC = Path(__file__).resolve().parents[3] / "csrc"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CSRC, tmp_path / "csrc"))


def test_the_module_here_is_of_the_sources_here() -> None:
    assert native.sources_digest == digest_of(CSRC)
    assert load_native() is native


@pytest.mark.parametrize("change", ["edited", "added", "removed", "renamed"])
def test_other_sources_are_a_sentence(copy: Path, change: str) -> None:
    check_sources(native, copy)
    source = copy / "kernels" / "dot.inl"
    if change == "edited":
        source.write_text(source.read_text() + "\n")
    elif change == "added":
        (copy / "kernels" / "more.inl").touch()
    elif change == "removed":
        source.unlink()
    else:
        source.rename(copy / "kernels" / "dots.inl")
    with pytest.raises(ConfigError, match=r"^backend: .* built from other C\+\+ than csrc/ holds; run make native$") as caught:
        check_sources(native, copy)
    assert caught.value.param == "backend"


def test_a_lock_of_an_editor_and_a_folder_are_no_sources(copy: Path) -> None:
    (copy / ".#dot.inl").symlink_to("nowhere")
    (copy / "kernels.cpp").mkdir()
    check_sources(native, copy)


def test_the_csrc_of_another_project_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "main.cpp").touch()
    check_sources(native, tmp_path / "csrc")


def test_a_module_that_tells_nothing_is_an_older_one() -> None:
    with pytest.raises(ConfigError, match="run make native"):
        check_sources(types.ModuleType("octavo._native"), CSRC)


def test_an_edited_test_and_an_installation_without_sources_are_fine(copy: Path, tmp_path: Path) -> None:
    (copy / "tests" / "team_test.cpp").write_text("")
    (copy / "notes.txt").touch()
    check_sources(native, copy)
    check_sources(types.ModuleType("octavo._native"), tmp_path / "nothing")
