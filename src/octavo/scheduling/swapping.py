"""What preempted requests leave in swap space, and the copies that the next plan makes for it."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.kvcache.block_table import Prefix
from octavo.kvcache.sequence_table import AnyStore
from octavo.kvcache.swap_space import Swapped
from octavo.protocol.plan import StepPlan, StepResult
from octavo.scheduling.preemption import PreemptionRule
from octavo.scheduling.request import Request


class Swapping:
    """Which requests have tokens in swap space: `num_requests` of them. `outgoing` are blocks, (block, slot), that the next plan copies. Of
    the blocks that were copied so many were of layers that see a window, where these have blocks of their own."""

    def __init__(self, store: AnyStore, mode: str) -> None:
        self._store = store
        self._rule = PreemptionRule(mode)
        self.outgoing: list[tuple[int, int]] = []
        self.num_requests = 0
        self.num_blocks_out = self.num_window_blocks_out = 0
        self.num_blocks_in = self.num_window_blocks_in = 0

    def start_over(self, store: AnyStore) -> None:
        """Another store, and nothing in its swap space."""
        self._store = store
        self.outgoing = []
        self.num_requests = 0

    def put_out(self, request: Request) -> Swapped | None:
        """Takes slots for the tokens of a running request, if that is worth it and has room. A beam search is always computed again,
        and so is what has to be computed whole."""
        if request.search is not None or request.computes_all or not self._store.num_swap_slots:
            return None
        blocks, tokens = request.table.to_swap(request.num_in_cache)
        made = request.table.swap_out(request.num_in_cache) if self._rule.swaps(blocks, tokens) else None
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
        swapped = self.of(request, prefix)
        if swapped is None:
            self.drop(request)
            request.table.adopt(prefix)
            request.num_in_cache = prefix.num_tokens
            return []
        copies = request.table.swap_in(prefix, swapped)
        request.num_in_cache, request.swapped = swapped.num_tokens, None
        self.num_requests -= 1
        return copies

    def drop(self, request: Request) -> None:
        """The request does without what it has in swap space."""
        if request.swapped is not None:
            request.table.drop_swapped(request.swapped)
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
        if plan.swaps_out or plan.swaps_in:
            _, *others = self._store.parts
            for store in others:
                self.num_window_blocks_out += sum(block_id >= store.first for block_id, _ in plan.swaps_out)
                self.num_window_blocks_in += sum(block_id >= store.first for _, block_id in plan.swaps_in)

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Takes in how long a step took, for the rule."""
        if self._store.num_swap_slots:
            self._rule.observe(plan, result)
