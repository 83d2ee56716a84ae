"""The interface of a reasoning parser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from octavo.text.answer import Piece


class ReasoningParser(ABC):
    """Tells what a model thinks from what it answers, in text that comes in pieces of any size: Reasoning and Content.

    The pieces that `feed` and `finish` give, joined, depend on the text alone and not on where it was cut. `prompt` is the text before the
    answer, which may have begun the thinking. `markers` are what stands around the thinking: where they are special tokens, the text must
    hold these. A parser is registered in `octavo.text.reasoning.registry`.
    """

    markers: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def __init__(self, prompt: str) -> None: ...

    @property
    @abstractmethod
    def thinks_first(self) -> bool:
        """Whether the answer begins with thinking, before any of it is there."""

    @abstractmethod
    def feed(self, text: str) -> list[Piece]:
        """Takes more text; what is certain by now."""

    @abstractmethod
    def finish(self) -> list[Piece]:
        """The rest, at the end of the text."""
