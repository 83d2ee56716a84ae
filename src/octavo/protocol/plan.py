"""The one meeting point of control and execution: the scheduler writes a StepPlan, a worker answers with a StepResult.

Both are plain values. A request is described in full once, in `new`; afterwards only differences travel.
A worker appends each token it samples to its own copy of the request, so the plan never sends it back.
"""

from __future__ import annotations

import msgspec

from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import TokenLogprobs


class NewRequest(msgspec.Struct, array_like=True):
    """A request that the worker does not hold: first scheduled, or resumed after a preemption.

    `token_ids` are all tokens known so far: `num_prompt_tokens` of the prompt, then those sampled before a preemption. A `beam` does not
    grow by what is sampled, but by what a later plan says. The tokens after the prompt are a text of the `grammar`, if there is one, and
    hold none of the sequences of `bad_words`. With `pooling`, "mean" or "last", no token is sampled: its hidden states are pooled.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    eos_token_ids: list[int]
    num_computed_tokens: int = 0
    beam: bool = False
    grammar: str | None = None
    pooling: str | None = None
    bad_words: list[list[int]] = []


class Continuation(msgspec.Struct, array_like=True):
    """Beam `request_id`, new or known, goes on as beam `parent_id`, which may be itself: with its tokens and blocks, and `token_id` after
    them."""

    request_id: str
    parent_id: str
    token_id: int


class ScheduledRequest(msgspec.Struct, array_like=True):
    """A request's share of a step: its next `num_tokens` tokens.

    Before that its block table changes: `replaced_blocks` are (place, block id) of blocks that it has others for now, and `new_block_ids`
    are appended. An id of −1 is a block that the sequence has given back, since no further token sees it. Where the model's layers are of
    two kinds, these are blocks of the layers that see everything; `new_window_block_ids` are appended for those that see a window, and
    ~place is a place among those. Keys and values of the first `num_cached` of the tokens are in the cache already: they are computed for
    what is sampled from them, and not written. A token is sampled when the step computes the last token known of the request."""

    request_id: str
    num_tokens: int
    new_block_ids: list[int]
    num_cached: int = 0
    replaced_blocks: list[tuple[int, int]] = []
    new_window_block_ids: list[int] = []


class StepPlan(msgspec.Struct, array_like=True):
    """One step. `removed` (finished, aborted or preempted requests) are forgotten by the worker before anything else, or all requests where
    it `forgets_all`. Then all `continued` beams take the places of each other at once: each parent as it was before any of them.

    Before anything is computed blocks are copied, in this order: `swaps_out`, (block, slot), to a slot of swap space; `copies`, (source,
    destination, num_tokens), the first `num_tokens` slots of block `source` to block `destination`, whose other slots are cleared; and
    `swaps_in`, (slot, block), from swap space. So a block that the plan takes from one request may be given to another by any of them.
    """

    removed: list[str] = []
    new: list[NewRequest] = []
    scheduled: list[ScheduledRequest] = []
    copies: list[tuple[int, int, int]] = []
    swaps_out: list[tuple[int, int]] = []
    swaps_in: list[tuple[int, int]] = []
    continued: list[Continuation] = []
    forgets_all: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(s.num_tokens for s in self.scheduled)


class SampledToken(msgspec.Struct, array_like=True):
    """The token that a step gave one request; −1 where its prompt is pooled, and `pooled` the vector, in float32."""

    request_id: str
    token_id: int
    logprobs: TokenLogprobs | None = None
    pooled: bytes | None = None


class StepResult(msgspec.Struct, array_like=True):
    """What a worker says of one step. A request in `failed` (id → reason) got no token and can't go on; the others are unharmed. Where it
    is in `invalid`, too, its own fields are at fault. `swap_seconds` is how long swapping took, and `step_seconds` all the rest.
    `prompt_logprobs` are of the prompt tokens after those that the step computed, for requests that want them."""

    sampled: list[SampledToken] = []
    failed: dict[str, str] = {}
    swap_seconds: float = 0.0
    step_seconds: float = 0.0
    prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
    invalid: set[str] = set()
