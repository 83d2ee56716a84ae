"""Block accounting and results under any order of events."""

import struct
from collections import Counter

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from mirror_worker import EOS, VOCAB, MirrorWorker, alone, searched

from octavo.config.engine import SchedulerConfig
from octavo.kvcache.block_hash import hash_block
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.prefix_index import NULL_BLOCK
from octavo.kvcache.window import Window
from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import EngineRequest
from octavo.scheduling.request import RequestStatus
from octavo.scheduling.scheduler import Scheduler

TOKENS = st.integers(0, VOCAB - 1)
# Of the same few beginnings, so that there is something to find.
BEGINNINGS = [[place * (3 + kind) % VOCAB for place in range(12)] for kind in range(2)]
# The real hash, and ones under which contents collide: always, and within two classes.
HASHES = [hash_block, lambda parent, contents: b"same", lambda parent, contents: bytes([contents[:1] < b"\x08"])]


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, go, fail and are preempted; what each has received so far is always a beginning of what it gets alone."""

    steps = preemptions = finished = aborted_mid_step = hits = window_hits = copies = evictions = dropped = 0
    swapped_out = swapped_in = shared_slots = searches = refused = returns = new_starts = mixed = mixed_hits = swapped_windows = 0

    @initialize(
        block_size=st.sampled_from([1, 2, 4]),
        num_blocks=st.integers(2, 12),
        budget=st.integers(1, 12),
        seqs=st.integers(1, 6),
        max_model_len=st.integers(2, 30),
        prefix_caching=st.sampled_from([True, True, False]),
        hash_block=st.sampled_from(HASHES),
        policy=st.sampled_from(["fcfs", "fcfs", "priority"]),
        window=st.sampled_from([None, None, None, 1, 2, 4, 7]),
        window_blocks=st.sampled_from([0, 0, 2, 5, 12]),
        swap_slots=st.sampled_from([0, 3, 20, 20, 20]),
        mode=st.sampled_from(["swap", "swap", "auto"]),
    )
    def start(
        self,
        block_size,
        num_blocks,
        budget,
        seqs,
        max_model_len,
        prefix_caching,
        hash_block,
        policy,
        window,
        window_blocks,
        swap_slots,
        mode,
    ):
        config = SchedulerConfig(budget, seqs, policy, mode)
        self.priorities = st.integers(-1, 1) if policy == "priority" else st.just(0)
        self.window = None if window is None else Window(window, budget)
        window_blocks = 0 if window is None else window_blocks
        SchedulerMachine.mixed += window_blocks > 0
        cache = KVCacheManager(
            num_blocks,
            block_size,
            num_swap_blocks=swap_slots,
            prefix_caching=prefix_caching,
            hash_block=hash_block,
            window=self.window,
            num_window_blocks=window_blocks,
            num_window_swap_blocks=swap_slots // 2 if window_blocks else 0,
        )
        self.scheduler = Scheduler(config, cache, max_model_len=max_model_len, vocab_size=VOCAB, clock=lambda: 0.0)
        self.cache, self.store = cache, cache.store
        self.worker = MirrorWorker(block_size, num_blocks, budget, seqs, window, window_blocks)
        self.max_model_len = max_model_len
        bounds = [num_blocks] if window is None or window_blocks else []
        if window is not None and (window_blocks or num_blocks) < self.window.most_blocks(block_size, 1):
            bounds.append(window_blocks or num_blocks)
        self.context = min([max_model_len, *(block_size * blocks for blocks in bounds)])
        self.live: dict[str, EngineRequest] = {}
        self.received: dict[str, list[int]] = {}
        self.next_id = 0

    # Rules.

    def draw_request(self, data):
        """A prompt and how to sample; requests begin alike often, so that there is something to find."""
        beginning = data.draw(st.sampled_from(BEGINNINGS))[: data.draw(st.integers(0, 12))]
        prompt = (beginning + data.draw(st.lists(TOKENS, min_size=not beginning, max_size=6)))[: self.context - 1]
        max_tokens = data.draw(st.none() | st.integers(1, 20))
        return prompt, SamplingParams(
            max_tokens=max_tokens,
            min_tokens=data.draw(st.integers(0, min(3, max_tokens or 3))),
            ignore_eos=data.draw(st.booleans()),
            stop_token_ids=data.draw(st.none() | st.lists(TOKENS, max_size=2)),
            seed=data.draw(st.integers(0, 2)),
        )

    def add_one(self, request):
        self.scheduler.add(request)
        self.live[request.request_id] = request
        self.received[request.request_id] = []

    def new_id(self):
        self.next_id += 1
        return f"r{self.next_id}"

    @precondition(lambda self: self.context > 1 and len(self.live) < 12)
    @rule(data=st.data(), count=st.integers(1, 4))
    def add(self, data, count):
        for _ in range(count):
            priority = data.draw(self.priorities)
            self.add_one(EngineRequest(self.new_id(), *self.draw_request(data), eos_token_ids=[EOS], priority=priority))

    @precondition(lambda self: self.context > 1 and len(self.live) < 12)
    @rule(data=st.data(), count=st.integers(2, 5))
    def add_samples(self, data, count):
        group_id = self.new_id()
        prompt, sampling = self.draw_request(data)
        priority = data.draw(self.priorities)
        for index in range(count):
            sample = msgspec.structs.replace(sampling, seed=index)
            self.add_one(EngineRequest(f"{group_id}:{index}", prompt, sample, eos_token_ids=[EOS], group_id=group_id, priority=priority))

    @precondition(lambda self: self.context > 1 and len(self.live) < 12)
    @rule(data=st.data(), width=st.integers(1, 3), max_tokens=st.integers(1, 8))
    def add_search(self, data, width, max_tokens):
        # Short enough for most of the pools.
        prompt = self.draw_request(data)[0][:5]
        params = BeamSearchParams(
            min(width, self.worker.max_num_seqs),
            max_tokens,
            ignore_eos=data.draw(st.booleans()),
            length_penalty=data.draw(st.sampled_from([0.0, 1.0, 2.0, -1.0])),
            early_stopping=data.draw(st.sampled_from([False, True, "never"])),
        )
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=params.ignore_eos, seed=0, logprobs=0)
        priority = data.draw(self.priorities)
        try:
            self.add_one(EngineRequest(self.new_id(), prompt, sampling, eos_token_ids=[EOS], priority=priority, beam_search=params))
        except InvalidRequestError:
            SchedulerMachine.refused += 1
            return
        if data.draw(st.booleans()):
            for _ in range(20):
                if any(len(request.sequences) > 1 for request in self.scheduler._running.values()):
                    self.step(data.draw(st.integers(0, 2)))
                    self.preempt_all()
                    break
                self.step(1)

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            plan = self.plan()
            self.take(self.scheduler.update(plan, self.worker.run(plan)))
            self.references_are_those_of_tables()

    @rule(data=st.data(), worker_is_faster=st.booleans(), reuse=st.booleans())
    def step_with_an_abort_inside(self, data, worker_is_faster, reuse):
        plan = self.plan()
        result = self.worker.run(plan) if worker_is_faster else None
        if self.live:
            request_id = self.abort_one(data)
            SchedulerMachine.aborted_mid_step += 1
            if reuse:
                self.add_one(EngineRequest(request_id, *self.draw_request(data), eos_token_ids=[EOS]))
            self.references_are_those_of_tables()
        self.take(self.scheduler.update(plan, self.worker.run(plan) if result is None else result))

    @rule(data=st.data())
    def step_with_failures(self, data):
        plan = self.plan()
        ids = [share.request_id for share in plan.scheduled]
        failing = frozenset(data.draw(st.sets(st.sampled_from(ids)))) if ids else frozenset()
        outputs = self.scheduler.update(plan, self.worker.run(plan, failing))
        ended = {output.request_id for output in outputs if output.finish_reason == "error"}
        assert ended == {request_id.partition("#")[0] for request_id in failing}
        self.take(outputs)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data):
        self.abort_one(data)

    def abort_one(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        assert self.scheduler.abort(request_id)
        assert not self.scheduler.abort(request_id)
        del self.live[request_id]
        return request_id

    @precondition(lambda self: self.scheduler.num_running > 0)
    @rule(count=st.integers(1, 4))
    def preempt_the_last(self, count):
        for _ in range(min(count, self.scheduler.num_running)):
            self.scheduler._preempt(self.scheduler._ranked()[-1])

    @precondition(lambda self: self.context > 6 and len(self.live) < 12)
    @rule(count=st.integers(2, 4), kind=st.sampled_from(BEGINNINGS), steps=st.integers(2, 5))
    def preempt_samples(self, count, kind, steps):
        """Samples of one prompt run together, and lose their blocks together."""
        group_id = self.new_id()
        for index in range(count):
            sampling = SamplingParams(max_tokens=20, seed=index, ignore_eos=True)
            prompt = kind[: min(8, self.context - 2)]
            self.add_one(EngineRequest(f"{group_id}:{index}", prompt, sampling, eos_token_ids=[EOS], group_id=group_id))
        self.step(steps)
        while self.scheduler.num_running:
            self.preempt_the_last(1)

    @precondition(lambda self: all(request.beam_search is None for request in self.live.values()))
    @precondition(lambda self: self.scheduler.num_running > 3 or self.scheduler.stats().swapped > 1)
    @rule(worker_is_faster=st.booleans())
    def step_that_breaks_off(self, worker_is_faster):
        """Nobody knows how far it came."""
        plan = self.plan()
        if worker_is_faster:
            self.worker.run(plan)
        for request_id in self.scheduler.abandon():
            del self.live[request_id]
        self.worker.held = {}
        self.scheduler._removed = []
        for request in self.scheduler._running.values():
            # Those that had no share are introduced anew, as the mirror holds nothing any more.
            request.held_by_worker = False

    @rule(running=st.booleans())
    def reset(self, running):
        stats = self.scheduler.stats()
        assert self.scheduler.reset_prefix_cache(reset_running_requests=running) == (
            running or stats.blocks_used == stats.swap_blocks_used == 0
        )

    @precondition(lambda self: self.scheduler.num_running > 1)
    @rule(planned=st.booleans())
    def start_over(self, planned):
        """As after an error in the midst of a plan, or of a result."""
        if planned:
            self.plan()
        SchedulerMachine.new_starts += 1
        stats = self.scheduler.stats()
        assert self.scheduler.start_over() == sorted(self.live, key=list(self.live).index)
        self.live.clear()
        self.store = self.cache.store
        after = self.scheduler.stats()
        assert (after.running, after.waiting, after.blocks_used, after.swap_blocks_used, after.blocks_cached) == (0, 0, 0, 0, 0)
        assert (after.preemptions, after.blocks_evicted, after.blocks_swapped_out) == (
            *(stats.preemptions, stats.blocks_evicted, stats.blocks_swapped_out),
        )

    @rule()
    def preempt_all(self):
        for request in reversed(self.scheduler._ranked()):
            self.scheduler._preempt(request)

    @rule()
    def finish_all(self):
        for _ in range(1500):
            if not self.scheduler.has_work:
                break
            self.step(1)
        assert not self.live
        assert not self.worker.held
        assert self.scheduler.stats().blocks_used == self.scheduler.stats().swap_blocks_used == self.scheduler.stats().swapped == 0

    # What a step must do.

    def plan(self):
        before = self.scheduler.stats()
        plan = self.scheduler.schedule()
        after = self.scheduler.stats()
        SchedulerMachine.steps += 1
        preempted = after.preemptions - before.preemptions
        SchedulerMachine.preemptions += preempted
        # Beams other than the first are told in full only when they come back.
        SchedulerMachine.returns += sum("#" in new.request_id for new in plan.new)
        # A step that takes blocks away admits nobody (beams of a search that runs may come into it all the same).
        assert not preempted or after.waiting == before.waiting + preempted
        if self.live:
            assert plan.num_tokens > 0
        return plan

    def take(self, outputs):
        for output in outputs:
            request = self.live[output.request_id]
            if request.beam_search is not None:
                self.take_found(request, output)
                continue
            received = self.received[output.request_id]
            received += output.token_ids
            assert output.logprobs is None or [entry.logprob for entry in output.logprobs] == [-float(t) for t in output.token_ids]
            expected, reason, stop = alone(request, self.context, self.worker.window)
            assert received == expected[: len(received)]
            if output.finish_reason is None:
                assert output.token_ids
                assert len(received) < len(expected)
                continue
            if output.finish_reason != "error":
                assert (received, output.finish_reason, output.stop_reason) == (expected, reason, stop)
                SchedulerMachine.finished += 1
            del self.live[output.request_id]

    def take_found(self, request, output):
        """A search says nothing before its end."""
        del self.live[output.request_id]
        if output.finish_reason != "error":
            found = [(each.token_ids, each.cumulative_logprob, each.finish_reason) for each in output.hypotheses]
            assert found == searched(request.prompt_token_ids, request.beam_search, [EOS], self.max_model_len, self.worker.window)
            SchedulerMachine.searches += 1

    # What holds at all times.

    @invariant()
    def references_are_those_of_tables(self):
        holders = Counter()
        tables = [sequence.table for request in self.scheduler._requests.values() for sequence in request.sequences]
        for whole in (*tables, *(table for table, _ in self.scheduler._groups.held())):
            for table in whole.parts:
                assert table.block_ids[: table.num_dropped] == [NULL_BLOCK] * table.num_dropped
                holders.update(table.held)
        for store in self.store.parts:
            pool = store._pool
            blocks = range(pool.first, pool.end)
            assert [holders[block] for block in blocks] == [pool.reference_count(block) for block in blocks]
            assert pool.num_free == sum(holders[block] == 0 for block in blocks)
            assert pool.num_free + pool.num_used == pool.num_blocks
            assert sorted(self.free_list(store)) == [block for block in blocks if holders[block] == 0]
        assert sum(pool.num_blocks for pool in (store._pool for store in self.store.parts)) == self.scheduler.stats().blocks_total

    def free_list(self, store):
        pool = store._pool
        free, block = [], pool._next[pool.end]
        while block != pool.end:
            free.append(block)
            block = pool._next[block]
        return free

    @invariant()
    def free_blocks_are_reused_from_the_ends_of_chains(self):
        """First those that can't be found; then each before the one that it follows in a sequence, which is there, too."""
        for store, slides in zip(self.store.parts, self.slides, strict=True):
            self.free_blocks_of(store, slides)

    @property
    def slides(self):
        """Of each store, whether a window passes its blocks."""
        return [self.window is not None] if len(self.store.parts) == 1 else [False, True]

    def free_blocks_of(self, store, slides):
        index, free = store._index, self.free_list(store)
        known = [index.get(block) is not None for block in free]
        assert known == sorted(known)
        place = {block: position for position, block in enumerate(free)}
        children = Counter()
        for digest, cached in index._by_digest.items():
            assert cached.digest == digest
            if cached.block_id == NULL_BLOCK:
                # It is known for what follows it, which only a window leaves without it.
                assert slides
                assert cached.num_children
            else:
                assert index.get(cached.block_id) is cached
            if cached.parent is not None:
                assert index._by_digest[cached.parent.digest] is cached.parent
                children[cached.parent.digest] += 1
                if not slides:
                    assert place.get(cached.block_id, -1) < place.get(cached.parent.block_id, len(free))
        assert all(cached.num_children == children[digest] for digest, cached in index._by_digest.items())
        assert {cached.block_id for cached in index._by_digest.values()} - {NULL_BLOCK} == set(index._by_id)

    @invariant()
    def a_block_that_can_be_found_holds_what_it_is_found_by(self):
        size = self.scheduler._cache.block_size
        for store in self.store.parts:
            for block, cached in store._index._by_id.items():
                tokens = struct.unpack(f"<{size}i", cached.contents)
                assert tuple(self.worker.memory[block, offset] for offset in range(size)) == tokens

    def swapped_parts(self):
        """Each store with what of its blocks requests have in swap space, and whose that is."""
        swapped = [(request, request.swapped) for request in self.scheduler._requests.values() if request.swapped is not None]
        parts = [swapped, [(request, each.window) for request, each in swapped]]
        return list(zip(self.store.parts, parts, strict=False))

    @invariant()
    def swap_space_is_held_by_swapped_requests(self):
        first = used = 0
        for store, swapped in self.swapped_parts():
            swap = store.swap
            held = Counter(slot for _, each in swapped for slot in each.slots)
            SchedulerMachine.shared_slots += sum(count > 1 for count in held.values())
            slots = range(first, first + swap.num_slots)
            assert {slot: swap.reference_count(slot) for slot in slots} == {slot: held[slot] for slot in slots}
            assert sorted([*swap._free, *held]) == list(slots)
            first, used = first + swap.num_slots, used + len(held)
        stats = self.scheduler.stats()
        requests = [request for request in self.scheduler._requests.values() if request.swapped is not None]
        assert (stats.swapped, stats.swap_blocks_used, stats.swap_blocks_total) == (len(requests), used, first)

    @invariant()
    def what_is_swapped_out_is_a_request_s_own_tokens(self):
        """As it will be once the copies are made that the next plan begins with."""
        size, worker = self.scheduler._cache.block_size, self.worker
        slots = {**worker.swap, **{slot: worker.contents(block) for block, slot in self.scheduler._swapping.outgoing}}
        for store, swapped in self.swapped_parts():
            for request, each in swapped:
                assert request.status is RequestStatus.WAITING
                places = range(each.num_dropped * size, each.num_tokens)
                read = [slots[each.slots[place // size - each.num_dropped]][place % size] for place in places]
                assert read == request.token_ids[each.num_dropped * size : each.num_tokens]
                SchedulerMachine.swapped_windows += each.num_dropped > 0
            swap = store.swap
            for block, slot in swap._slot_of.items():
                assert swap._block_of[slot] == block
                assert worker.contents(block) == slots[slot]
                assert len(slots[slot]) == size
            assert len(swap._block_of) == len(swap._slot_of)

    @invariant()
    def prompts_are_held_only_for_samples_to_come(self):
        groups = self.scheduler._groups
        members = {request for group in groups._by_id.values() for request in group.members}
        assert members == {request for request in self.scheduler._requests.values() if request.group_id is not None}
        for group in groups._by_id.values():
            running = {request for request in group.members if request.status is RequestStatus.RUNNING}
            assert len(running) == group.num_running
            assert group.to_come <= group.members - running
            assert group.leader is None or group.leader in running
            assert (group.held is not None) == (group in groups._holding)
            if group.held is not None:
                assert group.to_come
                first = self.worker.first_seen(len(group.prompt_token_ids) - 1)
                self.worker.assert_holds(group.held.block_ids, group.prompt_token_ids, first)
                first = self.worker.first_in_window(len(group.prompt_token_ids) - 1)
                if group.held.window_block_ids:
                    self.worker.assert_holds(group.held.window_block_ids, group.prompt_token_ids, first)

    @invariant()
    def only_running_requests_compute(self):
        running = {id(sequence.table.parts[0]._keys) for request in self.scheduler._running.values() for sequence in request.sequences}
        full, *others = self.store.parts
        assert {id(keys) for keys, _ in full.in_flight._by_digest.values()} <= running
        assert not any(len(store.in_flight) for store in others)

    @invariant()
    def less_than_a_block_a_request_is_unused(self):
        for request in self.scheduler._requests.values():
            if request.status is RequestStatus.RUNNING:
                for sequence in request.sequences:
                    for table, slides in zip(sequence.table.parts, self.slides, strict=True):
                        assert 0 <= table.num_slots - sequence.num_in_cache < table.block_size
                        if slides and request.search is None:
                            assert len(table.held) <= self.window.most_blocks(table.block_size)
                            SchedulerMachine.dropped += table.num_dropped > 0
            else:
                assert request.sequences == [request]
                assert (request.num_computed, request.table.block_ids) == (0, [])

    @invariant()
    def requests_are_known_once_and_in_order_of_arrival(self):
        scheduler = self.scheduler
        order = [request.request_id for request in (*scheduler._running.values(), *scheduler._waiting)]
        assert sorted(order) == sorted(self.live) == sorted(scheduler.request_ids)
        if scheduler._by_priority:
            ranks = [(request.priority, request.number) for request in scheduler._waiting]
            assert ranks == sorted(ranks)
        else:
            assert order == scheduler.request_ids
        stats = scheduler.stats()
        assert stats.running + stats.waiting == len(self.live)
        size = scheduler._cache.block_size
        slots = {
            (table.block_ids[position // size], position % size)
            for request in scheduler._running.values()
            for sequence in request.sequences
            for table in sequence.table.parts
            for position in range(table.num_dropped * size, sequence.num_in_cache)
        } | {
            (table.block_ids[position // size], position % size)
            for whole, num_tokens in scheduler._groups.held()
            for table in whole.parts
            for position in range(table.num_dropped * size, num_tokens)
        }
        assert stats.tokens_held == len(slots)

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        stats = self.scheduler.stats()
        SchedulerMachine.hits += stats.prefix_cache_hits
        SchedulerMachine.window_hits += 0 if self.window is None else stats.prefix_cache_hits
        SchedulerMachine.mixed_hits += stats.prefix_cache_hits if self.worker.num_window_blocks else 0
        SchedulerMachine.copies += stats.blocks_copied
        SchedulerMachine.evictions += stats.blocks_evicted
        SchedulerMachine.swapped_out += stats.blocks_swapped_out
        SchedulerMachine.swapped_in += stats.blocks_swapped_in
        assert (self.worker.moved_out, self.worker.moved_in) <= (stats.blocks_swapped_out, stats.blocks_swapped_in)
        for request_id in self.scheduler.request_ids:
            assert self.scheduler.abort(request_id)
        assert self.scheduler.stats().blocks_used == self.scheduler.stats().swap_blocks_used == 0
        if self.scheduler.has_work:
            self.worker.run(self.scheduler.schedule())
        assert not self.worker.held


def test_any_order_of_events_leaks_no_block_and_changes_no_token():
    machine = SchedulerMachine
    counts = (
        *("steps", "preemptions", "finished", "aborted_mid_step", "hits", "window_hits", "copies", "evictions", "dropped"),
        *(
            "swapped_out",
            "swapped_in",
            "shared_slots",
            "searches",
            "refused",
            "returns",
            "new_starts",
            "mixed",
            "mixed_hits",
            "swapped_windows",
        ),
    )
    for name in counts:
        setattr(machine, name, 0)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=400, stateful_step_count=40, deadline=None, database=None, suppress_health_check=list(HealthCheck)),
    )
    seen = {name: getattr(machine, name) for name in counts}
    print(seen)
    assert seen["steps"] > 10_000
    # Slots that samples share are rare.
    assert all(count > 0 for name, count in seen.items() if name != "shared_slots")
