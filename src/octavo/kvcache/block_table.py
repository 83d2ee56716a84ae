"""The blocks of one sequence, in order (Kwon et al., 2023: PagedAttention)."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.kvcache.block_hash import BlockKeys
from octavo.kvcache.block_store import BlockStore
from octavo.kvcache.prefix_index import NULL_BLOCK
from octavo.kvcache.swap_space import Swapped
from octavo.kvcache.window import Window


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that `num_tokens` tokens fill or begin."""
    return -(-num_tokens // block_size)


@dataclass(frozen=True, slots=True)
class Prefix:
    """Blocks that hold the first `num_tokens` tokens of a sequence. The first `num_registered` of them can be found by the prefix index.
    With a window the first ones, which no further token sees, may be NULL_BLOCK. Of a MixedTable, `window` has the blocks of the layers
    that see a window."""

    block_ids: list[int]
    num_tokens: int
    num_registered: int
    window: Prefix | None = None

    @property
    def held(self) -> list[int]:
        """The blocks that are there."""
        return [block_id for block_id in self.block_ids if block_id != NULL_BLOCK]


@dataclass(frozen=True, slots=True)
class Grant:
    """What changed in a table to make room: `new_block_ids` were appended, `replaced` are (place, new block id), and `copies` are
    (source, destination, tokens) whose contents the step must copy before it writes. Of a MixedTable, `window_block_ids` were appended for
    the layers that see a window, and ~place is a place among those."""

    new_block_ids: list[int] = field(default_factory=list)
    replaced: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)
    window_block_ids: list[int] = field(default_factory=list)


def _before(prefix: Prefix, swapped: Swapped | None) -> Prefix:
    """What a table begins with that goes on with what was swapped: the prefix, or nothing if a window has passed all of that."""
    if swapped is None or len(prefix.block_ids) >= swapped.num_dropped:
        return prefix
    return Prefix([NULL_BLOCK] * swapped.num_dropped, prefix.num_tokens, 0)


class BlockTable:
    """Position p of the sequence lives in slot `p % block_size` of block `block_ids[p // block_size]`. Where a `window` bounds what tokens
    see, the first `num_dropped` entries are NULL_BLOCK: their blocks were given back when it had passed them (`slide`).

    Blocks come only as tokens come, so a table that holds what its tokens need has at most block_size − 1 unused slots. Tables may share
    blocks; one that wants to write to a shared block gets a copy of that block (`prepare`). With `keys` the full blocks can be found by
    other sequences, once `commit` says that they are computed; `num_registered` of them, from the first on, are. `owner` is who holds the
    blocks, for whoever asks the store.

    `block_ids` is for reading; the methods change it.
    """

    __slots__ = ("_in_flight", "_keys", "_lost", "_store", "_window", "block_ids", "block_size", "num_dropped", "num_registered", "owner")

    def __init__(
        self, store: BlockStore, block_size: int, keys: BlockKeys | None = None, *, owner: str = "", window: Window | None = None
    ) -> None:
        self._store = store
        self._keys = keys
        self._window = window
        # Whether no more blocks of a sliding table can be registered, since one could not be and those after it need their parent.
        self._lost = False
        self._in_flight = (0, 0)
        self.block_size = block_size
        self.owner = owner
        self.block_ids: list[int] = []
        self.num_registered = 0
        self.num_dropped = 0

    @property
    def parts(self) -> tuple[BlockTable, ...]:
        """Itself; see MixedTable."""
        return (self,)

    @property
    def window_block_ids(self) -> list[int]:
        """None; see MixedTable."""
        return []

    def prefix(self, num_tokens: int) -> Prefix:
        """What it holds, as the beginning of other tables: the first `num_tokens` tokens, which fill it."""
        return Prefix(self.block_ids, num_tokens, self.num_registered)

    @property
    def num_slots(self) -> int:
        """Tokens that the table has places for."""
        return len(self.block_ids) * self.block_size

    @property
    def held(self) -> list[int]:
        """The blocks that it holds."""
        return self.block_ids[self.num_dropped :]

    def most_step(self, num_computed: int) -> int:
        """Tokens from `num_computed` on that the sequence could compute in one step if it had the whole pool."""
        return (self.num_dropped + self._store.num_blocks) * self.block_size - num_computed

    def _most_held(self, num_dropped: int, num_tokens: int) -> int:
        """Blocks that the table will hold at most, at once, until it has room for `num_tokens` tokens, if `num_dropped` are given back."""
        most = blocks_for(num_tokens, self.block_size) - num_dropped
        return most if self._window is None else min(most, self._window.most_blocks(self.block_size), self._store.num_blocks)

    def blocks_needed(self, prefix: Prefix, num_tokens: int, swapped: Swapped | None = None) -> int:
        """Free blocks that the sequence, whose table is empty, takes for its first `num_tokens` tokens if it begins with `prefix` and goes
        on with what was `swapped`. What others hold of that costs nothing, unless the sequence goes on inside of a block and has to copy
        it; what nobody holds leaves the free blocks, too."""
        copies = prefix.num_tokens % self.block_size > 0 and num_tokens > prefix.num_tokens
        prefix = _before(prefix, swapped)
        num_dropped = len(prefix.block_ids) - len(prefix.held)
        held = prefix.held if swapped is None else prefix.held + self.twins(prefix, swapped)
        return self._most_held(num_dropped, num_tokens) - len(held) + self._store.count_free(held) + copies

    def blocks_to_come(self, written: int, num_tokens: int, most_tokens: int) -> int:
        """Free blocks that the table still has to take for the first `num_tokens` tokens, of which `written` are in the cache, and one more
        if the sequence, which will never have more than `most_tokens`, can grow into it, or into a block that it shares."""
        known = blocks_for(num_tokens, self.block_size)
        copies = written < most_tokens and self.must_copy(written)
        copies_now = copies and written < num_tokens
        grows = blocks_for(most_tokens, self.block_size) > known or copies > copies_now
        return max(0, self._most_held(self.num_dropped, num_tokens) - len(self.block_ids) + self.num_dropped) + copies_now + grows

    def find(self, num_tokens: int, most_blocks: int | None = None) -> Prefix:
        """What can be found of the first `num_tokens` tokens of the sequence, in at most `most_blocks` blocks: blocks from the first on,
        or, with a window, as many as leave nothing to compute but what sees only blocks that are there. O(tokens found)."""
        if self._keys is None:
            return Prefix([], 0, 0)
        count = num_tokens // self.block_size
        found = self._store.find(self._keys, count if most_blocks is None else min(count, most_blocks))
        if self._window is not None:
            found = self._within_window(found, num_tokens)
        return Prefix(found, len(found) * self.block_size, len(found))

    def _within_window(self, found: list[int], num_tokens: int) -> list[int]:
        """The longest beginning of `found` of which all is there that the next token sees; that alone, NULL_BLOCK before it."""
        best = dropped = gone = 0
        for count, block_id in enumerate(found, 1):
            if block_id == NULL_BLOCK:
                gone = count
            first = self._first_needed(count, count * self.block_size, num_tokens)
            if gone <= first:
                best, dropped = count, first
        return [NULL_BLOCK] * dropped + found[dropped:best]

    def _first_needed(self, num_blocks: int, num_held: int, num_tokens: int) -> int:
        """The first of `num_blocks` blocks, which hold `num_held` tokens, that a sequence goes on from when it knows `num_tokens`."""
        # The last token known is computed in any case. The last block is the parent of the next.
        return min(self._first_seen(min(num_held, num_tokens - 1)), num_blocks - 1)

    def needed(self, prefix: Prefix, num_tokens: int) -> Prefix:
        """`prefix` without the blocks that the window has passed for a sequence that knows `num_tokens` tokens."""
        if self._window is None or not prefix.block_ids:
            return prefix
        first = self._first_needed(len(prefix.block_ids), prefix.num_tokens, num_tokens)
        return Prefix([NULL_BLOCK] * first + prefix.block_ids[first:], prefix.num_tokens, prefix.num_registered)

    def _first_seen(self, position: int) -> int:
        return 0 if self._window is None else self._window.first_place(position, self.block_size)

    def is_in_flight(self, place: int, num_tokens: int) -> bool:
        """Whether another sequence is computing what this one's block `place` will hold, of whose tokens `num_tokens` are known."""
        if self._keys is None or (place + 1) * self.block_size > num_tokens:
            return False
        self._keys.extend(place + 1)
        return self._store.in_flight.has(self._keys, place)

    def adopt(self, prefix: Prefix) -> None:
        """Begins the table, which is empty, with blocks that are there already."""
        held = prefix.held
        for block_id in held:
            self._store.hold(block_id, self.owner)
        self.block_ids = prefix.block_ids.copy()
        self.num_dropped = len(prefix.block_ids) - len(held)
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
        kept, shared, missing = self._to_prepare(written, num_tokens)
        if missing + len(shared) > store.num_free:
            return None
        taken = store.take(missing + len(shared), self.owner)
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
            store.release(ids[place], self.owner)
            grant.replaced.append((place, copy))
            ids[place] = copy
        if shared:
            self.num_registered = min(self.num_registered, shared[0])
        ids += grant.new_block_ids
        return grant

    def has_room(self, written: int, num_tokens: int) -> bool:
        """Whether `prepare` would succeed."""
        _, shared, missing = self._to_prepare(written, num_tokens)
        return missing + len(shared) <= self._store.num_free

    def _to_prepare(self, written: int, num_tokens: int) -> tuple[range, list[int], int]:
        """Places that are written to, those of them that need a copy, and how many more there must be."""
        end = blocks_for(num_tokens, self.block_size)
        kept = range(written // self.block_size, min(end, len(self.block_ids)))
        shared = [place for place in kept if num_tokens > written and self._store.must_copy(self.block_ids[place])]
        return kept, shared, max(0, end - len(self.block_ids))

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
            parent = self.block_ids[place - 1] if place else None
            known = None if self._lost or NULL_BLOCK in (own, parent) else self._store.register(own, self._keys, place, parent)
            if known is None:
                self._lost = self._window is not None
                break
            if known != own:
                self._store.hold(known, self.owner)
                self._store.release(own, self.owner)
                self.block_ids[place] = known
                replaced.append((place, known))
            self.num_registered += 1
        self._computed(full)
        return replaced

    def slide(self, num_computed: int) -> list[tuple[int, int]]:
        """Gives back the blocks that no token from position `num_computed` on sees; returns (place, NULL_BLOCK) of each. O(those)."""
        if self._window is None:
            return []
        end = self._first_seen(num_computed)
        if self.num_registered and not self._lost:
            # The next block that is registered needs its parent.
            end = min(end, self.num_registered - 1)
        dropped = [(place, NULL_BLOCK) for place in range(self.num_dropped, end)]
        for place, _ in dropped:
            self._store.release(self.block_ids[place], self.owner)
            self.block_ids[place] = NULL_BLOCK
        self.num_dropped += len(dropped)
        return dropped

    def to_swap(self, num_tokens: int) -> tuple[int, int]:
        """What it would take to do without the blocks of the first `num_tokens` tokens, which are in the cache: the blocks to copy to swap
        space, and the tokens to compute again without it. Blocks that are there already aren't copied, and those that others hold and that
        can be found needn't be computed. O(blocks)."""
        ids, size, store, first = self.block_ids[: blocks_for(num_tokens, self.block_size)], self.block_size, self._store, self.num_dropped
        full = num_tokens // size
        copies = sum(place >= full or store.swap.slot_of(ids[place]) is None for place in range(first, len(ids)))
        found = first
        while found < min(self.num_registered, full) and store.is_shared(ids[found]):
            found += 1
        if first and (found == first or self._first_needed(found, found * size, num_tokens) < first):
            # What others hold begins too late for the first token after it.
            found = 0
        return copies, num_tokens - found * size

    def swap_out(self, num_tokens: int) -> tuple[Swapped, list[tuple[int, int]]] | None:
        """Takes slots in swap space for the blocks of the first `num_tokens` tokens, which are in the cache; the second value are the
        copies to make, (block, slot), before anything is written. Blocks that sequences share have one slot. The table stays as it is.
        None, with nothing changed, if swap space is too small. O(blocks)."""
        size, swap, first = self.block_size, self._store.swap, self.num_dropped
        ids, full = self.block_ids[first : blocks_for(num_tokens, size)], num_tokens // size
        twins = [swap.slot_of(block_id) if place < full else None for place, block_id in enumerate(ids, first)]
        if twins.count(None) > swap.num_free:
            return None
        slots, copies = [], []
        for place, (block_id, slot) in enumerate(zip(ids, twins, strict=True), first):
            if slot is not None:
                swap.hold(slot)
                slots.append(slot)
                continue
            slots.append(swap.take())
            copies.append((block_id, slots[-1]))
            # What is written to a block that is not full yet is not in the slot.
            if place < full:
                swap.pair(block_id, slots[-1])
        return Swapped(slots, num_tokens, first), copies

    def drop_swapped(self, swapped: Swapped) -> None:
        """Gives the slots back of what was swapped out of it. O(slots)."""
        for slot in swapped.slots:
            self._store.swap.release(slot)

    def twins(self, prefix: Prefix, swapped: Swapped) -> list[int]:
        """Blocks that hold, after `prefix`, what `swapped` does."""
        first = max(0, len(prefix.block_ids) - swapped.num_dropped)
        found = (self._store.swap.block_of(slot) for slot in swapped.slots[first:])
        return [block_id for block_id in found if block_id is not None]

    def swap_in(self, prefix: Prefix, swapped: Swapped) -> list[tuple[int, int]]:
        """Begins the table, which is empty, with the full blocks of `prefix`, which are there, and the rest of what was swapped; gives its
        slots back. Returns the copies to make, (slot, block), before anything is computed. Raises BlockPoolError if too few blocks are
        free. O(blocks)."""
        store, swap, full = self._store, self._store.swap, swapped.num_tokens // self.block_size
        self.adopt(_before(prefix, swapped))
        first = len(self.block_ids)
        rest = swapped.slots[first - swapped.num_dropped :]
        found = [swap.block_of(slot) for slot in rest]
        for block_id in found:
            if block_id is not None:
                store.hold(block_id, self.owner)
        taken = iter(store.take(found.count(None), self.owner))
        copies = []
        for place, (slot, twin) in enumerate(zip(rest, found, strict=True), first):
            block_id = next(taken) if twin is None else twin
            self.block_ids.append(block_id)
            if twin is None:
                copies.append((slot, block_id))
                if place < full:
                    swap.pair(block_id, slot)
        self.drop_swapped(swapped)
        return copies

    def fork(self, num_tokens: int, token_ids: list[int] | None = None, *, owner: str = "") -> BlockTable:
        """A table that shares the blocks of the first `num_tokens` tokens, for a sequence that begins with the same ones. `token_ids` is
        that sequence's own list, if its blocks are to be found, too. With a window, what `num_tokens` - 1 sees must be there still."""
        count = blocks_for(num_tokens, self.block_size)
        full = min(self.num_registered, num_tokens // self.block_size)
        keys = None if self._keys is None or token_ids is None else self._keys.fork(token_ids, full)
        child = BlockTable(self._store, self.block_size, keys, owner=owner, window=self._window)
        child.adopt(Prefix(self.block_ids[:count], num_tokens, full))
        # Which keeps it, too, from waiting for blocks to be registered that never will be.
        child._lost = self._lost
        return child

    def release(self) -> None:
        """Gives every block back; the table is then empty and can be used again."""
        self._computed(self._in_flight[1])
        # Last block first: a prefix is worth more the nearer it is to the start, so the end should be the first to be reused
        # (BlockStore says what follows from it).
        for block_id in reversed(self.held):
            self._store.release(block_id, self.owner)
        self.block_ids = []
        self.num_registered = self.num_dropped = 0
        self._lost = False

    def _computed(self, full: int) -> None:
        """Blocks before `full` are computed, or never will be."""
        first, end = self._in_flight
        if self._keys is not None and first < end:
            self._store.in_flight.remove(self._keys, first, min(full, end))
            self._in_flight = (max(first, min(full, end)), end)
