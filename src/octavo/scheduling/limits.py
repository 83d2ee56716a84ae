"""What a request must satisfy before it may wait: whatever passes can be served to its end by an engine that has nothing else to do."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config.values import shown
from octavo.kvcache.window import Window, longest_held
from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.errors import InvalidRequestError
from octavo.scheduling.room import beam_blocks


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes of the engine: tokens a block, blocks in the pool, tokens in the model's context, tokens in the vocabulary; the policy by which
    it schedules; sequences in a step; and the window that bounds how many blocks a request holds, but for beam searches. With
    `num_window_blocks` there are so many more for the layers that see the window, and these alone are bounded by it."""

    block_size: int
    num_blocks: int
    max_model_len: int
    vocab_size: int
    scheduling_policy: str = "fcfs"
    max_num_seqs: int = 64
    window: Window | None = None
    num_window_blocks: int = 0

    @property
    def pool_tokens(self) -> int | None:
        """Tokens of a sequence that the whole pool holds; None where that is any number, since it holds the window and a token."""
        return longest_held(self.block_size, self.num_blocks, self.window, self.num_window_blocks)

    @property
    def context(self) -> int:
        """The most tokens, prompt and output together, that one request can reach.

        A pool smaller than the model's context bounds it as well: a request that outgrew the pool could never be finished, alone or
        after any preemption. It ends with "length", at the same token whatever runs beside it. With a window it outgrows none that holds
        the window and a token.
        """
        pool = self.pool_tokens
        return self.max_model_len if pool is None else min(self.max_model_len, pool)

    def check_priority(self, priority: int) -> None:
        """Raises InvalidRequestError (param "priority") for a priority that would be ignored, or is beyond 64 bits."""
        if priority and self.scheduling_policy != "priority":
            raise InvalidRequestError(
                f"priority {shown(priority)} has no meaning here: the engine serves first come, first served; start it with the scheduling "
                'policy "priority"',
                param="priority",
            )
        if not -(2**63) <= priority < 2**63:
            raise InvalidRequestError(f"priority must fit into 64 bits, which {shown(priority)} does not", param="priority")

    def check_beam_search(self, num_prompt_tokens: int, params: BeamSearchParams, num_end_tokens: int) -> None:
        """Raises InvalidRequestError (param "beam_width") for a search that could not be finished even alone: more beams than sequences in
        a step, than tokens to go on with, or than the pool can hold when all are as long as they may get and share only the prompt. Beams
        keep what a window has passed, so that of two kinds of blocks they need as many of each."""
        width = params.beam_width
        if width > self.max_num_seqs:
            raise InvalidRequestError(
                f"beam_width {width} needs as many sequences at once, but the engine runs at most {self.max_num_seqs} (max_num_seqs)",
                param="beam_width",
            )
        if width + num_end_tokens > self.vocab_size:
            raise InvalidRequestError(
                f"beam_width {width} needs as many tokens to go on with, but the vocabulary has {self.vocab_size}, "
                f"{num_end_tokens} of which end the text",
                param="beam_width",
            )
        most = min(params.max_tokens, self.max_model_len - num_prompt_tokens)
        needed = beam_blocks(num_prompt_tokens, num_prompt_tokens + most, width, self.block_size)
        if needed > min(self.num_blocks, self.num_window_blocks or self.num_blocks):
            raise InvalidRequestError(
                f"beam_width {width} with a prompt of {num_prompt_tokens} tokens and up to {most} of output can need {needed} blocks of "
                f"KV cache, {self._too_few_for(needed)}",
                param="beam_width",
            )

    def _too_few_for(self, needed: int) -> str:
        """The end of the sentence that says which blocks are too few for a beam search, and what would help."""
        lower, own = "; lower beam_width or max_tokens", self.num_window_blocks
        if not own:
            return f"but the whole cache has {self.num_blocks}{lower}"
        if needed > self.num_blocks:
            return f"but the whole cache has {self.num_blocks} for the layers that see everything{lower}, or give the cache more memory"
        size = "" if self.window is None else f" of {self.window.size} tokens"
        more = "start the engine with a higher max_num_seqs, with prefix caching on, or with more memory for the cache"
        return f"also for the layers that see a window{size}, but the whole cache has {own} for these{lower}, or {more}"

    def check_length(self, count: int, output: int = 1, *, or_more: bool = False) -> None:
        """Raises InvalidRequestError (param "prompt") for a prompt of `count` tokens, `or_more`, that leaves no room for `output` generated
        tokens, 1 or 0, in the model's context."""
        if count > self.max_model_len - output:
            known = f"{count} tokens{' or more' if or_more else ''}"
            behind = ", so that one token can be generated" if output else ""
            raise InvalidRequestError(
                f"the prompt has {known}, but the model's context of {self.max_model_len} tokens takes a prompt of at most "
                f"{self.max_model_len - output}{behind}",
                param="prompt",
                code="context_length_exceeded",
            )

    def check_prompt(self, token_ids: list[int], output: int = 1) -> None:
        """Raises InvalidRequestError (param "prompt") for a prompt that is empty, holds a token id outside the vocabulary, or leaves no
        room for `output` generated tokens, 1 or 0, in the model's context or in the pool. O(tokens)."""
        count = len(token_ids)
        if count == 0:
            raise InvalidRequestError("the prompt is empty; it needs at least one token", param="prompt")
        self.check_length(count, output)
        if count + output > self.context:
            what = "the prompt and one generated token need" if output else "the prompt needs"
            raise InvalidRequestError(
                f"{what} {count + output} tokens of KV cache, but the whole cache holds {self.pool_tokens}",
                param="prompt",
            )
        if min(token_ids) < 0 or max(token_ids) >= self.vocab_size:
            bad = next(token for token in token_ids if not 0 <= token < self.vocab_size)
            raise InvalidRequestError(
                f"token id {bad} is outside the vocabulary of {self.vocab_size} tokens (0 to {self.vocab_size - 1})", param="prompt"
            )
