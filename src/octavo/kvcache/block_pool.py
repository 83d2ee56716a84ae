"""Which blocks of the KV cache are free, and how many tables hold each of the others."""

from __future__ import annotations

from array import array


class BlockPoolError(RuntimeError):
    """Octavo's own accounting went wrong: a block given back twice, an unknown block id, or more blocks taken than are free.

    No request can cause it; it is an assertion that stays on under `python -O`.
    """


class BlockPool:
    """`num_blocks` block ids, 0 … num_blocks − 1, each free or held by `reference_count` tables.

    Free blocks form a doubly linked list over flat arrays, with one sentinel as both ends. Taking comes from the head and giving back
    goes to the tail, so the block that has been free for longest is reused first, and any block can leave the middle of the list in
    O(1): that is the order and the operation that a prefix cache needs to revive a freed block whose contents still serve.
    12 bytes a block; nothing is proportional to the pool's size after construction.
    """

    __slots__ = ("_next", "_previous", "_references", "num_blocks", "num_free")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        # Index num_blocks is the sentinel: its successor is the head of the free list, its predecessor the tail.
        self._next = array("i", range(1, num_blocks + 1))
        self._next.append(0)
        self._previous = array("i", (num_blocks,))
        self._previous.extend(range(num_blocks))
        self._references = array("i", bytes(self._next.itemsize * num_blocks))

    @property
    def num_used(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - self.num_free

    def reference_count(self, block_id: int) -> int:
        """How many tables hold the block; 0 means free."""
        self._check(block_id)
        return self._references[block_id]

    def take(self, count: int) -> list[int]:
        """Takes `count` blocks, each with one reference, longest free first. O(count). Raises BlockPoolError, and takes none, if fewer
        are free; callers look at `num_free` first."""
        if count < 0 or count > self.num_free:
            raise BlockPoolError(f"{count} blocks were taken from a pool with {self.num_free} free")
        sentinel, following, references = self.num_blocks, self._next, self._references
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
        """One more table holds a block that is already held. O(1)."""
        self._check(block_id)
        if self._references[block_id] == 0:
            raise BlockPoolError(f"block {block_id} is free and can't be shared")
        self._references[block_id] += 1

    def release(self, block_id: int) -> bool:
        """One table fewer holds the block; returns whether that made it free. O(1)."""
        self._check(block_id)
        count = self._references[block_id]
        if count == 0:
            raise BlockPoolError(f"block {block_id} was given back twice")
        self._references[block_id] = count - 1
        if count > 1:
            return False
        sentinel = self.num_blocks
        tail = self._previous[sentinel]
        self._next[tail] = block_id
        self._previous[block_id] = tail
        self._next[block_id] = sentinel
        self._previous[sentinel] = block_id
        self.num_free += 1
        return True

    def _check(self, block_id: int) -> None:
        # A negative index would silently reach another block.
        if not 0 <= block_id < self.num_blocks:
            raise BlockPoolError(f"block {block_id} is not one of the pool's {self.num_blocks}")
