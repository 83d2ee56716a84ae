"""The format of Hermes 2 and 3 and of Qwen 2.5 and 3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

from collections.abc import Collection

from octavo.text.answer import Content, Piece, held_start, merged
from octavo.text.tools.json_call import JsonCall
from octavo.text.tools.json_value import WHITESPACE
from octavo.text.tools.parser import CallForm, ToolParser

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(ToolParser):
    """Calls between tags, as many as there are. White space around them is theirs; other text before, between and after is content."""

    markers = (_OPEN, _CLOSE)

    def __init__(self, tool_names: Collection[str]) -> None:
        super().__init__(tool_names)
        self._text = ""
        self._call: JsonCall | None = None
        self._lead = ""
        self._after_call = False
        self._broken = False

    @staticmethod
    def form(template: str) -> CallForm:
        """As the templates of these models write the calls of earlier turns."""
        return CallForm(f'{_OPEN}\n{{"name": ', ', "arguments": ', f"}}\n{_CLOSE}", separator="\n", trigger=_OPEN)

    def feed(self, text: str) -> list[Piece]:
        """Takes more text."""
        self._text += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return merged(pieces)

    def finish(self) -> list[Piece]:
        """The rest."""
        text, self._text = self._text, ""
        call, self._call = self._call, None
        if self._broken:
            return []
        if call is not None:
            return [] if call.begun else [Content(self._lead + call.raw + text)]
        if self._after_call:
            text = text.lstrip(WHITESPACE)
            text = "" if _CLOSE.startswith(text) else text
        return [Content(text)] if text else []

    def _step(self, pieces: list[Piece]) -> bool:
        """Works off some of the text; False when the rest must wait."""
        if self._broken:
            return self._skip_to_close()
        if self._call is not None:
            return self._inside(self._call, pieces)
        return self._outside(pieces)

    def _outside(self, pieces: list[Piece]) -> bool:
        if self._after_call:
            self._text = self._text.lstrip(WHITESPACE)
            if self._text.startswith(_CLOSE):
                self._text = self._text[len(_CLOSE) :]
                return True
            if _CLOSE.startswith(self._text):
                return False
        before, found, after = self._text.partition(_OPEN)
        if found:
            kept = before.rstrip(WHITESPACE)
            pieces.append(Content(kept))
            self._lead = before[len(kept) :] + _OPEN
            self._call, self._text = JsonCall(needs_arguments=False), after
            return True
        free = self._text[: len(self._text) - held_start(self._text, (_OPEN,))].rstrip(WHITESPACE)
        if free:
            pieces.append(Content(free))
            self._text, self._after_call = self._text[len(free) :], False
        return False

    def _inside(self, call: JsonCall, pieces: list[Piece]) -> bool:
        for place, char in enumerate(self._text):
            if not call.raw and char in WHITESPACE:
                self._lead += char
                continue
            call.feed(char)
            if call.done or call.failed:
                self._text = self._text[place + call.done :]
                self._end(call, pieces)
                return True
        self._text = ""
        pieces += call.take()
        return False

    def _end(self, call: JsonCall, pieces: list[Piece]) -> None:
        self._call = None
        if call.begun:
            pieces += call.take()
            self._after_call, self._broken = True, call.failed
        else:
            pieces.append(Content(self._lead + call.raw))
            self._after_call = False

    def _skip_to_close(self) -> bool:
        """Past what follows arguments that are no JSON, up to the closing tag."""
        _, found, after = self._text.partition(_CLOSE)
        if not found:
            self._text = self._text[len(self._text) - held_start(self._text, (_CLOSE,)) :]
            return False
        self._text, self._broken = after, False
        return True
