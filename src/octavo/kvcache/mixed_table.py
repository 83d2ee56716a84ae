"""The blocks of one sequence under a model whose layers are of two kinds."""

from __future__ import annotations

from dataclasses import replace

from octavo.kvcache.block_pool import BlockPoolError
from octavo.kvcache.block_table import BlockTable, Grant, Prefix
from octavo.kvcache.per_kind import PerKind
from octavo.kvcache.swap_space import Swapped


class MixedTable:
    """Two block tables: `full` for the layers that see everything, and `window`, which gives back what the window has passed, for those
    that see a window. The same tokens of a sequence are in both, so that they begin, grow and end together; what one can't do, neither
    does.

    Where a change names a place, ~place is a place of the window's table. The methods are those of BlockTable.
    """

    __slots__ = ("full", "window")

    def __init__(self, full: BlockTable, window: BlockTable) -> None:
        self.full = full
        self.window = window

    @property
    def parts(self) -> tuple[BlockTable, ...]:
        """The two."""
        return self.full, self.window

    @property
    def block_size(self) -> int:
        """Tokens a block, of either kind."""
        return self.full.block_size

    @property
    def block_ids(self) -> list[int]:
        """The blocks of the layers that see everything."""
        return self.full.block_ids

    @property
    def window_block_ids(self) -> list[int]:
        """The blocks of the layers that see a window."""
        return self.window.block_ids

    def prefix(self, num_tokens: int) -> Prefix:
        """See BlockTable."""
        return _joined(self.full.prefix(num_tokens), self.window.prefix(num_tokens))

    def most_step(self, num_computed: int) -> int:
        """See BlockTable."""
        return min(self.full.most_step(num_computed), self.window.most_step(num_computed))

    def blocks_needed(self, prefix: Prefix, num_tokens: int, swapped: Swapped | None = None) -> PerKind:
        """See BlockTable."""
        own = None if swapped is None else swapped.window
        in_window = self.window.blocks_needed(_of_window(prefix), num_tokens, own)
        return PerKind(self.full.blocks_needed(prefix, num_tokens, swapped), in_window)

    def blocks_to_come(self, written: int, num_tokens: int, most_tokens: int) -> PerKind:
        """See BlockTable."""
        return PerKind(*(part.blocks_to_come(written, num_tokens, most_tokens) for part in self.parts))

    def find(self, num_tokens: int) -> Prefix:
        """The longest beginning of which all blocks are there for the layers that see everything, and for the others those that the next
        token sees. O(tokens found)."""
        full = self.full.find(num_tokens)
        window = self.window.find(num_tokens, len(full.block_ids))
        count = len(window.block_ids)
        return _joined(Prefix(full.block_ids[:count], window.num_tokens, count), window)

    def needed(self, prefix: Prefix, num_tokens: int) -> Prefix:
        """See BlockTable."""
        return _joined(self.full.needed(prefix, num_tokens), self.window.needed(_of_window(prefix), num_tokens))

    def is_in_flight(self, place: int, num_tokens: int) -> bool:
        """See BlockTable."""
        return self.full.is_in_flight(place, num_tokens)

    def adopt(self, prefix: Prefix) -> None:
        """See BlockTable."""
        self.full.adopt(prefix)
        self.window.adopt(_of_window(prefix))

    def announce(self, num_tokens: int) -> None:
        """See BlockTable. What one of the two computes, so does the other."""
        self.full.announce(num_tokens)

    def prepare(self, written: int, num_tokens: int) -> Grant | None:
        """See BlockTable. None, with nothing changed, if the blocks of either kind are too few."""
        if not self.window.has_room(written, num_tokens):
            return None
        grant = self.full.prepare(written, num_tokens)
        own = None if grant is None else self.window.prepare(written, num_tokens)
        if grant is None or own is None:
            return None
        return Grant(grant.new_block_ids, grant.replaced + _told(own.replaced), grant.copies + own.copies, own.new_block_ids)

    def commit(self, num_tokens: int) -> list[tuple[int, int]]:
        """See BlockTable."""
        return self.full.commit(num_tokens) + _told(self.window.commit(num_tokens))

    def slide(self, num_computed: int) -> list[tuple[int, int]]:
        """See BlockTable."""
        return _told(self.window.slide(num_computed))

    def to_swap(self, num_tokens: int) -> tuple[int, int]:
        """See BlockTable."""
        (copies, tokens), (more_copies, more_tokens) = (part.to_swap(num_tokens) for part in self.parts)
        return copies + more_copies, max(tokens, more_tokens)

    def swap_out(self, num_tokens: int) -> tuple[Swapped, list[tuple[int, int]]] | None:
        """See BlockTable. None, with nothing changed, if swap space has too few slots of either kind."""
        full = self.full.swap_out(num_tokens)
        own = None if full is None else self.window.swap_out(num_tokens)
        if full is None or own is None:
            if full is not None:
                self.full.drop_swapped(full[0])
            return None
        return replace(full[0], window=own[0]), full[1] + own[1]

    def drop_swapped(self, swapped: Swapped) -> None:
        """See BlockTable."""
        self.full.drop_swapped(swapped)
        self.window.drop_swapped(_swapped_of_window(swapped))

    def swap_in(self, prefix: Prefix, swapped: Swapped) -> list[tuple[int, int]]:
        """See BlockTable."""
        return self.full.swap_in(prefix, swapped) + self.window.swap_in(_of_window(prefix), _swapped_of_window(swapped))

    def fork(self, num_tokens: int, token_ids: list[int] | None = None, *, owner: str = "") -> MixedTable:
        """See BlockTable."""
        return MixedTable(*(part.fork(num_tokens, token_ids, owner=owner) for part in self.parts))

    def release(self) -> None:
        """See BlockTable."""
        self.full.release()
        self.window.release()


def _joined(full: Prefix, window: Prefix) -> Prefix:
    return replace(full, window=window)


def _of_window(prefix: Prefix) -> Prefix:
    if prefix.window is None:
        raise BlockPoolError("a prefix of one kind of blocks came to a table of two")
    return prefix.window


def _swapped_of_window(swapped: Swapped) -> Swapped:
    if swapped.window is None:
        raise BlockPoolError("blocks of one kind were swapped out of a table of two")
    return swapped.window


def _told(changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(~place, block_id) for place, block_id in changes]
