"""The blocks of all sequences: how many hold each, and what it holds."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.kvcache.block_hash import BlockKeys, CacheScope
from octavo.kvcache.block_pool import BlockPool, BlockPoolError
from octavo.kvcache.in_flight import InFlight
from octavo.kvcache.prefix_index import CachedBlock, PrefixIndex
from octavo.kvcache.swap_space import SwapSpace


class BlockStore:
    """A pool whose freed blocks can still be found by what they hold, until something else is written to them.

    Blocks that nobody holds are reused in this order: first those that can't be found, the last freed first, whose memory is still warm;
    then those that can, the longest unused first. Among them a block never goes before one that follows it in a sequence:

    A table that holds a cached block holds its parent, too, since one content has one block (`BlockTable.commit` sees to that). Tables
    give back their last block first, and find their blocks from the first on. So a parent's last reference goes after those of all its
    children, and whatever revives a child revives the parent: of the free blocks, each stands in the list behind all that follow it.
    Taking from the head therefore drops the least recently used leaf, and a chain from its end.
    """

    def __init__(self, num_blocks: int, num_swap_slots: int = 0) -> None:
        self._pool = BlockPool(num_blocks)
        self._index = PrefixIndex()
        self.in_flight = InFlight()
        self.swap = SwapSpace(num_swap_slots)
        self.num_evicted = 0

    @property
    def num_blocks(self) -> int:
        """All of them."""
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, whether they can be found or not."""
        return self._pool.num_free

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self._pool.num_used

    @property
    def num_cached(self) -> int:
        """Blocks that can be found, whether somebody holds them or not."""
        return len(self._index)

    @property
    def changes(self) -> int:
        """Grows with every block that begins or ceases to be found."""
        return self._index.changes

    def take(self, count: int) -> list[int]:
        """`count` blocks for new contents, each held once. What they held is gone with this call, and here alone. O(count).
        Raises BlockPoolError if fewer are free."""
        taken = self._pool.take(count)
        for block_id in taken:
            if self._index.remove(block_id) is not None:
                self.num_evicted += 1
        if self.swap.has_twins:
            for block_id in taken:
                self.swap.forget(block_id)
        return taken

    def hold(self, block_id: int) -> None:
        """One more reference to a block that somebody holds, that can be found, or that is the twin of a swap slot. O(1)."""
        unknown = self._pool.reference_count(block_id) == 0 and self._index.get(block_id) is None
        if unknown and self.swap.slot_of(block_id) is None:
            raise BlockPoolError(f"block {block_id} is free and holds nothing that is known")
        self._pool.share(block_id)

    def release(self, block_id: int) -> None:
        """One reference fewer. O(1)."""
        self._pool.release(block_id, reuse_first=self._index.get(block_id) is None)

    def count_free(self, block_ids: Iterable[int]) -> int:
        """How many of the blocks nobody holds."""
        return sum(self._pool.reference_count(block_id) == 0 for block_id in block_ids)

    def is_shared(self, block_id: int) -> bool:
        """Whether the block has more than one holder."""
        return self._pool.reference_count(block_id) > 1

    def must_copy(self, block_id: int) -> bool:
        """Whether a holder may not write to it, because it is not the only one or because the block can be found."""
        return self.is_shared(block_id) or self._index.get(block_id) is not None

    def register(self, block_id: int, keys: BlockKeys, index: int, parent_id: int | None) -> int | None:
        """Makes a full block findable as block `index` of the sequence of `keys`, after `parent_id`, which is. Returns the block that holds
        this content: another one if there is one already; None if the digest is taken by other contents."""
        parent = None if parent_id is None else self._index.get(parent_id)
        cached = self._index.add(block_id, keys, index, parent)
        return None if cached is None else cached.block_id

    def find(self, keys: BlockKeys, count: int) -> list[int]:
        """The longest run of cached blocks that hold the sequence of `keys` from its start, at most `count`. O(tokens found)."""
        found: list[int] = []
        parent = None
        for index in range(count):
            keys.extend(index + 1)
            parent = self._index.find(keys, index, parent)
            if parent is None:
                break
            found.append(parent.block_id)
        return found

    def cached(self) -> list[CachedBlock]:
        """What can be found, each block after its parent: those that somebody holds, then the others, the last to be reused first.
        O(cached blocks)."""
        found = [cached for cached in self._index if self._pool.reference_count(cached.block_id)]
        for block_id in self._pool.free_blocks():
            cached = self._index.get(block_id)
            if cached is None:
                break
            found.append(cached)
        return found

    def restore(self, block_id: int, digest: bytes, contents: bytes, scope: CacheScope, parent: CachedBlock | None) -> CachedBlock | None:
        """Makes a block findable whose sequence is not at hand, as `register` does."""
        return self._index.put(block_id, digest, contents, scope, parent)

    def reset(self) -> bool:
        """Forgets what all blocks hold; False, with nothing done, if any is in use, in the cache or in swap space."""
        if self.num_used or self.swap.num_used:
            return False
        self._index.clear()
        return True
