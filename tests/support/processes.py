"""Processes, as /proc shows them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from patience import patient


def children(pid: int | None = None) -> set[int]:
    """Process ids of the living children of `pid`, by default this process."""
    wanted = os.getpid() if pid is None else pid
    return {child for child in map(int, filter(str.isdigit, os.listdir("/proc"))) if _state(child) == (wanted, True)}


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits to be collected does not."""
    return _state(pid)[1]


def _state(pid: int) -> tuple[int, bool]:
    """(parent, whether it is alive)"""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0, False
    return int(fields[1]), fields[0] not in "ZX"


def wait_until(condition: Callable[[], bool], seconds: float, what: str = "") -> float:
    """The seconds it took until `condition` held; fails after `seconds`."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < patient(seconds), f"not within {seconds} s: {what or condition}"
        time.sleep(0.01)
    return time.monotonic() - started
