"""Progress of a download that other code makes: by how much a folder grows."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from octavo.loading.progress import Progress

POLL_SECONDS = 0.2


@contextlib.contextmanager
def report_growth(measure: Callable[[], int], total: int, label: str, progress: Progress | None) -> Iterator[None]:
    """Tells `progress`, while the body runs, by how many bytes `measure()` has grown, up to `total` (0: not known)."""
    if progress is None:
        yield
        return
    base = measure()
    ended = threading.Event()
    seen = 0

    def look() -> None:
        nonlocal seen
        grown = measure() - base
        grown = min(grown, total) if total else grown
        if grown > seen:
            progress.advance(grown - seen)
            seen = grown

    def watch() -> None:
        while not ended.wait(POLL_SECONDS):
            look()

    progress.start(total, label)
    thread = threading.Thread(target=watch, name="octavo-growth", daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        ended.set()
        thread.join()
        progress.finish()
        raise
    ended.set()
    thread.join()
    look()
    progress.finish()


def folder_bytes(folder: Path) -> int:
    """The size of all files under `folder`."""
    return sum(_file_sizes(folder))


def largest_file_bytes(folder: Path) -> int:
    """The size of the largest file under `folder`: what pip has of a wheel, which it keeps twice for a moment."""
    return max(_file_sizes(folder), default=0)


def _file_sizes(folder: Path) -> Iterator[int]:
    """Links are not followed, and what vanishes meanwhile counts nothing."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(parent, name)).st_size
