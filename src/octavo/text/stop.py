"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Finds the first stop string to be complete in a request's text, wherever the pieces part.

    The match that ends first wins, as if the text came one character at a time; of those that end together, the one given first. Only
    text that may still become a stop string is held back, and each piece is searched once. `include_stop_str_in_output` keeps the stop
    string at the end of the output.
    """

    def __init__(self, stop: Sequence[str] = (), include_stop_str_in_output: bool = False) -> None:
        self._stop = tuple(stop)
        if "" in self._stop:
            raise ValueError("a stop string must not be empty")
        self._include = include_stop_str_in_output
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self._stopped: str | None = None

    def push(self, text: str, *, check: bool = True) -> tuple[str, str | None]:
        """Takes more text; returns the text that may be shown now, and the stop string if one was found (then and ever after).

        With `check=False` the text, and what is held, goes through unsearched: for output that is shorter than `min_tokens`.
        """
        if self._stopped is not None:
            return "", self._stopped
        window = self._held + text
        self._held = ""
        if not check:
            return window, None
        found = self._find(window)
        if found is not None:
            start, self._stopped = found
            return window[: start + len(self._stopped) if self._include else start], self._stopped
        keep = len(window) - self._undecided(window)
        self._held = window[keep:]
        return window[:keep], None

    def flush(self) -> str:
        """The text still held back, when the output ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _find(self, window: str) -> tuple[int, str] | None:
        best: tuple[int, str] | None = None
        end = len(window)
        for stop in self._stop:
            # A later stop string must end strictly before the best so far.
            start = window.find(stop, 0, end)
            if start >= 0:
                best, end = (start, stop), start + len(stop) - 1
        return best

    def _undecided(self, window: str) -> int:
        """The length of the longest end of `window` that begins a stop string."""
        most = 0
        first = max(0, len(window) - self._longest + 1)
        for stop in self._stop:
            start = window.find(stop[0], max(first, len(window) - len(stop) + 1))
            while start >= 0:
                if stop.startswith(window[start:]):
                    most = max(most, len(window) - start)
                    break
                start = window.find(stop[0], start + 1)
        return most
