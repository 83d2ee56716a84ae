"""Numbers of blocks, of one kind or of two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PerKind:
    """Blocks of a model with layers of two kinds: for those that see everything, and for those that see a window. A whole number that is
    added counts for each kind."""

    full: int
    window: int

    def __add__(self, other: BlockCount) -> PerKind:
        more = PerKind(other, other) if isinstance(other, int) else other
        return PerKind(self.full + more.full, self.window + more.window)

    __radd__ = __add__


# Of a model whose layers are of one kind a number is enough.
BlockCount = int | PerKind


def total(counts: Iterable[BlockCount]) -> BlockCount:
    """The sum."""
    result: BlockCount = 0
    for count in counts:
        result = result + count
    return result


def fits(needed: BlockCount, free: BlockCount) -> bool:
    """Whether of no kind more are needed than are free."""
    if isinstance(needed, int) and isinstance(free, int):
        return needed <= free
    both, room = needed + PerKind(0, 0), free + PerKind(0, 0)
    return both.full <= room.full and both.window <= room.window
