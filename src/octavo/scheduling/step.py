"""A step while it is planned and run."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.kvcache.block_table import Grant
from octavo.protocol.plan import ScheduledRequest, StepPlan
from octavo.scheduling.request import Request

# Rows of logits that a step computes for logprobs of prompts: a row is as long as the vocabulary.
MOST_PROMPT_ROWS = 128


@dataclass(slots=True)
class Step:
    """The plan being made or run, and the requests in it: a result is matched to these, not to ids, which may have been reused."""

    plan: StepPlan
    budget: int
    shares: list[tuple[Request, int]]
    prompt_rows: int = MOST_PROMPT_ROWS

    def budget_of(self, request: Request) -> int:
        """Tokens that the step has left for the request."""
        return min(self.budget, self.prompt_rows) if request.tells_prompt else self.budget

    def give_beams(self, request: Request) -> None:
        """Tells the worker which beams the request's sequences go on from, before they compute anything."""
        if request.search is not None:
            self.plan.continued += request.search.take_pending()

    def give(self, request: Request, count: int, grant: Grant) -> None:
        """The request's next `count` tokens; `grant` is the room that was made for them."""
        new_block_ids, replaced, in_window = grant.new_block_ids, request.replaced + grant.replaced, grant.window_block_ids
        if not request.held_by_worker:
            self.plan.new.append(request.describe())
            request.held_by_worker = True
            new_block_ids, replaced, in_window = request.table.block_ids.copy(), [], request.table.window_block_ids.copy()
        cached = min(request.num_in_cache - request.num_computed, count)
        self.plan.scheduled.append(ScheduledRequest(request.request_id, count, new_block_ids, cached, replaced, in_window))
        self.plan.copies += grant.copies
        request.replaced = []
        self.shares.append((request, count))
        self.budget -= count
        self.prompt_rows -= request.rows_to_tell(count)
