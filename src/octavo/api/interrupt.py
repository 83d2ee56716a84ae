"""Ctrl-C during a batch."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class HeldInterrupt:
    """Holds Ctrl-C back until `check` or the end of the `with` block, so that no step is cut in half; a second one does not wait.

    Outside the main thread, or where the program handles the signal itself, nothing changes.
    """

    def __init__(self) -> None:
        self._came = self._installed = False

    def __enter__(self) -> HeldInterrupt:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C came."""
        if self._came:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            raise KeyboardInterrupt
        self._came = True
