"""Whether a request that gives up its blocks leaves their contents in swap space, or computes them again."""

from __future__ import annotations

from octavo.protocol.plan import StepPlan, StepResult

# What a step of so many tokens, some of them in one sequence, takes a token is what computing tokens again would. Smaller ones wait for the
# weights.
LEAST_TOKENS = 32
# Of a new measurement in the running mean.
SHARE = 0.2


class PreemptionRule:
    """By `mode` "swap" always, "recompute" never; by "auto" where copying blocks out and in again is expected to take less time than
    computing their tokens did lately. Until both have been measured that is taken for granted: a copy reads what computing would write.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._seconds_a_token: float | None = None
        self._seconds_a_block: float | None = None

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Takes in how long a step took."""
        copied = len(plan.swaps_out) + len(plan.swaps_in)
        if copied:
            self._seconds_a_block = _mean(self._seconds_a_block, result.swap_seconds / copied)
        if plan.num_tokens >= LEAST_TOKENS and any(share.num_tokens > 1 for share in plan.scheduled):
            self._seconds_a_token = _mean(self._seconds_a_token, result.step_seconds / plan.num_tokens)

    def swaps(self, blocks: int, tokens: int) -> bool:
        """Whether to copy: that would be `blocks` blocks out and in again, or else `tokens` tokens are to be computed."""
        if self._mode != "auto":
            return self._mode == "swap"
        if self._seconds_a_block is None or self._seconds_a_token is None:
            return True
        return 2 * blocks * self._seconds_a_block < tokens * self._seconds_a_token


def _mean(known: float | None, measured: float) -> float:
    return measured if known is None else known + SHARE * (measured - known)
