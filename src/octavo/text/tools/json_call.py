"""A tool call written as a JSON object with a name and arguments, as it arrives character by character."""

from __future__ import annotations

from enum import Enum, auto

from octavo.text.answer import CallArguments, CallStart, Piece
from octavo.text.tools.json_value import WHITESPACE, Arguments, JsonValue, decoded

ARGUMENT_KEYS = ("arguments", "parameters")


class _At(Enum):
    OPENING = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    INSIDE = auto()
    COMMA = auto()


class JsonCall:
    """Reads `{"name": …, "arguments": {…}}`, in any order and with `parameters` as another word for arguments; other keys are left out.

    It is `begun` when it is certain to be a call: its name and the beginning of its arguments are there. Until then `raw` is all that was
    read; from then on `take` gives the arguments as they come. `done` is the closing bracket. `failed` is a character that can't stand
    where it stands; that character is not consumed.
    """

    def __init__(self, *, needs_arguments: bool) -> None:
        self.name: str | None = None
        self.done = False
        self.failed = False
        self._needs_arguments = needs_arguments
        self._at = _At.OPENING
        self._value = JsonValue()
        self._key = ""
        self._read: list[str] = []
        self._arguments: Arguments | None = None
        self._started = False

    @property
    def raw(self) -> str:
        """All that was read."""
        return "".join(self._read)

    @property
    def begun(self) -> bool:
        """Whether it is certain to be a call."""
        if self.name is None:
            return False
        return bool(self._arguments and self._arguments.value.chars) or (self.done and not self._needs_arguments)

    def feed(self, char: str) -> None:
        """Takes the next character, unless it makes the call fail."""
        step = {
            _At.OPENING: self._opening,
            _At.KEY: self._before_key,
            _At.COLON: self._before_value,
            _At.VALUE: self._before_value,
            _At.INSIDE: self._inside,
            _At.COMMA: self._after_value,
        }[self._at]
        step(char)
        if not self.failed:
            self._read.append(char)

    def take(self) -> list[Piece]:
        """What is new since the last `take`; nothing before it has begun."""
        if not self.begun or self.name is None:
            return []
        pieces: list[Piece] = []
        if not self._started:
            self._started = True
            pieces.append(CallStart(self.name))
            if self._arguments is None:
                pieces.append(CallArguments("{}"))
        if self._arguments is not None:
            pieces.append(CallArguments(self._arguments.take()))
        return pieces

    def _opening(self, char: str) -> None:
        if char == "{":
            self._at = _At.KEY
        else:
            self.failed = True

    def _before_key(self, char: str) -> None:
        if self._value.chars:
            self._value.feed(char)
            if self._value.done:
                self._key, self._at = decoded(self._value.text), _At.COLON
        elif char == '"':
            self._value.feed(char)
        elif char == "}" and not self._key:
            self.done = True
        elif char not in WHITESPACE:
            self.failed = True

    def _before_value(self, char: str) -> None:
        if char in WHITESPACE:
            return
        if self._at is _At.COLON:
            self._at = _At.VALUE
            self.failed = char != ":"
            return
        self._value = JsonValue()
        if self._key in ARGUMENT_KEYS:
            self._arguments = Arguments(self._value)
        self._at = _At.INSIDE
        self._feed_value(char)

    def _inside(self, char: str) -> None:
        if self._value.ends_before(char):
            self._end_value()
            self._after_value(char)
        else:
            self._feed_value(char)

    def _feed_value(self, char: str) -> None:
        self._value.feed(char)
        self.failed = self._value.failed
        if self._value.done:
            self._end_value()

    def _end_value(self) -> None:
        self._value.done = True
        if self._key == "name":
            name = decoded(self._value.text)
            self.name = name or None
        self._at = _At.COMMA

    def _after_value(self, char: str) -> None:
        if char == ",":
            self._value, self._at = JsonValue(), _At.KEY
        elif char == "}":
            self.done = True
        elif char not in WHITESPACE:
            self.failed = True
