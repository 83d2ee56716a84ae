"""Answers read piece by piece, and put together as a client does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, pairwise
from typing import Any, Protocol

from octavo.text.answer import CallArguments, CallStart, Content, Piece, Reasoning, merged


class Parser(Protocol):
    def feed(self, text: str) -> list[Piece]: ...
    def finish(self) -> list[Piece]: ...


def read(parser: Parser, texts: Iterable[str]) -> list[Piece]:
    """The joined pieces of an answer that comes as `texts`."""
    pieces: list[Piece] = []
    for text in texts:
        pieces += parser.feed(text)
    return merged([*pieces, *parser.finish()])


def splits(text: str, cuts: int) -> Iterator[list[str]]:
    """`text` cut at every choice of `cuts` places, and into single characters."""
    for places in combinations(range(len(text) + 1), cuts):
        borders = [0, *places, len(text)]
        yield [text[start:end] for start, end in pairwise(borders)]
    yield list(text)


def assert_same_at_every_split(make: Callable[[], Parser], text: str) -> None:
    whole = read(make(), [text])
    for cuts in (1, 2) if len(text) <= 70 else (1,):
        for texts in splits(text, cuts):
            assert read(make(), texts) == whole, texts


def summary(pieces: list[Piece]) -> dict[str, Any]:
    """What a client sees: the reasoning, the content, and the calls as (name, arguments)."""
    result: dict[str, Any] = {"reasoning": "", "content": "", "calls": []}
    for piece in pieces:
        match piece:
            case Reasoning(text):
                result["reasoning"] += text
            case Content(text):
                result["content"] += text
            case CallStart(name):
                result["calls"].append((name, ""))
            case CallArguments(text):
                name, before = result["calls"][-1]
                result["calls"][-1] = (name, before + text)
    return result
