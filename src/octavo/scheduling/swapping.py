"""What preempted requests leave in swap space, and the copies that the next plan makes for it."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.kvcache.block_table import BlockTable, Prefix
from octavo.kvcache.sequence_table import AnyStore
from octavo.kvcache.swap_space import Swapped
from octavo.protocol.plan import StepPlan, StepResult
from octavo.scheduling.preemption import PreemptionRule
from octavo.scheduling.request import Request


class Swapping:
    """Which requests have tokens in swap space: `num_requests` of them. `outgoing` are blocks, (block, slot), that the next plan copies."""

    def __init__(self, store: AnyStore, mode: str) -> None:
        self._space = store.swap
        self._rule = PreemptionRule(mode)
        self.outgoing: list[tuple[int, int]] = []
        self.num_requests = 0
        self.num_blocks_out = 0
        self.num_blocks_in = 0

    def start_over(self, store: AnyStore) -> None:
        """Another store, and nothing in its swap space."""
        self._space = store.swap
        self.outgoing = []
        self.num_requests = 0

    def put_out(self, request: Request) -> Swapped | None:
        """Takes slots for the tokens of a running request, if that is worth it and has room. A beam search is always computed again,
        and so is what has to be computed whole."""
        table = request.table
        if request.search is not None or request.computes_all or not self._space.num_slots or not isinstance(table, BlockTable):
            return None
        blocks, tokens = table.to_swap(request.num_in_cache)
        made = table.swap_out(request.num_in_cache) if self._rule.swaps(blocks, tokens) else None
        if made is None:
            return None
        swapped, copies = made
        self.outgoing += copies
        self.num_requests += 1
        return swapped

    def of(self, request: Request, prefix: Prefix) -> Swapped | None:
        """What the request has in swap space, if that is more than what it begins with."""
        swapped = request.swapped
        return swapped if swapped is not None and swapped.num_tokens > prefix.num_tokens else None

    def begin(self, request: Request, prefix: Prefix) -> list[tuple[int, int]]:
        """Begins an admitted request's table with `prefix` and what it has in swap space; returns the copies to make, (slot, block)."""
        swapped, table = self.of(request, prefix), request.table
        if swapped is None or not isinstance(table, BlockTable):
            self.drop(request)
            request.table.adopt(prefix)
            request.num_in_cache = prefix.num_tokens
            return []
        copies = table.swap_in(prefix, swapped)
        request.num_in_cache, request.swapped = swapped.num_tokens, None
        self.num_requests -= 1
        return copies

    def drop(self, request: Request) -> None:
        """The request does without what it has in swap space."""
        if request.swapped is not None:
            for slot in request.swapped.slots:
                self._space.release(slot)
            request.swapped = None
            self.num_requests -= 1

    def drop_all(self, requests: Iterable[Request]) -> None:
        """All of these do."""
        for request in requests:
            self.drop(request)

    def hand_over(self, plan: StepPlan) -> None:
        """Puts the copies to swap space into the plan, which has those from there."""
        plan.swaps_out, self.outgoing = self.outgoing, []
        self.num_blocks_out += len(plan.swaps_out)
        self.num_blocks_in += len(plan.swaps_in)

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Takes in how long a step took, for the rule."""
        if self._space.num_slots:
            self._rule.observe(plan, result)
