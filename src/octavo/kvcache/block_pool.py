"""Which blocks of the KV cache are free, and how many references hold each of the others."""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class BlockPoolError(RuntimeError):
    """Octavo's own accounting went wrong: a block given back twice, an unknown block id, or more blocks taken than are free.

    No request can cause it; it is an assertion that stays on under `python -O`.
    """


class BlockPool:
    """`num_blocks` block ids from `first` on, each free or held by `reference_count` references.

    Free blocks form a doubly linked list over flat arrays, with one sentinel as both ends. Taking comes from the head. Giving back goes to
    the tail, behind every block that has been free for longer, or to the head where the block is the one to be reused first. Any block can
    leave the middle of the list in O(1). 12 bytes a block, and for each id before `first`; nothing is proportional to the pool's size after
    construction.
    """

    __slots__ = ("_next", "_previous", "_references", "end", "first", "num_blocks", "num_free")

    def __init__(self, num_blocks: int, first: int = 0) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.first = first
        self.end = end = first + num_blocks
        # Index `end` is the sentinel: its successor is the head of the free list, its predecessor the tail.
        self._next = array("i", range(1, end + 1))
        self._next.append(first)
        self._previous = array("i", range(-1, end))
        self._previous[first] = end
        self._references = array("i", bytes(self._next.itemsize * end))

    @property
    def num_used(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - self.num_free

    def free_blocks(self) -> Iterator[int]:
        """The free blocks, the last to be taken first."""
        block_id = self._previous[self.end]
        while block_id != self.end:
            yield block_id
            block_id = self._previous[block_id]

    def reference_count(self, block_id: int) -> int:
        """How many references hold the block; 0 means free."""
        self._check(block_id)
        return self._references[block_id]

    def take(self, count: int) -> list[int]:
        """Takes `count` blocks from the head of the free list, each with one reference. O(count). Raises BlockPoolError, and takes none,
        if fewer are free; callers look at `num_free` first."""
        if count < 0 or count > self.num_free:
            raise BlockPoolError(f"{count} blocks were taken from a pool with {self.num_free} free")
        sentinel, following, references = self.end, self._next, self._references
        taken = []
        block_id = following[sentinel]
        for _ in range(count):
            taken.append(block_id)
            references[block_id] = 1
            block_id = following[block_id]
        # The whole run leaves at once: only the two links around it change.
        following[sentinel] = block_id
        self._previous[block_id] = sentinel
        self.num_free -= count
        return taken

    def share(self, block_id: int) -> None:
        """One more reference to a block, which leaves the free list if it was free: what it holds still serves. O(1)."""
        self._check(block_id)
        self._references[block_id] += 1
        if self._references[block_id] == 1:
            before, after = self._previous[block_id], self._next[block_id]
            self._next[before] = after
            self._previous[after] = before
            self.num_free -= 1

    def release(self, block_id: int, *, reuse_first: bool = False) -> bool:
        """One reference fewer; returns whether that made the block free: the last of the free blocks to be taken, or the first with
        `reuse_first`. O(1)."""
        self._check(block_id)
        count = self._references[block_id]
        if count == 0:
            raise BlockPoolError(f"block {block_id} was given back twice")
        self._references[block_id] = count - 1
        if count > 1:
            return False
        sentinel = self.end
        before, after = (sentinel, self._next[sentinel]) if reuse_first else (self._previous[sentinel], sentinel)
        self._next[before] = block_id
        self._previous[block_id] = before
        self._next[block_id] = after
        self._previous[after] = block_id
        self.num_free += 1
        return True

    def _check(self, block_id: int) -> None:
        # A negative index would silently reach another block.
        if not self.first <= block_id < self.end:
            raise BlockPoolError(f"block {block_id} is not one of the pool's {self.num_blocks}")
