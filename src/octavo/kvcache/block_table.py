"""The blocks of one sequence, in order (Kwon et al., 2023: PagedAttention)."""

from __future__ import annotations

from octavo.kvcache.block_pool import BlockPool


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that `num_tokens` tokens fill or begin."""
    return -(-num_tokens // block_size)


class BlockTable:
    """Position p of the sequence lives in slot `p % block_size` of block `block_ids[p // block_size]`.

    Blocks come only as tokens come, so a table that holds what its tokens need has at most block_size − 1 unused slots.
    `block_ids` is for reading; `ensure` and `release` change it.
    """

    __slots__ = ("_pool", "block_ids", "block_size")

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self.block_size = block_size
        self.block_ids: list[int] = []

    @property
    def num_slots(self) -> int:
        """Tokens that the allocated blocks can hold."""
        return len(self.block_ids) * self.block_size

    def unused_slots(self, num_tokens: int) -> int:
        """Slots allocated beyond what `num_tokens` tokens fill."""
        return self.num_slots - num_tokens

    def ensure(self, num_tokens: int) -> list[int] | None:
        """Makes room for the first `num_tokens` tokens. Returns the ids of the blocks appended (possibly none), or None, with nothing
        taken, if the pool has too few."""
        missing = blocks_for(num_tokens, self.block_size) - len(self.block_ids)
        if missing <= 0:
            return []
        if missing > self._pool.num_free:
            return None
        taken = self._pool.take(missing)
        self.block_ids += taken
        return taken

    def release(self) -> None:
        """Gives every block back; the table is then empty and can be used again."""
        # Last block first: a prefix is worth more the nearer it is to the start, so the end should be the first to be reused.
        for block_id in reversed(self.block_ids):
            self._pool.release(block_id)
        self.block_ids = []
