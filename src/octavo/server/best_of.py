"""Which of the completions that were computed are returned."""

from __future__ import annotations

from octavo.protocol.outputs import CompletionOutput, RequestOutput


def best(output: RequestOutput, count: int) -> list[CompletionOutput]:
    """The `count` outputs to return, in the order of their index, which is their place from then on.

    If there are more, those whose tokens have the highest mean logprob, the best first, as OpenAI's `best_of` has it; of equal ones the
    lower index. Their logprobs must have been computed.
    """
    ranked = by_index(output)
    if len(ranked) > count:
        ranked = sorted(ranked, key=lambda choice: -_mean_logprob(choice))[:count]
    for index, choice in enumerate(ranked):
        choice.index = index
    return ranked


def by_index(output: RequestOutput) -> list[CompletionOutput]:
    """All outputs, in their order."""
    return sorted(output.outputs, key=lambda choice: choice.index)


def _mean_logprob(choice: CompletionOutput) -> float:
    if choice.cumulative_logprob is None:
        raise ValueError("a completion without logprobs can't be ranked")
    return choice.cumulative_logprob / max(1, len(choice.token_ids))
