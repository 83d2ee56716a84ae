"""Fork, write, hit and evict in any order, against a plain dictionary of every token of every block."""

import struct
from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from octavo.kvcache.block_hash import hash_block
from octavo.kvcache.block_table import BlockTable
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.prefix_index import NULL_BLOCK
from octavo.kvcache.swap_space import Swapped
from octavo.kvcache.window import Window

# Few tokens and few beginnings, so that contents come again.
TOKENS = st.integers(0, 1)
HASHES = [hash_block, lambda parent, contents: b"same", lambda parent, contents: contents[:4]]


def pick(data, things):
    """One of them by its place: the draw is the same in each process, whatever their hashes."""
    return things[data.draw(st.integers(0, len(things) - 1))]


OWNERS = st.sampled_from(["x", "y", "z"])


@dataclass(eq=False)
class Sequence:
    tokens: list[int]
    table: BlockTable
    salt: str | None
    written: int = 0
    swapped: Swapped | None = None


class StoreMachine(RuleBasedStateMachine):
    steps = hits = window_hits = copies = evictions = shared = dropped = swapped_out = swapped_in = twins = restored = 0

    @initialize(
        block_size=st.sampled_from([1, 2, 3, 4]),
        num_blocks=st.integers(3, 16),
        num_slots=st.integers(0, 12),
        hash_block=st.sampled_from(HASHES),
        window=st.sampled_from([None, None, None, None, None, None, 1, 2, 5]),
    )
    def start(self, block_size, num_blocks, num_slots, hash_block, window):
        self.size = block_size
        self.hash_block = hash_block
        self.window = None if window is None else Window(window, 10)
        slots = num_slots if window is None else 0
        self.manager = KVCacheManager(num_blocks, block_size, num_swap_blocks=slots, hash_block=hash_block, window=self.window)
        self.slots: dict[int, dict[int, int]] = {}
        self.out: list[Sequence] = []
        self.sequences: list[Sequence] = []
        self.memory: dict[tuple[int, int], int] = {}
        self.use_store()
        self.begin()

    def use_store(self):
        self.store = self.manager.store
        self.left: dict[int, float] = {}
        self.store.release, self.give_back = self.release_and_note, self.store.release

    def begin(self):
        """From here on time is known; nobody has held what was restored."""
        self.left.clear()
        self.store.now = 0.0

    def release_and_note(self, block, owner=""):
        self.give_back(block, owner)
        if self.store._pool.reference_count(block) == 0:
            self.left[block] = self.store.now

    # What a sequence does.

    @precondition(lambda self: len(self.sequences) < 6)
    @rule(tokens=st.lists(TOKENS, min_size=4, max_size=10), salt=st.sampled_from([None, None, "a"]), owner=OWNERS)
    def hit(self, tokens, salt, owner):
        """A new sequence takes what it finds, and computes the rest."""
        sequence = Sequence(tokens, self.manager.new_table(tokens, salt=salt, owner=owner), salt)
        prefix = sequence.table.find(len(tokens))
        sequence.table.adopt(prefix)
        sequence.written = prefix.num_tokens
        StoreMachine.hits += prefix.num_tokens
        StoreMachine.window_hits += 0 if self.window is None else prefix.num_tokens
        self.sequences.append(sequence)
        self.compute(sequence, [])

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), more=st.lists(TOKENS, min_size=1, max_size=6))
    def write(self, data, more):
        self.compute(pick(data, self.sequences), more)

    def compute(self, sequence, more):
        """Writes what is not in the cache yet, `more` included, or nothing if the pool is too small."""
        tokens = sequence.tokens
        tokens += more
        before = sequence.table.block_ids.copy()
        grant = sequence.table.prepare(sequence.written, len(tokens))
        StoreMachine.steps += 1
        if grant is None:
            assert sequence.table.block_ids == before
            del tokens[len(tokens) - len(more) :]
            return
        for source, destination, count in grant.copies:
            StoreMachine.copies += 1
            kept = {(destination, offset): self.memory[source, offset] for offset in range(count)}
            for offset in range(self.size):
                self.memory.pop((destination, offset), None)
            self.memory.update(kept)
        for place, block in grant.replaced:
            before[place] = block
        assert sequence.table.block_ids == before + grant.new_block_ids
        # What the tokens to be computed see is there.
        seen = range(self.first_seen(sequence.written), sequence.written)
        assert [self.memory[self.slot(sequence, position)] for position in seen] == tokens[seen.start : seen.stop]
        for position in range(sequence.written, len(tokens)):
            block = sequence.table.block_ids[position // self.size]
            assert self.store._pool.reference_count(block) == 1
            assert self.store._index.get(block) is None
            self.memory[block, position % self.size] = tokens[position]
        sequence.written = len(tokens)
        sequence.table.commit(sequence.written)
        dropped = sequence.table.slide(sequence.written)
        StoreMachine.dropped += len(dropped)
        assert [block for _, block in dropped] == [NULL_BLOCK] * len(dropped)

    def first_seen(self, position):
        return 0 if self.window is None else max(0, position - self.window.size + 1)

    def slot(self, sequence, position):
        return sequence.table.block_ids[position // self.size], position % self.size

    @precondition(lambda self: 0 < len(self.sequences) < 6)
    @rule(data=st.data(), more=st.lists(TOKENS, max_size=3))
    def fork(self, data, more):
        parent = pick(data, self.sequences)
        # The window of its last token must be there still.
        counts = [n for n in range(parent.written + 1) if self.first_seen(max(n - 1, 0)) // self.size >= parent.table.num_dropped]
        count = pick(data, counts or [parent.written])
        tokens = parent.tokens[:count]
        child = parent.table.fork(count, data.draw(st.sampled_from([None, tokens])), owner=data.draw(OWNERS))
        used = self.store.num_used
        self.sequences.append(Sequence(tokens, child, parent.salt, count))
        assert self.store.num_used == used
        StoreMachine.shared += 1
        self.compute(self.sequences[-1], more)

    @precondition(lambda self: self.sequences and self.window is None)
    @rule(data=st.data())
    def swap_out(self, data):
        sequence = pick(data, self.sequences)
        copies, _ = sequence.table.to_swap(sequence.written)
        free = self.store.swap.num_free
        made = sequence.table.swap_out(sequence.written)
        if made is None:
            assert copies > free == self.store.swap.num_free
            return
        sequence.swapped, moves = made
        assert len(moves) == copies == free - self.store.swap.num_free
        for block, slot in moves:
            StoreMachine.swapped_out += 1
            self.slots[slot] = self.contents(block)
        sequence.table.release()
        self.sequences.remove(sequence)
        self.out.append(sequence)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), more=st.lists(TOKENS, max_size=3))
    def swap_in(self, data, more):
        sequence = pick(data, self.out)
        table, swapped = sequence.table, sequence.swapped
        prefix = table.find(sequence.written)
        if prefix.num_tokens == sequence.written:
            table.adopt(prefix)
            for slot in swapped.slots:
                self.store.swap.release(slot)
        else:
            twins = table.twins(prefix, swapped)
            found = prefix.block_ids + twins
            if len(swapped.slots) - len(found) + self.store.count_free(found) > self.store.num_free:
                return
            moves = table.swap_in(prefix, swapped)
            StoreMachine.twins += len(twins)
            for slot, block in moves:
                StoreMachine.swapped_in += 1
                for offset in range(self.size):
                    self.memory.pop((block, offset), None)
                self.memory.update({(block, offset): token for offset, token in self.slots[slot].items()})
            assert len(moves) == len(swapped.slots) - len(found)
        sequence.swapped = None
        self.out.remove(sequence)
        self.sequences.append(sequence)
        self.compute(sequence, more)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def forget_swapped(self, data):
        sequence = pick(data, self.out)
        for slot in sequence.swapped.slots:
            self.store.swap.release(slot)
        self.out.remove(sequence)

    def contents(self, block):
        return {offset: self.memory[block, offset] for offset in range(self.size) if (block, offset) in self.memory}

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def release(self, data):
        sequence = pick(data, self.sequences)
        self.sequences.remove(sequence)
        sequence.table.release()

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds):
        self.store.now += seconds

    @precondition(lambda self: self.window is None and len(self.sequences) <= 1 and len(self.out) <= 1)
    @rule(num_blocks=st.integers(3, 16))
    def restart(self, num_blocks):
        """All end, and another manager begins with what can be found, as far as it has room."""
        while self.sequences:
            self.sequences.pop().table.release()
        while self.out:
            for slot in self.out.pop().swapped.slots:
                self.store.swap.release(slot)
        block_ids, saved = self.manager.saved()
        saved = saved[:num_blocks]
        StoreMachine.evictions += self.store.num_evicted
        self.manager = KVCacheManager(num_blocks, self.size, num_swap_blocks=self.store.swap.num_slots, hash_block=self.hash_block)
        self.use_store()
        taken = self.store.take(len(saved))
        self.memory = {
            (new, offset): self.memory[old, offset] for new, old in zip(taken, block_ids, strict=False) for offset in range(self.size)
        }
        assert self.manager.restore(taken, saved) == self.store.num_cached == len(saved)
        assert self.manager.saved() == (taken, saved)
        self.begin()
        StoreMachine.restored += len(saved)

    @rule()
    def reset(self):
        assert self.manager.reset() == (self.store.num_used == self.store.swap.num_used == 0)

    # What holds at all times.

    @invariant()
    def every_sequence_reads_its_own_tokens(self):
        for sequence in self.sequences:
            first = sequence.table.num_dropped * self.size
            assert first <= self.first_seen(sequence.written)
            read = [self.memory[self.slot(sequence, position)] for position in range(first, sequence.written)]
            assert read == sequence.tokens[first : sequence.written]
            ids = sequence.table.held
            assert len(set(ids)) == len(ids)
            assert sequence.table.block_ids == [NULL_BLOCK] * sequence.table.num_dropped + ids

    @invariant()
    def references_are_those_of_tables(self):
        held = Counter(block for sequence in self.sequences for block in sequence.table.held)
        for block in range(self.store.num_blocks):
            assert self.store._pool.reference_count(block) == held[block]
        assert self.store.num_used == len(held)

    @invariant()
    def what_is_told_of_each_block_is_so(self):
        owners = {block: [] for block in range(self.store.num_blocks)}
        for sequence in self.sequences:
            for block in sequence.table.held:
                owners[block].append(sequence.table.owner)
        told = self.store.describe(0, self.store.num_blocks + 5)
        assert [state.block_id for state in told] == list(owners)
        for state in told:
            assert sorted(state.owners) == sorted(owners[state.block_id])
            assert state.reference_count == len(state.owners)
            cached = self.store._index.get(state.block_id)
            assert state.digest == (None if cached is None else cached.digest.hex())
            left = self.left.get(state.block_id)
            assert state.idle_seconds == (0.0 if state.owners else None if left is None else self.store.now - left)
        assert self.store.num_cached_free == sum(state.digest is not None and not state.owners for state in told)

    @invariant()
    def swapped_sequences_have_their_own_tokens_too(self):
        swap = self.store.swap
        for sequence in self.out:
            slots = sequence.swapped.slots
            read = [self.slots[slots[position // self.size]][position % self.size] for position in range(sequence.written)]
            assert read == sequence.tokens[: sequence.written]
            assert sequence.swapped.num_tokens == sequence.written
        held = Counter(slot for sequence in self.out for slot in sequence.swapped.slots)
        assert [swap.reference_count(slot) for slot in range(swap.num_slots)] == [held[slot] for slot in range(swap.num_slots)]
        assert swap.num_used == len(held) == swap.num_slots - swap.num_free
        for block, slot in swap._slot_of.items():
            assert held[slot]
            assert self.contents(block) == self.slots[slot]

    @invariant()
    def what_can_be_found_is_there_after_what_it_follows(self):
        for block, cached in self.store._index._by_id.items():
            tokens = struct.unpack(f"<{self.size}i", cached.contents)
            assert tuple(self.memory[block, offset] for offset in range(self.size)) == tokens
        known = self.store._index._by_digest.values()
        for cached in known:
            assert cached.parent is None or cached.parent in known
            if cached.block_id == NULL_BLOCK:
                assert self.window is not None
                assert cached.num_children
        contents = [(cached.parent, cached.contents, cached.scope) for cached in known]
        assert len(set(contents)) == len(contents)
        assert {cached.block_id for cached in known} - {NULL_BLOCK} == set(self.store._index._by_id)

    @invariant()
    def what_is_saved_has_parents_first_and_what_is_reused_first_last(self):
        if self.window is not None:
            return
        block_ids, saved = self.manager.saved()
        assert sorted(block_ids) == sorted(self.store._index._by_id)
        assert all(each.parent < place for place, each in enumerate(saved))
        for block, each in zip(block_ids, saved, strict=True):
            parent = self.store._index.get(block).parent
            assert (None if parent is None else parent.block_id) == (None if each.parent < 0 else block_ids[each.parent])
        free = [block for block in block_ids if self.store._pool.reference_count(block) == 0]
        assert block_ids[len(block_ids) - len(free) :] == free
        reused = [block for block in reversed(list(self.store._pool.free_blocks())) if block in free]
        assert reused == free[::-1]

    @invariant()
    def eviction_takes_the_end_of_a_chain(self):
        if self.window is not None:
            return
        pool, seen, block = self.store._pool, set(), self.store._pool._next[self.store.num_blocks]
        children = Counter(cached.parent.block_id for cached in self.store._index._by_id.values() if cached.parent is not None)
        while block != pool.num_blocks:
            seen.add(block)
            cached = self.store._index.get(block)
            if cached is not None:
                # All that followed it are gone by its turn.
                assert children[block] == 0
                if cached.parent is not None:
                    children[cached.parent.block_id] -= 1
            block = pool._next[block]
        assert len(seen) == self.store.num_free

    def teardown(self):
        if hasattr(self, "store"):
            StoreMachine.evictions += self.store.num_evicted
            for sequence in self.sequences:
                sequence.table.release()
            assert self.store.num_used == 0


def test_any_order_of_operations_agrees_with_a_plain_dictionary():
    machine = StoreMachine
    counts = ("steps", "hits", "window_hits", "copies", "evictions", "shared", "dropped", "swapped_out", "swapped_in", "twins", "restored")
    for name in counts:
        setattr(machine, name, 0)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=1500, stateful_step_count=50, deadline=None, database=None, suppress_health_check=list(HealthCheck)),
    )
    seen = {name: getattr(machine, name) for name in counts}
    print(seen)
    assert seen["steps"] > 10_000
    assert all(count > 20 for count in seen.values())
