"""Calls that are an answer's whole text, as JSON without any marks: `{"name": …, "parameters": {…}}`, several, or a list of them."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import ClassVar

from octavo.text.answer import Content, Piece, merged
from octavo.text.tools.json_call import JsonCall
from octavo.text.tools.json_value import WHITESPACE
from octavo.text.tools.parser import CallForm, ToolParser


class _At(Enum):
    START = auto()
    CALL = auto()
    BETWEEN = auto()
    CONTENT = auto()
    BROKEN = auto()


class PlainJsonParser(ToolParser):
    """Calls from the first character on, each with arguments and the name of one of the request's tools; anything else is content.

    `prefix` is what may stand before them, `separators` what may stand between them beside white space.
    """

    prefix: ClassVar[str] = ""
    separators: ClassVar[str] = ",;"

    def __init__(self, tool_names: Collection[str]) -> None:
        super().__init__(tool_names)
        self._at = _At.START
        self._held = ""
        self._listed = False
        self._called = False
        self._call = JsonCall(needs_arguments=True)

    @staticmethod
    def form(template: str) -> CallForm:
        """A list."""
        return CallForm('{"name": ', ', "arguments": ', "}", prefix="[", suffix="]", separator=", ")

    def feed(self, text: str) -> list[Piece]:
        """Takes more text."""
        pieces: list[Piece] = []
        for place, char in enumerate(text):
            if self._at is _At.CONTENT:
                pieces.append(Content(text[place:]))
                break
            self._take(char, pieces)
        if self._at is _At.CALL and self._accepts(self._call):
            pieces += self._call.take()
        return merged(pieces)

    def finish(self) -> list[Piece]:
        """The rest."""
        held, self._held = self._held, ""
        if self._at is _At.CALL and not self._accepts(self._call):
            held += self._call.raw
        elif self._at is not _At.START:
            held = ""
        return [Content(held)] if held else []

    def _accepts(self, call: JsonCall) -> bool:
        return call.begun and call.name in self.tool_names

    def _take(self, char: str, pieces: list[Piece]) -> None:
        match self._at:
            case _At.START:
                self._start(char, pieces)
            case _At.CALL:
                self._inside(char, pieces)
            case _At.BETWEEN:
                self._between(char, pieces)
            case _At.CONTENT:
                pieces.append(Content(char))
            case _At.BROKEN:
                pass

    def _start(self, char: str, pieces: list[Piece]) -> None:
        lead = self._lead(self._held)
        if char == "{" and lead is not None:
            self._listed = lead == "["
            self._begin(char, pieces)
            return
        self._held += char
        if self._lead(self._held) is None and not self.prefix.startswith(self._held.lstrip(WHITESPACE)):
            self._to_content("", pieces)

    def _lead(self, text: str) -> str | None:
        """The bracket of a list in what stands before the first call, or nothing; None for what can't stand there."""
        rest = text.lstrip(WHITESPACE).removeprefix(self.prefix).strip(WHITESPACE)
        return rest if rest in ("", "[") else None

    def _begin(self, char: str, pieces: list[Piece]) -> None:
        self._call, self._at = JsonCall(needs_arguments=True), _At.CALL
        self._inside(char, pieces)

    def _inside(self, char: str, pieces: list[Piece]) -> None:
        call = self._call
        call.feed(char)
        if not (call.done or call.failed):
            return
        if self._accepts(call):
            pieces += call.take()
            self._held, self._called = "", True
            self._at = _At.BROKEN if call.failed else _At.BETWEEN
        else:
            self._to_content(call.raw + (char if call.failed else ""), pieces)

    def _between(self, char: str, pieces: list[Piece]) -> None:
        if char == "{":
            self._begin(char, pieces)
        elif char in WHITESPACE or char in self.separators:
            self._held += char
        elif char == "]" and self._listed:
            self._listed = False
            self._held = ""
        else:
            self._held = self._held.lstrip(WHITESPACE)
            self._to_content(char, pieces)

    def _to_content(self, text: str, pieces: list[Piece]) -> None:
        pieces.append(Content(self._held + text))
        self._held, self._at = "", _At.CONTENT
