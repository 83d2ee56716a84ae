"""JSON that arrives character by character."""

from __future__ import annotations

import json
import re

WHITESPACE = " \t\n\r"
# What may stand in JSON outside of strings.
_OUTSIDE = frozenset(' \t\n\r0123456789+-.,:[]{}"abcdefghijklmnopqrstuvwxyzE')
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_LOW = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# Escapes in JSON text: surrogate pairs, surrogates without their other half, and all others.
_ESCAPE = re.compile(rf"\\u[dD][89abAB][0-9a-fA-F]{{2}}{_LOW}|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{{2}})|\\.", re.DOTALL)
# What may still become one that is not lone.
_OPEN_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{0,3})?|\\u[dD][89abAB][0-9a-fA-F]{2}(\\(u([dD]([c-fC-F][0-9a-fA-F]?)?)?)?)?")


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
    once more is unwrapped, and null counts as an empty object; of these the whole must be there first. Halves of surrogate pairs, which no
    reply can hold, become U+FFFD."""

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
            return _escaped_in_pairs(decoded(value.text)) if value.chars[0] == '"' else "{}"
        text = "".join(value.chars[self._given :])
        text = text[: _settled(text)]
        self._given += len(text)
        return _escaped_in_pairs(text)


def decoded(text: str) -> str:
    """The string that JSON `text` is, with U+FFFD for halves of surrogate pairs; an empty one for what is none."""
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return ""
    return _LONE_SURROGATE.sub("\ufffd", value) if isinstance(value, str) else ""


def _escaped_in_pairs(text: str) -> str:
    """JSON `text` with U+FFFD for escapes that are half of a surrogate pair."""
    return _ESCAPE.sub(lambda escape: r"\ufffd" if escape["lone"] else escape[0], text)


def _settled(text: str) -> int:
    """How much of JSON `text`, which begins outside of an escape, no further character changes the meaning of."""
    end = 0
    for escape in _ESCAPE.finditer(text):
        if _OPEN_ESCAPE.fullmatch(text, escape.start()):
            return escape.start()
        end = escape.end()
    place = text.find("\\", end)
    return len(text) if place < 0 else place
