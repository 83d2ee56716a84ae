"""What an answer consists of, in the order of its text, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """More of the text that is for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a call of the tool `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments, JSON text, of the call that began last."""

    text: str


Piece = Content | Reasoning | CallStart | CallArguments


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """`pieces` with neighbours of a kind joined, and without empty ones."""
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if isinstance(piece, CallStart):
            result.append(piece)
        elif not piece.text:
            continue
        elif not isinstance(last, CallStart) and type(last) is type(piece) and last is not None:
            result[-1] = type(piece)(last.text + piece.text)
        else:
            result.append(piece)
    return result


def held_start(text: str, markers: Iterable[str]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `markers`, whose whole is not in it."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest
