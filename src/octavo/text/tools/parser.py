"""The interface of a tool call parser."""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from octavo.text.answer import Piece


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes calls: `prefix`, calls with `separator` between them, `suffix`; and each call as `before` its name, `between` that
    and its arguments, and `after` them. `quoted` tells whether the name stands in quotes. In a text calls are known by the `trigger`, with
    which `prefix` or else `before` begins; without one they are a whole answer, before which the `tag` may stand."""

    before: str
    between: str
    after: str = ""
    prefix: str = ""
    suffix: str = ""
    separator: str = ""
    quoted: bool = True
    trigger: str = ""
    tag: str = ""

    def begin(self, name: str) -> str:
        """What stands before the arguments of a call of `name`."""
        return self.before + (json.dumps(name, ensure_ascii=False) if self.quoted else name) + self.between


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
    @abstractmethod
    def form(template: str) -> CallForm:
        """How calls are to be written for this parser and a model of this chat template."""

    @staticmethod
    def new_call_id() -> str:
        """An id for a call, unlike any other."""
        return f"call_{secrets.token_hex(12)}"
