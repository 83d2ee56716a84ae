"""Mistral's formats: `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, and from tokenizer version 11 on `[TOOL_CALLS]name[ARGS]{…}`."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Collection
from enum import Enum, auto

from octavo.text.answer import CallArguments, CallStart, Content, Piece, held_start, merged
from octavo.text.tools.json_call import JsonCall
from octavo.text.tools.json_value import WHITESPACE, Arguments, JsonValue
from octavo.text.tools.parser import CallForm, ToolParser

_CALLS, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"\s*(?P<name>[\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*")
# Before the arguments; a name that is longer is none.
_LONGEST_HEAD = 256
_ID_LENGTH = 9


class _At(Enum):
    CONTENT = auto()
    HEAD = auto()
    CALL = auto()
    VALUE = auto()
    BETWEEN = auto()
    BROKEN = auto()


class MistralParser(ToolParser):
    """Content, then calls after each mark."""

    markers = (_CALLS, _ARGS, _ID)

    def __init__(self, tool_names: Collection[str]) -> None:
        super().__init__(tool_names)
        self._at = _At.CONTENT
        self._text = ""
        self._head = ""
        self._spaces = ""
        self._listed = False
        self._call = JsonCall(needs_arguments=False)
        self._arguments = Arguments(JsonValue())

    @staticmethod
    def form(template: str) -> CallForm:
        """The newer format for a template that writes it."""
        if _ARGS in template:
            return CallForm(_CALLS, _ARGS, quoted=False, trigger=_CALLS)
        return CallForm('{"name": ', ', "arguments": ', "}", prefix=f"{_CALLS} [", suffix="]", separator=", ", trigger=_CALLS)

    @staticmethod
    def new_call_id() -> str:
        """Nine letters and digits, as Mistral's templates want it."""
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(_ID_LENGTH))

    def feed(self, text: str) -> list[Piece]:
        """Takes more text."""
        self._text += text
        pieces: list[Piece] = []
        while self._text and self._step(pieces):
            pass
        if self._at is _At.CALL:
            pieces += self._call.take()
        elif self._at is _At.VALUE:
            pieces.append(CallArguments(self._arguments.take()))
        return merged(pieces)

    def finish(self) -> list[Piece]:
        """The rest."""
        text, self._text = self._text, ""
        match self._at:
            case _At.CONTENT:
                return merged([Content(text)])
            case _At.HEAD:
                return [Content(self._spaces + _CALLS + self._head)]
            case _At.CALL if not self._call.begun:
                return [Content(self._head + self._call.raw)]
            case _:
                return []

    def _step(self, pieces: list[Piece]) -> bool:
        """Works off some of the text; False when the rest must wait."""
        match self._at:
            case _At.CONTENT:
                return self._content(pieces)
            case _At.HEAD:
                self._before_call(pieces)
            case _At.CALL:
                self._inside(pieces)
            case _At.VALUE:
                self._in_value(pieces)
            case _At.BETWEEN:
                return self._between(pieces)
            case _At.BROKEN:
                return self._skip()
        return True

    def _content(self, pieces: list[Piece]) -> bool:
        before, found, after = self._text.partition(_CALLS)
        if found:
            kept = before.rstrip(WHITESPACE)
            pieces.append(Content(kept))
            self._spaces, self._head, self._text, self._at = before[len(kept) :], "", after, _At.HEAD
            return True
        free = self._text[: len(self._text) - held_start(self._text, (_CALLS,))].rstrip(WHITESPACE)
        pieces.append(Content(free))
        self._text = self._text[len(free) :]
        return False

    def _before_call(self, pieces: list[Piece]) -> None:
        """What stands between the mark and the first bracket: nothing, the bracket of a list, or a name."""
        for place, char in enumerate(self._text):
            if char == "{":
                self._text = self._text[place:]
                self._open(pieces)
                return
            self._head += char
            if len(self._head) > _LONGEST_HEAD:
                self._text = self._text[place + 1 :]
                self._no_call(pieces, _CALLS + self._head)
                return
        self._text = ""

    def _open(self, pieces: list[Piece]) -> None:
        head = self._head.strip(WHITESPACE)
        self._listed = head == "["
        if head in ("", "["):
            self._begin(self._spaces + _CALLS + self._head)
        elif named := _NAME.fullmatch(self._head):
            pieces.append(CallStart(named["name"]))
            self._arguments, self._at = Arguments(JsonValue()), _At.VALUE
        else:
            self._no_call(pieces, _CALLS + self._head)

    def _begin(self, head: str) -> None:
        self._head, self._call, self._at = head, JsonCall(needs_arguments=False), _At.CALL

    def _no_call(self, pieces: list[Piece], text: str) -> None:
        pieces.append(Content(self._spaces + text))
        self._spaces, self._at = "", _At.CONTENT

    def _inside(self, pieces: list[Piece]) -> None:
        call = self._call
        for place, char in enumerate(self._text):
            call.feed(char)
            if call.done or call.failed:
                self._text = self._text[place + call.done :]
                if call.begun:
                    pieces += call.take()
                    self._at = _At.BROKEN if call.failed else _At.BETWEEN
                else:
                    pieces.append(Content(self._head + call.raw))
                    self._at = _At.CONTENT
                self._head = ""
                return
        self._text = ""

    def _in_value(self, pieces: list[Piece]) -> None:
        value = self._arguments.value
        for place, char in enumerate(self._text):
            value.feed(char)
            if value.done or value.failed:
                self._text = self._text[place + value.done :]
                pieces.append(CallArguments(self._arguments.take()))
                self._head, self._at = "", _At.BROKEN if value.failed else _At.BETWEEN
                return
        self._text = ""

    def _between(self, pieces: list[Piece]) -> bool:
        """After a call: another one of the list, its end, another mark, or content. What stands behind the list is no call without a
        mark."""
        rest = self._text.lstrip(WHITESPACE + ",]")
        self._listed = self._listed and "]" not in self._text[: len(self._text) - len(rest)]
        if self._listed and rest.startswith("{"):
            self._begin("")
            self._text = rest
            return True
        if not rest or (len(rest) < len(_CALLS) and _CALLS.startswith(rest)):
            return False
        self._text, self._at = rest, _At.CONTENT
        return True

    def _skip(self) -> bool:
        """Past what follows arguments that are no JSON, up to the next mark."""
        _, found, after = self._text.partition(_CALLS)
        if not found:
            self._text = self._text[len(self._text) - held_start(self._text, (_CALLS,)) :]
            return False
        self._text, self._at = _CALLS + after, _At.CONTENT
        return True
