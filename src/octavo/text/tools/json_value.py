"""JSON that arrives character by character."""

from __future__ import annotations

import json

WHITESPACE = " \t\n\r"
# What may stand in JSON outside of strings.
_OUTSIDE = frozenset(' \t\n\r0123456789+-.,:[]{}"abcdefghijklmnopqrstuvwxyzE')


class JsonValue:
    """One JSON value from its first character, which is fed first, to its last. `chars` are those that it has so far.

    `done` is set by its last character; a number or a word ends only where something else begins, which `ends_before` tells.
    `failed` is set by a character that can't stand in JSON and is not taken.
    """

    def __init__(self) -> None:
        self.chars: list[str] = []
        self.done = False
        self.failed = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    @property
    def text(self) -> str:
        """What it has so far."""
        return "".join(self.chars)

    def ends_before(self, char: str) -> bool:
        """Whether the value, a number or a word, ended before `char`."""
        return bool(self.chars) and not self._depth and not self._in_string and (char in WHITESPACE or char in ",]}")

    def feed(self, char: str) -> None:
        """Takes the next character."""
        if self._in_string:
            self._inside_string(char)
        elif char not in _OUTSIDE or (not self._depth and (char in ",:]}" or (self.chars and char in '[{"'))):
            self.failed = True
            return
        elif char == '"':
            self._in_string = True
        elif char in "[{":
            self._depth += 1
        elif char in "]}":
            self._depth -= 1
            self.done = self._depth == 0
        self.chars.append(char)

    def _inside_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            self.done = self._depth == 0


class Arguments:
    """A tool's arguments as they are handed on: JSON text as the model spells it, piece by piece. An object that the model wrote as text
    once more is unwrapped, and null counts as an empty object; of these the whole must be there first."""

    def __init__(self, value: JsonValue) -> None:
        self.value = value
        self._given = 0

    def take(self) -> str:
        """What is new since the last `take`."""
        value = self.value
        if value.chars and value.chars[0] in '"n':
            if not value.done or self._given:
                return ""
            self._given = len(value.chars)
            return decoded(value.text) if value.chars[0] == '"' else "{}"
        text = "".join(value.chars[self._given :])
        self._given = len(value.chars)
        return text


def decoded(text: str) -> str:
    """The string that JSON `text` is; an empty one for what is none."""
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return ""
    return value if isinstance(value, str) else ""
