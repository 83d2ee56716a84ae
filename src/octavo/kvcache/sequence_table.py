"""What the scheduler asks of the blocks of one sequence, whether they are of one kind or of two."""

from __future__ import annotations

from typing import Protocol

from octavo.kvcache.block_store import BlockStore
from octavo.kvcache.block_table import BlockTable, Grant, Prefix
from octavo.kvcache.mixed_store import MixedStore
from octavo.kvcache.per_kind import BlockCount
from octavo.kvcache.swap_space import Swapped

AnyStore = BlockStore | MixedStore


class SequenceTable(Protocol):
    """A BlockTable, or a MixedTable; BlockTable says what the methods do."""

    @property
    def parts(self) -> tuple[BlockTable, ...]:
        """The tables that it consists of."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        ...

    @property
    def block_ids(self) -> list[int]:
        """The blocks, in order; of two kinds, those of the layers that see everything."""
        ...

    @property
    def window_block_ids(self) -> list[int]:
        """Of two kinds, the blocks of the layers that see a window."""
        ...

    def prefix(self, num_tokens: int) -> Prefix:
        """What it holds, as the beginning of other tables."""
        ...

    def most_step(self, num_computed: int) -> int:
        """Tokens that the sequence could compute in one step if it had the whole pool."""
        ...

    def blocks_needed(self, prefix: Prefix, num_tokens: int, swapped: Swapped | None = None) -> BlockCount:
        """Free blocks that the sequence, whose table is empty, takes."""
        ...

    def blocks_to_come(self, written: int, num_tokens: int, most_tokens: int) -> BlockCount:
        """Free blocks that the table still has to take."""
        ...

    def find(self, num_tokens: int) -> Prefix:
        """What can be found of the sequence."""
        ...

    def needed(self, prefix: Prefix, num_tokens: int) -> Prefix:
        """The prefix without what the window has passed."""
        ...

    def is_in_flight(self, place: int, num_tokens: int) -> bool:
        """Whether another sequence computes a block of this one."""
        ...

    def adopt(self, prefix: Prefix) -> None:
        """Begins the table with blocks that are there already."""
        ...

    def announce(self, num_tokens: int) -> None:
        """Says that this sequence computes its first tokens."""
        ...

    def prepare(self, written: int, num_tokens: int) -> Grant | None:
        """Makes room; None, with nothing changed, if there are too few blocks."""
        ...

    def commit(self, num_tokens: int) -> list[tuple[int, int]]:
        """The first tokens are in the cache; returns the places that have other blocks now."""
        ...

    def slide(self, num_computed: int) -> list[tuple[int, int]]:
        """Gives back what the window has passed; returns the places."""
        ...

    def to_swap(self, num_tokens: int) -> tuple[int, int]:
        """Blocks to copy to swap space, and tokens to compute again without it."""
        ...

    def swap_out(self, num_tokens: int) -> tuple[Swapped, list[tuple[int, int]]] | None:
        """Takes slots in swap space; None, with nothing changed, if there are too few."""
        ...

    def drop_swapped(self, swapped: Swapped) -> None:
        """Gives the slots back of what was swapped out of it."""
        ...

    def swap_in(self, prefix: Prefix, swapped: Swapped) -> list[tuple[int, int]]:
        """Begins the table with a prefix and what was swapped after it."""
        ...

    def fork(self, num_tokens: int, token_ids: list[int] | None = None, *, owner: str = "") -> SequenceTable:
        """A table that shares the blocks of the first tokens."""
        ...

    def release(self) -> None:
        """Gives every block back."""
        ...
