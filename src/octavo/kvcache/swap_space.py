"""Blocks' contents outside of the cache: which slots are free, and which block still holds the same as a slot."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.kvcache.block_pool import BlockPoolError


@dataclass(frozen=True, slots=True)
class Swapped:
    """A sequence out of the cache: its first `num_tokens` tokens lie in `slots`, a block's each, in their order. The first `num_dropped`
    blocks had been given back, because a window had passed them, and have none. Of a MixedTable, `window` is the same of the blocks of the
    layers that see a window."""

    slots: list[int]
    num_tokens: int
    num_dropped: int = 0
    window: Swapped | None = None


class SwapSpace:
    """`num_slots` slots, from `first` on, each free or held by as many swapped sequences as share it.

    A full block whose contents a slot holds too is the slot's twin. So what sequences share goes out once, and comes back once: the next
    one of them finds the twin. A block ceases to be a twin when something else is written to it (`forget`), or when nobody holds the slot
    any more. Operations are O(1) a slot.
    """

    __slots__ = ("_block_of", "_free", "_references", "_slot_of", "num_slots")

    def __init__(self, num_slots: int, first: int = 0) -> None:
        self.num_slots = num_slots
        self._free = list(range(first + num_slots - 1, first - 1, -1))
        self._references: dict[int, int] = {}
        self._block_of: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Slots that somebody holds."""
        return len(self._references)

    @property
    def has_twins(self) -> bool:
        """Whether any block has to be forgotten when it is written to."""
        return bool(self._slot_of)

    def reference_count(self, slot: int) -> int:
        """How many swapped sequences hold the slot."""
        return self._references.get(slot, 0)

    def take(self) -> int:
        """A free slot, held once. Raises BlockPoolError if there is none; callers look at `num_free` first."""
        if not self._free:
            raise BlockPoolError("a slot was taken from swap space that is full")
        slot = self._free.pop()
        self._references[slot] = 1
        return slot

    def hold(self, slot: int) -> None:
        """One more reference to a slot that is held."""
        self._references[slot] += 1

    def release(self, slot: int) -> None:
        """One reference fewer; a slot without any is free, and has no twin."""
        count = self._references.pop(slot, 0)
        if count == 0:
            raise BlockPoolError(f"swap slot {slot} was given back twice")
        if count > 1:
            self._references[slot] = count - 1
            return
        self._free.append(slot)
        block_id = self._block_of.pop(slot, None)
        if block_id is not None:
            del self._slot_of[block_id]

    def pair(self, block_id: int, slot: int) -> None:
        """The full block and the slot, neither of which has a twin, hold the same from the next step on."""
        self._slot_of[block_id] = slot
        self._block_of[slot] = block_id

    def slot_of(self, block_id: int) -> int | None:
        """The slot that the block is the twin of."""
        return self._slot_of.get(block_id)

    def block_of(self, slot: int) -> int | None:
        """The slot's twin."""
        return self._block_of.get(slot)

    def forget(self, block_id: int) -> None:
        """Something else is going to be written to the block."""
        slot = self._slot_of.pop(block_id, None)
        if slot is not None:
            del self._block_of[slot]
