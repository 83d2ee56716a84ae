"""Which tokens of which requests the next step computes, and in which blocks their keys and values go.

There is no prefill or decode phase: a request has tokens known and tokens computed, and a step closes the gap as far as the token
budget allows (iteration-level scheduling: Yu et al., 2022, Orca; chunked prefill: Agrawal et al., 2024, Sarathi-Serve).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.config.engine import SchedulerConfig
from octavo.kvcache.block_table import Grant, Prefix
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.per_kind import fits, total
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.plan import SampledToken, StepPlan, StepResult
from octavo.protocol.wire import BlocksPage, EngineOutput, EngineRequest, EngineStats
from octavo.scheduling.beam_search import make_search
from octavo.scheduling.counters import Counters
from octavo.scheduling.limits import Limits
from octavo.scheduling.priority_queue import PriorityQueue
from octavo.scheduling.queue import WaitingQueue
from octavo.scheduling.request import Request, RequestStatus
from octavo.scheduling.room import blocks_needed, blocks_to_come
from octavo.scheduling.sample_groups import SampleGroups
from octavo.scheduling.step import Step
from octavo.scheduling.swapping import Swapping


class SchedulerError(RuntimeError):
    """The engine broke the scheduler's contract (plans and results out of turn), or its own accounting went wrong.

    No request can cause it.
    """


class Scheduler:
    """Turns requests into plans and results into outputs. `schedule` and `update` alternate; `add` and `abort` may come at any time.

    First come, first served, running requests and then waiting ones are always in order of arrival; by priority, what is said of the first
    and the last here goes by `Request.rank`. Cost of a step: O(running requests + blocks and tokens given, or found of the request that
    is next), whatever the size of the pool; O(log) of the queue by priority, nothing otherwise. `clock` gives seconds.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCacheManager,
        *,
        max_model_len: int,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._cache = cache
        self._store = cache.store
        policy, seats = config.scheduling_policy, config.max_num_seqs
        blocks, own = cache.num_blocks, cache.num_window_blocks
        self._limits = Limits(cache.block_size, blocks, max_model_len, vocab_size, policy, seats, cache.window, own)
        self._clock = clock
        self._by_priority = config.scheduling_policy == "priority"
        self._added = 0
        self._swapping = Swapping(cache.store, config.preemption_mode)
        self._counters = Counters()
        self._begin()

    def _begin(self) -> None:
        self._requests: dict[str, Request] = {}
        self._running: dict[str, Request] = {}
        self._waiting = PriorityQueue() if self._by_priority else WaitingQueue()
        self._groups = SampleGroups()
        self._removed: list[str] = []
        self._step: Step | None = None
        self._forgets_all = False

    @property
    def has_work(self) -> bool:
        """Whether another step would do something: requests run or wait, or the worker still holds some that are over."""
        return bool(self._requests or self._removed or self._forgets_all)

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that hold none: new or preempted, whether their tokens are in swap space or not."""
        return len(self._waiting)

    @property
    def request_ids(self) -> list[str]:
        """Every request that is not finished, in order of arrival."""
        return list(self._requests)

    def stats(self) -> EngineStats:
        """Gauges of this moment. `tokens_held` counts tokens whose keys and values are in the cache."""
        running = ((each.table, each.num_in_cache) for request in self._running.values() for each in request.sequences)
        tables = (*running, *self._groups.held())
        return self._counters.stats(len(self._running), len(self._waiting), tables, self._store, self._swapping, self._cache.block_size)

    def blocks(self, offset: int, limit: int) -> BlocksPage:
        """`limit` blocks from `offset` on, and the gauges of this moment. O(limit + running requests), whatever the size of the pool."""
        self._store.now = self._clock()
        return BlocksPage(self.stats(), self._store.num_cached_free, self._store.describe(offset, offset + limit))

    def add(self, request: EngineRequest) -> None:
        """Puts a request at the end of the queue. Raises InvalidRequestError if its id is in use or `Limits` refuses its prompt."""
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is already in use", param="request_id")
        self._limits.check_prompt(request.prompt_token_ids, 1 if request.pooling is None else 0)
        self._limits.check_priority(request.priority)
        self._added += 1
        if request.beam_search is None:
            added = Request(request, self._cache, self._limits.context, self._added)
        else:
            added = make_search(request, request.beam_search, self._cache, self._limits, self._added)
        self._groups.join(added, request.prompt_token_ids)
        self._requests[added.request_id] = added
        self._waiting.append(added)

    def abort(self, request_id: str) -> bool:
        """Forgets a request at once, whatever it is doing; False if there is none of that id (any more). No output follows.

        May come while a step runs. The worker may then still write to the request's blocks, yet they go back to the pool here: the
        next plan is the first that can hand them to another request, and it is made and run only after the running step has ended,
        so a new owner always writes after the old one.
        """
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._finish(request)
        return True

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forgets what blocks hold, so that every prompt is computed anew. False, with nothing forgotten, while any block is in use, or in
        swap space; with `reset_running_requests` running requests are preempted first, and compute all that they have once more, as those
        in swap space do."""
        if reset_running_requests:
            for request in reversed(self._ranked()):
                self._preempt(request, swap=False)
            self._swapping.drop_all(self._waiting)
            while self._groups.give_up_one():
                pass
        return self._cache.reset()

    def schedule(self) -> StepPlan:
        """Plans the next step; `update` must follow before another. If anything runs or waits, the plan computes at least one token.

        Raises SchedulerError if the last plan's result has not come.
        """
        if self._step is not None:
            raise SchedulerError("a step was planned before the result of the last one came")
        self._store.now = self._clock()
        step = Step(StepPlan(), self._config.max_num_batched_tokens, [])
        # After a preemption the victim is next in line, and what it gave up has just been taken: nobody can come in.
        if self._continue_running(step):
            self._admit_waiting(step)
        step.plan.removed, self._removed = self._removed, []
        step.plan.forgets_all, self._forgets_all = self._forgets_all, False
        self._swapping.hand_over(step.plan)
        self._counters.blocks_copied += len(step.plan.copies)
        self._step = step
        self._counters.step_tokens = self._config.max_num_batched_tokens - step.budget
        return step.plan

    def update(self, plan: StepPlan, result: StepResult) -> list[EngineOutput]:
        """Takes in what the worker answered to `plan`: one output for each request that got a token or ended, in the plan's order.

        Requests aborted since the plan was made get none. Raises SchedulerError if `plan` is not the one under way.
        """
        step = self._step
        if step is None or step.plan is not plan:
            raise SchedulerError("a result came for a plan that is not under way")
        self._step = None
        self._swapping.observe(plan, result)
        sampled = {token.request_id: token for token in result.sampled}
        outputs = []
        for request, count in step.shares:
            self._counters.prompt_tokens_computed += max(0, min(count, request.num_prompt_tokens - request.num_computed))
            if request.owner.status is not RequestStatus.RUNNING:
                continue
            request_id = request.request_id
            output = self._apply(request, count, sampled.get(request_id), result)
            if output is not None:
                outputs.append(output)
        return outputs

    def abandon(self) -> list[str]:
        """Ends the step under way without a result, because the worker broke off: nobody knows how far its requests came, so they are
        forgotten; returns their ids. What the plan told the worker to remove, it is told again. Raises SchedulerError if no step is under
        way."""
        step = self._step
        if step is None:
            raise SchedulerError("no step is under way")
        self._step = None
        self._removed = step.plan.removed + self._removed
        self._forgets_all = step.plan.forgets_all
        if step.plan.swaps_out or step.plan.swaps_in:
            # Nobody knows what is in swap space either.
            self._swapping.drop_all(self._waiting)
        lost = list(dict.fromkeys(request.owner for request, _ in step.shares if request.owner.status is not RequestStatus.FINISHED))
        for request in lost:
            self._finish(request)
        return [request.request_id for request in lost]

    def start_over(self) -> list[str]:
        """Forgets every request and all that the cache holds; returns the ids. For when a plan or a result broke off half-way, so that
        nobody knows which accounts were still made."""
        lost = self.request_ids
        self._store = self._cache.start_over()
        self._swapping.start_over(self._store)
        self._begin()
        self._forgets_all = True
        return lost

    def _continue_running(self, step: Step) -> bool:
        """Gives running requests their tokens in order of rank; False if blocks ran out and some had to be preempted."""
        preemptions = self._counters.preemptions
        for request in self._ranked():
            # A preempted request is followed by preempted ones only.
            if step.budget == 0 or request.status is not RequestStatus.RUNNING:
                break
            shares = request.shares(step.budget_of(request))
            grants = self._grow(request, shares)
            if grants is None:
                break
            step.give_beams(request)
            for (sequence, count), grant in zip(shares, grants, strict=True):
                step.give(sequence, count, grant)
        return self._counters.preemptions == preemptions

    def _ranked(self) -> list[Request]:
        """Running requests, the most urgent first. First come, first served, that is the order in which they were admitted."""
        running = list(self._running.values())
        return sorted(running, key=lambda request: request.rank) if self._by_priority else running

    def _grow(self, request: Request, shares: list[tuple[Request, int]]) -> list[Grant] | None:
        """Room for the next tokens of a running request's sequences, preempting the one of the last rank while there is too little; None if
        that came to be the request itself. A victim never has a share in the step being planned: shares go in the order of rank."""
        grants = []
        for sequence, count in shares:
            num_tokens = sequence.num_computed + count
            while (grant := sequence.table.prepare(sequence.num_in_cache, num_tokens)) is None:
                alone = len(self._running) == 1
                if self._groups.give_up_one(idle=not alone):
                    continue
                victim = self._ranked()[-1]
                if alone:
                    raise SchedulerError(f"request {request.request_id!r} runs alone and the whole pool can't hold its {num_tokens} tokens")
                self._preempt(victim)
                if victim is request:
                    return None
            grants.append(grant)
        return grants

    def _admit_waiting(self, step: Step) -> None:
        """Admits from the head of the queue while tokens, seats and blocks last. The head is never skipped, so none starves.

        Admission takes blocks for the first chunk only, but asks for more to be free: the blocks of every token the request knows and
        the cache does not hold in use, beyond those that running requests still need for what they know, and one for each running request
        that may grow into another. Otherwise a long prompt would come in on its first chunk, or a newcomer take the last block, only to be
        preempted a few steps later with all its work lost. With nothing running no more is asked for than the request's own tokens, which
        `Limits` has seen to fit.
        """
        if not self._waiting or step.budget == 0:
            return
        seats = self._config.max_num_seqs - sum(request.seats for request in self._running.values())
        if seats == 0:
            return
        now = self._clock()
        reserved = total(map(blocks_to_come, self._running.values()))
        while self._waiting and step.budget > 0:
            request = self._waiting.head()
            if request.seats > seats or step.budget_of(request) == 0:
                return
            prefix = self._find(request)
            if prefix is None:
                return
            needed = blocks_needed(request, prefix, self._swapping.of(request, prefix))
            if not fits(needed + reserved, self._store.num_free):
                # Blocks that are held for samples to come, of which none runs, are in the way of who comes before them.
                others_gone = self._groups.give_up_one(keep=self._groups.of(request))
                if others_gone or (not self._running and self._groups.give_up_one()):
                    continue
                return
            self._admit(step, request, prefix, now)
            seats -= request.seats
            reserved = reserved + blocks_to_come(request)

    def _find(self, request: Request) -> Prefix | None:
        """What of a waiting request is in the cache; None while a running one computes the next of it, which then needn't be done twice.

        Such a wait ends with the other's prompt, or with its leaving: there are only so many running requests, and none comes in before
        the head of the queue.
        """
        if request.tells_prompt or request.computes_all:
            return request.table.find(request.num_told)
        prefix = request.table.find(request.num_known)
        swapped = self._swapping.of(request, prefix)
        held = prefix.num_tokens if swapped is None else swapped.num_tokens
        group = self._groups.of(request)
        if group is not None and held < group.num_prompt_tokens and (group.leader is not None or group.held is not None):
            return None if group.prefix is None else request.table.needed(group.prefix, request.num_known)
        return None if swapped is None and request.table.is_in_flight(len(prefix.block_ids), request.num_known) else prefix

    def _admit(self, step: Step, request: Request, prefix: Prefix, now: float) -> None:
        """Moves a waiting request to the running ones, with its first share of tokens."""
        step.plan.swaps_in += self._swapping.begin(request, prefix)
        # Something must be computed to sample from, if only the last token once more.
        request.num_computed = min(request.num_in_cache, request.num_known - 1)
        count = request.next_count(step.budget_of(request))
        grant = request.table.prepare(request.num_in_cache, request.num_computed + count)
        if grant is None:
            raise SchedulerError(f"request {request.request_id!r} was admitted without the blocks it needs")
        request.table.announce(request.num_known)
        self._waiting.take(request)
        self._running[request.request_id] = request
        request.status = RequestStatus.RUNNING
        self._groups.admitted(request)
        if request.first_scheduled_time is None:
            request.first_scheduled_time = now
            request.num_cached_tokens = request.num_computed
            self._counters.prefix_cache_queries += 0 if request.computes_all else request.num_prompt_tokens
            self._counters.prefix_cache_hits += request.num_cached_tokens
        step.give(request, count, grant)

    def _preempt(self, request: Request, *, swap: bool = True) -> None:
        """Back to the front of the queue without its blocks; when it returns it computes again what can't be found in the cache then, nor
        in swap space, which it is left in if `swap` and the rule say so and there is room."""
        swapped = self._swapping.put_out(request) if swap else None
        self._leave(request)
        request.swapped = swapped
        request.status = RequestStatus.WAITING
        if request.search is not None:
            request.search.park()
        request.num_computed = request.num_in_cache = 0
        request.num_preemptions += 1
        self._counters.preemptions += 1
        self._waiting.push_front(request)

    def _finish(self, request: Request) -> None:
        """The request is over: its blocks are free, its id may be used again."""
        self._leave(request)
        self._groups.over(request)
        request.status = RequestStatus.FINISHED
        del self._requests[request.request_id]

    def _leave(self, request: Request) -> None:
        """Out of the running or waiting requests, and out of the worker's with the next plan."""
        if request.status is RequestStatus.RUNNING:
            del self._running[request.request_id]
            self._groups.stopped(request)
        else:
            self._waiting.remove(request)
        self._swapping.drop(request)
        self._removed += request.give_back()

    def _apply(self, request: Request, count: int, sampled: SampledToken | None, result: StepResult) -> EngineOutput | None:
        """One sequence's part of a result; None if it has computed a part of its prompt, or is a beam, and there is nothing to say."""
        told = request.tell(count, result.prompt_logprobs.get(request.request_id, []))
        failure = result.failed.get(request.request_id, None if told is not None else "the worker gave other prompt logprobs")
        request.num_computed += count
        request.num_in_cache = max(request.num_in_cache, request.num_computed)
        due = request.num_computed == request.num_known
        if failure is None and due != (sampled is not None):
            # It would wait for ever, or go astray; the others are unharmed.
            failure = "the worker gave no token" if due else "the worker gave a token out of turn"
        if failure is None and sampled is not None and sampled.logprobs is None and request.owner.search is not None:
            failure = "the worker gave no logprobs"
        if failure is None:
            # Only now, when the step that computed them has ended well, may others find these blocks.
            request.replaced += request.table.commit(request.num_in_cache)
            self._groups.computed(request)
            request.replaced += request.table.slide(request.num_computed)
        owner = request.owner
        output = owner.answer(told)
        if failure is not None:
            output.finish_reason, output.error, output.invalid = "error", failure, request.request_id in result.invalid
        elif sampled is None:
            return output if told else None
        elif owner.search is not None and sampled.logprobs is not None:
            output.hypotheses = owner.search.take(request, sampled.logprobs)
            if output.hypotheses is None:
                return None
            output.finish_reason = output.hypotheses[0].finish_reason
        else:
            request.take(sampled, output)
        if output.finish_reason is not None:
            self._finish(owner)
        return output
