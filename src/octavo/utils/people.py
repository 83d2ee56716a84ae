"""Lines for whoever watches a process."""

from __future__ import annotations

import contextlib
import sys


def say(line: str) -> None:
    """One line on standard error, if anybody still reads it."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
