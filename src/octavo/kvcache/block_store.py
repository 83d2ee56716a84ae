"""The blocks of all sequences: how many hold each, and what it holds."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from octavo.kvcache.block_hash import BlockKeys, CacheScope
from octavo.kvcache.block_pool import BlockPool, BlockPoolError
from octavo.kvcache.in_flight import InFlight
from octavo.kvcache.prefix_index import CachedBlock, PrefixIndex
from octavo.kvcache.swap_space import SwapSpace
from octavo.protocol.wire import BlockState

NEVER = -1.0


class BlockStore:
    """A pool, of blocks from `first` on, whose freed blocks can still be found by what they hold, until something else is written to them.

    Blocks that nobody holds are reused in this order: first those that can't be found, the last freed first, whose memory is still warm;
    then those that can, the longest unused first. Among them a block never goes before one that follows it in a sequence:

    A table that holds a cached block holds its parent, too, since one content has one block (`BlockTable.commit` sees to that). Tables
    give back their last block first, and find their blocks from the first on. So a parent's last reference goes after those of all its
    children, and whatever revives a child revives the parent: of the free blocks, each stands in the list behind all that follow it.
    Taking from the head therefore drops the least recently used leaf, and a chain from its end.

    With `sliding` none of this need hold: tables give back what their windows have left behind, from the first block on, and blocks go in
    the order in which they were given back.

    Who holds a block is known by name, `owner`. `now` is the time, in seconds, of whatever happens next; its owner sets it each step.
    Until then it is NEVER: who puts saved blocks in place has not held them for a request.
    """

    def __init__(self, num_blocks: int, num_swap_slots: int = 0, *, sliding: bool = False, first: int = 0, first_slot: int = 0) -> None:
        self._pool = BlockPool(num_blocks, first)
        self._index = PrefixIndex(sliding=sliding)
        self.in_flight = InFlight()
        self.swap = SwapSpace(num_swap_slots, first_slot)
        self.num_evicted = 0
        self.num_cached_free = 0
        self.now = NEVER
        self._owners: list[tuple[str, ...]] = [()] * self._pool.end
        self._left = array("d", (NEVER,)) * self._pool.end

    @property
    def parts(self) -> tuple[BlockStore, ...]:
        """Itself; see MixedStore."""
        return (self,)

    @property
    def first(self) -> int:
        """The first block's id."""
        return self._pool.first

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
    def num_swap_slots(self) -> int:
        """Slots of its swap space."""
        return self.swap.num_slots

    @property
    def num_swap_used(self) -> int:
        """Those that somebody holds."""
        return self.swap.num_used

    @property
    def num_cached(self) -> int:
        """Blocks that can be found, whether somebody holds them or not."""
        return len(self._index)

    @property
    def changes(self) -> int:
        """Grows with every block that begins or ceases to be found."""
        return self._index.changes

    def go_on_counting(self, before: BlockStore) -> None:
        """Counts on from where the store `before`, which this one takes the place of, ended."""
        self.num_evicted = before.num_evicted
        self._index.changes = before.changes + 1

    def take(self, count: int, owner: str = "") -> list[int]:
        """`count` blocks for new contents, each held once. What they held is gone with this call, and here alone. O(count).
        Raises BlockPoolError if fewer are free."""
        taken = self._pool.take(count)
        owners = (owner,)
        for block_id in taken:
            self._owners[block_id] = owners
            if self._index.remove(block_id) is not None:
                self.num_evicted += 1
                self.num_cached_free -= 1
        if self.swap.has_twins:
            for block_id in taken:
                self.swap.forget(block_id)
        return taken

    def hold(self, block_id: int, owner: str = "") -> None:
        """One more reference to a block that somebody holds, that can be found, or that is the twin of a swap slot. O(holders)."""
        if self._pool.reference_count(block_id) == 0:
            if self._index.get(block_id) is not None:
                self.num_cached_free -= 1
            elif self.swap.slot_of(block_id) is None:
                raise BlockPoolError(f"block {block_id} is free and holds nothing that is known")
        self._pool.share(block_id)
        self._owners[block_id] += (owner,)

    def release(self, block_id: int, owner: str = "") -> None:
        """One reference fewer, of those that are `owner`'s. O(holders)."""
        cached = self._index.get(block_id) is not None
        if self._pool.release(block_id, reuse_first=not cached):
            self.num_cached_free += cached
            self._left[block_id] = self.now
        owners = self._owners[block_id]
        if owner not in owners:
            raise BlockPoolError(f"block {block_id} is given back by {owner!r}, and held by {owners}")
        place = owners.index(owner)
        self._owners[block_id] = owners[:place] + owners[place + 1 :]

    def describe(self, first: int, end: int) -> list[BlockState]:
        """Those of its blocks from `first` up to `end`. O(those)."""
        return [self._state(block_id) for block_id in range(max(first, self._pool.first), min(end, self._pool.end))]

    def _state(self, block_id: int) -> BlockState:
        cached, count, left = self._index.get(block_id), self._pool.reference_count(block_id), self._left[block_id]
        idle = 0.0 if count else None if left == NEVER else max(0.0, self.now - left)
        return BlockState(block_id, list(self._owners[block_id]), count, None if cached is None else cached.digest.hex(), idle)

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
        if parent is None and parent_id is not None:
            raise BlockPoolError(f"block {block_id} is to be found after block {parent_id}, which can't be")
        cached = self._index.add(block_id, keys, index, parent)
        return None if cached is None else cached.block_id

    def find(self, keys: BlockKeys, count: int) -> list[int]:
        """The longest run of cached blocks that hold the sequence of `keys` from its start, at most `count`; NULL_BLOCK for those that are
        gone while later ones are there, if the store is sliding. O(tokens found)."""
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

    def forget_unused(self, blocks: Iterable[CachedBlock]) -> None:
        """Forgets those of the blocks that are gone and that no block follows."""
        self._index.forget_unused(blocks)

    def restore(self, block_id: int, digest: bytes, contents: bytes, scope: CacheScope, parent: CachedBlock | None) -> CachedBlock | None:
        """Makes a block findable whose sequence is not at hand, as `register` does; with NULL_BLOCK what it holds is known without it, for
        those that follow it."""
        return self._index.put(block_id, digest, contents, scope, parent)

    def reset(self) -> bool:
        """Forgets what all blocks hold; False, with nothing done, if any is in use, in the cache or in swap space."""
        if self.num_used or self.swap.num_used:
            return False
        self._index.clear()
        self.num_cached_free = 0
        return True
