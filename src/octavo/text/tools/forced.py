"""The answer that a named tool choice forces: its text is the arguments."""

from __future__ import annotations

from octavo.text.answer import CallArguments, CallStart, Piece
from octavo.text.tools.parser import ToolParser


class ForcedCallParser(ToolParser):
    """One call of the only tool there is, whose arguments are the whole text."""

    def __init__(self, name: str) -> None:
        super().__init__([name])
        self._name: str | None = name

    def feed(self, text: str) -> list[Piece]:
        """Takes more text."""
        pieces: list[Piece] = []
        if text and self._name is not None:
            pieces.append(CallStart(self._name))
            self._name = None
        return [*pieces, CallArguments(text)] if text else pieces

    def finish(self) -> list[Piece]:
        """Nothing: all was given."""
        return []
