"""The blocks of one sequence, in order (Kwon et al., 2023: PagedAttention)."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.kvcache.block_hash import BlockKeys
from octavo.kvcache.block_store import BlockStore
from octavo.kvcache.swap_space import Swapped


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that `num_tokens` tokens fill or begin."""
    return -(-num_tokens // block_size)


@dataclass(frozen=True, slots=True)
class Prefix:
    """Blocks that hold the first `num_tokens` tokens of a sequence. The first `num_registered` of them can be found by the prefix index."""

    block_ids: list[int]
    num_tokens: int
    num_registered: int


@dataclass(frozen=True, slots=True)
class Grant:
    """What changed in a table to make room: `new_block_ids` were appended, `replaced` are (place, new block id), and `copies` are
    (source, destination, tokens) whose contents the step must copy before it writes."""

    new_block_ids: list[int] = field(default_factory=list)
    replaced: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)


class BlockTable:
    """Position p of the sequence lives in slot `p % block_size` of block `block_ids[p // block_size]`.

    Blocks come only as tokens come, so a table that holds what its tokens need has at most block_size − 1 unused slots. Tables may share
    blocks; one that wants to write to a shared block gets a copy of that block (`prepare`). With `keys` the full blocks can be found by
    other sequences, once `commit` says that they are computed; `num_registered` of them, from the first on, are.

    `block_ids` is for reading; the methods change it.
    """

    __slots__ = ("_in_flight", "_keys", "_store", "block_ids", "block_size", "num_registered")

    def __init__(self, store: BlockStore, block_size: int, keys: BlockKeys | None = None) -> None:
        self._store = store
        self._keys = keys
        self._in_flight = (0, 0)
        self.block_size = block_size
        self.block_ids: list[int] = []
        self.num_registered = 0

    @property
    def num_slots(self) -> int:
        """Tokens that the allocated blocks can hold."""
        return len(self.block_ids) * self.block_size

    def find(self, num_tokens: int) -> Prefix:
        """What can be found of the first `num_tokens` tokens of the sequence. O(tokens found)."""
        if self._keys is None:
            return Prefix([], 0, 0)
        found = self._store.find(self._keys, num_tokens // self.block_size)
        return Prefix(found, len(found) * self.block_size, len(found))

    def is_in_flight(self, place: int, num_tokens: int) -> bool:
        """Whether another sequence is computing what this one's block `place` will hold, of whose tokens `num_tokens` are known."""
        if self._keys is None or (place + 1) * self.block_size > num_tokens:
            return False
        self._keys.extend(place + 1)
        return self._store.in_flight.has(self._keys, place)

    def adopt(self, prefix: Prefix) -> None:
        """Begins the table, which is empty, with blocks that are there already."""
        for block_id in prefix.block_ids:
            self._store.hold(block_id)
        self.block_ids = prefix.block_ids.copy()
        self.num_registered = prefix.num_registered

    def announce(self, num_tokens: int) -> None:
        """Says that this sequence computes its first `num_tokens` tokens in the next steps, so that others needn't."""
        if self._keys is not None:
            self._in_flight = (self.num_registered, num_tokens // self.block_size)
            self._store.in_flight.add(self._keys, *self._in_flight)

    def must_copy(self, position: int) -> bool:
        """Whether writing at `position` would need a copy of the block that the table has for it."""
        place = position // self.block_size
        return place < len(self.block_ids) and self._store.must_copy(self.block_ids[place])

    def prepare(self, written: int, num_tokens: int) -> Grant | None:
        """Makes room for the first `num_tokens` tokens, of which the first `written` are in the cache already and the others can be written
        afterwards. A block that others hold too, or that can be found, is replaced by a copy of its first tokens. None, with nothing
        changed, if the pool has too few blocks. O(blocks of the tokens to be written)."""
        size, ids, store = self.block_size, self.block_ids, self._store
        end = blocks_for(num_tokens, size)
        kept = range(written // size, min(end, len(ids)))
        shared = [place for place in kept if num_tokens > written and store.must_copy(ids[place])]
        missing = max(0, end - len(ids))
        if missing + len(shared) > store.num_free:
            return None
        taken = store.take(missing + len(shared))
        if store.swap.has_twins:
            for place in kept:
                if place not in shared:
                    store.swap.forget(ids[place])
        grant = Grant(new_block_ids=taken[len(shared) :])
        for place, copy in zip(shared, taken, strict=False):
            held = written - place * size
            if held > 0:
                grant.copies.append((ids[place], copy, held))
            # The plan may give the source away at once: a step makes its copies first, in the order of the plan.
            store.release(ids[place])
            grant.replaced.append((place, copy))
            ids[place] = copy
        if shared:
            self.num_registered = min(self.num_registered, shared[0])
        ids += grant.new_block_ids
        return grant

    def commit(self, num_tokens: int) -> list[tuple[int, int]]:
        """The first `num_tokens` tokens are in the cache: the blocks that they fill can be found from now on. Where one of that content
        can be found already, the table gives up its own for it, so that one content has one block; returns (place, new block id) of each.
        """
        full = num_tokens // self.block_size
        if self._keys is None or self.num_registered >= full:
            return []
        self._keys.extend(full)
        replaced = []
        while self.num_registered < full:
            place = self.num_registered
            own = self.block_ids[place]
            known = self._store.register(own, self._keys, place, self.block_ids[place - 1] if place else None)
            if known is None:
                break
            if known != own:
                self._store.hold(known)
                self._store.release(own)
                self.block_ids[place] = known
                replaced.append((place, known))
            self.num_registered += 1
        self._computed(full)
        return replaced

    def to_swap(self, num_tokens: int) -> tuple[int, int]:
        """What it would take to do without the blocks of the first `num_tokens` tokens, which are in the cache: the blocks to copy to swap
        space, and the tokens to compute again without it. Blocks that are there already aren't copied, and those that others hold and that
        can be found needn't be computed. O(blocks)."""
        ids, size, store = self.block_ids[: blocks_for(num_tokens, self.block_size)], self.block_size, self._store
        full = num_tokens // size
        copies = sum(place >= full or store.swap.slot_of(block_id) is None for place, block_id in enumerate(ids))
        found = 0
        while found < min(self.num_registered, full) and store.is_shared(ids[found]):
            found += 1
        return copies, num_tokens - found * size

    def swap_out(self, num_tokens: int) -> tuple[Swapped, list[tuple[int, int]]] | None:
        """Takes slots in swap space for the blocks of the first `num_tokens` tokens, which are in the cache; the second value are the
        copies to make, (block, slot), before anything is written. Blocks that sequences share have one slot. The table stays as it is.
        None, with nothing changed, if swap space is too small. O(blocks)."""
        size, swap = self.block_size, self._store.swap
        ids, full = self.block_ids[: blocks_for(num_tokens, size)], num_tokens // size
        twins = [swap.slot_of(block_id) if place < full else None for place, block_id in enumerate(ids)]
        if twins.count(None) > swap.num_free:
            return None
        slots, copies = [], []
        for place, (block_id, slot) in enumerate(zip(ids, twins, strict=True)):
            if slot is not None:
                swap.hold(slot)
                slots.append(slot)
                continue
            slots.append(swap.take())
            copies.append((block_id, slots[-1]))
            # What is written to a block that is not full yet is not in the slot.
            if place < full:
                swap.pair(block_id, slots[-1])
        return Swapped(slots, num_tokens), copies

    def twins(self, prefix: Prefix, swapped: Swapped) -> list[int]:
        """Blocks that hold, after `prefix`, what `swapped` does."""
        found = (self._store.swap.block_of(slot) for slot in swapped.slots[len(prefix.block_ids) :])
        return [block_id for block_id in found if block_id is not None]

    def swap_in(self, prefix: Prefix, swapped: Swapped) -> list[tuple[int, int]]:
        """Begins the table, which is empty, with the full blocks of `prefix`, which are there, and the rest of what was swapped; gives its
        slots back. Returns the copies to make, (slot, block), before anything is computed. Raises BlockPoolError if too few blocks are
        free. O(blocks)."""
        store, swap, full = self._store, self._store.swap, swapped.num_tokens // self.block_size
        self.adopt(prefix)
        first = len(prefix.block_ids)
        rest = swapped.slots[first:]
        found = [swap.block_of(slot) for slot in rest]
        for block_id in found:
            if block_id is not None:
                store.hold(block_id)
        taken = iter(store.take(found.count(None)))
        copies = []
        for place, (slot, twin) in enumerate(zip(rest, found, strict=True), first):
            block_id = next(taken) if twin is None else twin
            self.block_ids.append(block_id)
            if twin is None:
                copies.append((slot, block_id))
                if place < full:
                    swap.pair(block_id, slot)
        for slot in swapped.slots:
            swap.release(slot)
        return copies

    def fork(self, num_tokens: int, token_ids: list[int] | None = None) -> BlockTable:
        """A table that shares the blocks of the first `num_tokens` tokens, for a sequence that begins with the same ones. `token_ids` is
        that sequence's own list, if its blocks are to be found, too."""
        count = blocks_for(num_tokens, self.block_size)
        full = min(self.num_registered, num_tokens // self.block_size)
        keys = None if self._keys is None or token_ids is None else self._keys.fork(token_ids, full)
        child = BlockTable(self._store, self.block_size, keys)
        child.adopt(Prefix(self.block_ids[:count], num_tokens, full))
        return child

    def release(self) -> None:
        """Gives every block back; the table is then empty and can be used again."""
        self._computed(self._in_flight[1])
        # Last block first: a prefix is worth more the nearer it is to the start, so the end should be the first to be reused
        # (BlockStore says what follows from it).
        for block_id in reversed(self.block_ids):
            self._store.release(block_id)
        self.block_ids = []
        self.num_registered = 0

    def _computed(self, full: int) -> None:
        """Blocks before `full` are computed, or never will be."""
        first, end = self._in_flight
        if self._keys is not None and first < end:
            self._store.in_flight.remove(self._keys, first, min(full, end))
            self._in_flight = (max(first, min(full, end)), end)
