"""Counting the tokens of one HTTP request, over all its prompts and choices."""

from __future__ import annotations

from octavo.protocol.outputs import RequestOutput
from octavo.server.responses import PromptTokensDetails, Usage


class UsageCounter:
    """Adds up outputs as they come: prompt tokens once for each prompt, completion tokens of every choice."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._completion_tokens = 0

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Counts `output`, whose token ids are new ones, for the prompt at `prompt_index`."""
        self._prompts[prompt_index] = (len(output.prompt_token_ids), output.num_cached_tokens)
        self._completion_tokens += sum(len(choice.token_ids) for choice in output.outputs)

    def usage(self) -> Usage:
        """The counts so far."""
        prompt_tokens = sum(tokens for tokens, _ in self._prompts.values())
        cached = sum(cached for _, cached in self._prompts.values())
        total = prompt_tokens + self._completion_tokens
        return Usage(prompt_tokens, self._completion_tokens, total, PromptTokensDetails(cached))
