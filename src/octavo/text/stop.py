"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class _Matcher:
    """How much of one stop string the text so far ends with (Knuth, Morris and Pratt, 1977): amortized constant time a character.

    The table of borders grows with the longest match that there has been, so that a long stop string costs nothing before it begins.
    """

    __slots__ = ("_borders", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        # For each start of the stop string, the length of its longest proper start that is also its end.
        self._borders: list[int] = []

    def advance(self, char: str) -> bool:
        """Takes the next character; True if the stop string is complete, after which there must be none."""
        matched = self._extended(self.matched, char)
        if matched > len(self._borders):
            self._borders.append(self._extended(self._borders[-1], char) if self._borders else 0)
        self.matched = matched
        return matched == len(self.stop)

    def _extended(self, length: int, char: str) -> int:
        """The longest start of the stop string that its first `length` characters followed by `char` end with."""
        stop, borders = self.stop, self._borders
        while length and stop[length] != char:
            length = borders[length - 1]
        return length + 1 if stop[length] == char else 0


class StopChecker:
    """Finds the first stop string to be complete in a request's text, wherever the pieces part.

    The match that ends first wins, as if the text came one character at a time; of those that end together, the one given first. Only
    text that may still become a stop string is held back. A character takes time in proportion to the number of stop strings, however
    long they are and however much is held. `include_stop_str_in_output` keeps the stop string at the end of the output.
    """

    def __init__(self, stop: Sequence[str] = (), include_stop_str_in_output: bool = False) -> None:
        if "" in stop:
            raise ValueError("a stop string must not be empty")
        self._matchers = tuple(map(_Matcher, stop))
        self._include = include_stop_str_in_output
        self._held = ""
        self._stopped: str | None = None

    def push(self, text: str, *, check: bool = True) -> tuple[str, str | None]:
        """Takes more text; returns the text that may be shown now, and the stop string if one was found (then and ever after).

        With `check=False` the text, and what is held, goes through unsearched: for output that is shorter than `min_tokens`.
        """
        if self._stopped is not None:
            return "", self._stopped
        window = self._held + text
        if not check:
            self.flush()
            return window, None
        found = self._find(text)
        if found is not None:
            end, self._stopped = len(self._held) + found[0], found[1]
            self._held = ""
            return window[: end if self._include else end - len(self._stopped)], self._stopped
        keep = len(window) - max((matcher.matched for matcher in self._matchers), default=0)
        self._held = window[keep:]
        return window[:keep], None

    def flush(self) -> str:
        """The text still held back, when the output ends without a stop string."""
        for matcher in self._matchers:
            matcher.matched = 0
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        """Where in `text` the first stop string is complete, and which."""
        if not self._matchers:
            return None
        for place, char in enumerate(text, 1):
            for matcher in self._matchers:
                if (matcher.matched or char == matcher.stop[0]) and matcher.advance(char):
                    return place, matcher.stop
        return None
