"""Whose turn it is with an engine that does one batch at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets one thread at a time use what is not safe for several; the others wait.

    Waiting would never end where the holder itself asks again (from a signal handler, say), and in a process forked from the one that
    made this, where the threads that do the work don't exist; both get a RuntimeError.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._process = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that made this."""
        return os.getpid() != self._process

    @contextmanager
    def take(self) -> Iterator[None]:
        """Holds the turn for the `with` block. Raises RuntimeError where it can't ever come."""
        if self.forked:
            raise RuntimeError("this LLM was made before the process forked; make one in each process instead")
        if self._holder == threading.get_ident():
            raise RuntimeError("this LLM is in the middle of a batch of the same thread, as when a signal handler calls it")
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None
