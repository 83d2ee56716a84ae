"""The folder where pulled models are kept, and how to fill it safely."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from octavo.protocol.errors import ModelLoadError

TEMPORARY_PREFIX = ".partial-"
LOCK_NAME = ".lock"
# How often a folder may vanish while it is made.
MOST_TURNS = 1000


def cache_folder(download_dir: str | None = None) -> Path:
    """Where models are kept: `download_dir`, else $OCTAVO_CACHE, else $XDG_CACHE_HOME/octavo, else ~/.cache/octavo."""
    chosen = download_dir or os.environ.get("OCTAVO_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser().absolute() if base else Path.home() / ".cache") / "octavo"


@contextlib.contextmanager
def storage_errors(what: str, folder: Path) -> Iterator[None]:
    """Turns a full disk, a missing permission and the like into ModelLoadError that says what could not be stored where."""
    try:
        yield
    except OSError as error:
        raise ModelLoadError(f"{what} can't be stored in {folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[Path]:
    """Holds `folder` (made if missing) for this process alone and gives a temporary folder in it, which is gone afterwards.

    Whoever comes second waits. What a killed process has left behind is removed first: while the lock is held, no temporary folder
    belongs to anybody else. The lock goes with its process, however that ends. Where nothing came into the folder, it goes again, and so do
    the folders around it that were made for it.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    with _locked(folder) as lock, _termination_raises():
        for stale in folder.glob(f"{TEMPORARY_PREFIX}*"):
            shutil.rmtree(stale, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=folder))
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            _leave(lock, missing or [folder])


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Holds the lock of `folder`, which is made if missing; gives the lock's file."""
    path = folder / LOCK_NAME
    file = _open_lock(path)
    while not _is_held(file, path):
        file.close()
        file = _open_lock(path)
    with file:
        yield path


def _open_lock(path: Path) -> BinaryIO:
    """The lock's file, once nobody else holds it."""
    for turn in itertools.count():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "wb")  # noqa: SIM115 - the caller closes it
            break
        except (FileNotFoundError, FileExistsError):  # somebody removes folders at this very moment
            if turn == MOST_TURNS:
                raise
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def _is_held(file: BinaryIO, path: Path) -> bool:
    """Whether the file is still the one at `path`: one that was removed meanwhile keeps nobody out."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _leave(lock: Path, folders: list[Path]) -> None:
    """Removes the lock's file if its folder holds nothing else, and the folders, the innermost first, as far as they are empty."""
    with contextlib.suppress(OSError):
        if [path.name for path in lock.parent.iterdir()] == [LOCK_NAME]:
            lock.unlink()
            for folder in folders:
                folder.rmdir()


@contextlib.contextmanager
def _termination_raises() -> Iterator[None]:
    """Makes SIGTERM end the process through its `finally` clauses. Only the main thread may say so, and only if nobody else has."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def publish(source: Path, target: Path) -> None:
    """Moves a complete file into place so that it appears whole or not at all, even if the power fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(source, target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
