"""The interface of a tool call parser."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import ClassVar

from octavo.text.answer import Piece


class ToolParser(ABC):
    """Finds the tool calls in one answer, whose text comes in pieces of any size.

    The pieces that `feed` and `finish` give, joined, depend on the text alone and not on where it was cut. What can still turn out to be
    either is held back; once a call has begun its arguments are given as they come, in the model's own spelling. Text that only looks like
    a call and is none is content, unchanged.

    `markers` are what the format writes around calls: where they are special tokens, the text must hold these. A parser is registered in
    `octavo.text.tools.registry`.
    """

    markers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tool_names: Collection[str]) -> None:
        self.tool_names = frozenset(tool_names)

    @abstractmethod
    def feed(self, text: str) -> list[Piece]:
        """Takes more text; what is certain by now."""

    @abstractmethod
    def finish(self) -> list[Piece]:
        """The rest, at the end of the text."""

    @staticmethod
    def new_call_id() -> str:
        """An id for a call, unlike any other."""
        return f"call_{secrets.token_hex(12)}"
