"""Progress of a download or a load: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol, TextIO

LINE_SECONDS = 1.0


class Progress(Protocol):
    """Told about one piece of work after another, each from `start` to `finish`."""

    def start(self, total: int, label: str) -> None:
        """Work on `label` begins; it is `total` bytes, or 0 where that isn't known."""

    def advance(self, count: int) -> None:
        """`count` more bytes are done."""

    def finish(self) -> None:
        """The work is over, be it done or given up."""


class ConsoleProgress(Progress):
    """Progress on standard error, or on `stream`.

    A bar where that is a terminal. Elsewhere one line at the start and the end, and between them one for each tenth, at most one a
    second. Nothing at all if `quiet`.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = stream
        self._bar: Any = None
        self._total = 0
        self._done = 0
        self._label = ""
        self._started = self._line_at = 0.0
        self._tenths = 0

    def start(self, total: int, label: str) -> None:
        """Work on `label` begins; it is `total` bytes, or 0 where that isn't known."""
        self.finish()
        self._total, self._done, self._label = total, 0, label
        self._started = self._line_at = time.monotonic()
        self._tenths = 0
        if self._quiet:
            return
        stream = self._stream or sys.stderr
        if stream.isatty():
            self._start_bar(stream)
        else:
            self._line(f"{label} ({_size(total)})" if total else label)

    def _start_bar(self, stream: TextIO) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=self._total or None, desc=self._label, unit="B", unit_scale=True, file=stream)

    def advance(self, count: int) -> None:
        """`count` more bytes are done."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif not self._quiet and self._label and self._total:
            tenths, now = 10 * self._done // self._total, time.monotonic()
            if self._tenths < tenths < 10 and now - self._line_at >= LINE_SECONDS:
                self._line(f"{self._label}: {self._done / self._total:.0%}, {_size(self._done)} of {_size(self._total)}")
                self._line_at, self._tenths = now, tenths

    def finish(self) -> None:
        """The work is over, be it done or given up."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif self._label and not self._quiet and self._done and self._done >= self._total:
            self._line(f"{self._label}: {_size(self._done)} in {time.monotonic() - self._started:.1f} s")
        self._label = ""

    def _line(self, text: str) -> None:
        print(text, file=self._stream or sys.stderr, flush=True)


def _size(count: int) -> str:
    """Bytes as people read them, in powers of ten as download tools do."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def progress_for(*, quiet: bool = False) -> Progress:
    """What a command shows of its work: progress on standard error, or nothing if `quiet`."""
    return ConsoleProgress(quiet=quiet)
