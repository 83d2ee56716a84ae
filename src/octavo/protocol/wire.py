"""What passes between the front end (text) and the engine (token ids), in process or over a socket with msgpack."""

from __future__ import annotations

import msgspec

from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.sampling import SamplingParams


class EngineRequest(msgspec.Struct, omit_defaults=True, array_like=True):
    """One sample to generate. `n` samples of one prompt are `n` EngineRequests of one `group_id`, which share the work on the prompt.

    `eos_token_ids` are the model's own end tokens; they end the request unless `sampling.ignore_eos`. Blocks of a request with a
    `cache_salt` are found by requests with the same one only. The lower its `priority`, the earlier it is served, under the scheduling
    policy "priority".

    With `beam_search` it is not a sample but a search: `sampling` then says only how many tokens there may be, whether end tokens count and
    how many logprobs to report, and one EngineOutput with `hypotheses` comes, at the end. A "#" in a `request_id` is the scheduler's own.
    The text is one of the `grammar`, if there is one, which `octavo.structured_output.grammar` wrote; the engine has a Vocabulary by then.
    `bad_words` are `sampling.bad_words` as tokens, each in every way in which it begins.

    With `pooling` nothing is generated: the hidden states of the prompt's tokens, after the model's last norm, are pooled to one vector,
    their mean ("mean") or the last token's ("last"), and the one EngineOutput has that as its `embedding`, in float32.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    eos_token_ids: list[int] = []
    arrival_time: float = 0.0
    group_id: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    beam_search: BeamSearchParams | None = None
    grammar: str | None = None
    pooling: str | None = None
    bad_words: list[list[int]] = []


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Logprobs at one position: its token's, the token's rank (1 is the most likely), and the `k` most likely tokens in falling order."""

    logprob: float
    rank: int
    top_ids: list[int] = []
    top_logprobs: list[float] = []


class BeamHypothesis(msgspec.Struct, array_like=True):
    """A sequence that a beam search found: its tokens, with the end token if it has one, their summed logprobs, and "stop" or "length"."""

    token_ids: list[int]
    cumulative_logprob: float
    finish_reason: str
    logprobs: list[TokenLogprobs] | None = None


class EngineOutput(msgspec.Struct, omit_defaults=True, array_like=True):
    """What one step gave one request: new tokens, and why it ended if it did.

    `finish_reason` is None, "stop", "length", "abort" or "error"; `stop_reason` the stop token id of the request's own list.
    `num_cached_tokens` of its prompt were found computed when it was first scheduled. `hypotheses` are a beam search's, the best first.
    `prompt_logprobs` are of the prompt's next tokens, of which the second is the first that has any. An `error` is the request's own fault
    where it is `invalid`.
    """

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None
    first_scheduled_time: float | None = None
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    hypotheses: list[BeamHypothesis] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    embedding: bytes | None = None
    invalid: bool = False


class EngineStats(msgspec.Struct, omit_defaults=True, array_like=True):
    """A measurement after one step, or of sums since the engine's start.

    `blocks_used` are held by requests and `blocks_cached` can be found by what they hold, whether held or not; `tokens_held` are the slots
    of blocks in use that hold a token. These, like `running`, `waiting` and `step_tokens`, are of this moment. Sums: `preemptions`;
    `blocks_evicted`, found no more because their space was needed; `blocks_copied`, because a request wrote to a shared one;
    `prefix_cache_queries`, prompt tokens looked up, and `prefix_cache_hits`, those of them that needn't be computed, both when a request is
    first scheduled; `prompt_tokens_computed`, prompt tokens that steps computed, again after a preemption too; `blocks_swapped_out` and
    `blocks_swapped_in`, copied to swap space and from there, and of these those of layers that see a window, where they have their own.
    `swapped` of the `waiting` have their tokens in `swap_blocks_used` of the `swap_blocks_total` blocks of swap space."""

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    tokens_held: int = 0
    preemptions: int = 0
    step_tokens: int = 0
    blocks_cached: int = 0
    blocks_evicted: int = 0
    blocks_copied: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens_computed: int = 0
    swapped: int = 0
    swap_blocks_total: int = 0
    swap_blocks_used: int = 0
    blocks_swapped_out: int = 0
    blocks_swapped_in: int = 0
    window_blocks_swapped_out: int = 0
    window_blocks_swapped_in: int = 0


class BlockState(msgspec.Struct, array_like=True):
    """One block of the KV cache: who holds it, by request id or, for samples to come, group id; how many references that are; the digest,
    in hexadecimal, by which it can be found; and for how many seconds nobody has held it, None if nobody has since the start."""

    block_id: int
    owners: list[str]
    reference_count: int
    digest: str | None
    idle_seconds: float | None


class BlocksPage(msgspec.Struct, array_like=True):
    """A part of the pool at one moment. `cached_free` blocks can be found and nobody holds them."""

    stats: EngineStats
    cached_free: int
    blocks: list[BlockState]


class EngineInfo(msgspec.Struct, omit_defaults=True):
    """What a ready engine says of itself. `sliding_window` is how many tokens of a sequence the KV cache keeps, None for all; with
    `num_window_blocks` it is so only of layers that have so many blocks of their own, besides the `num_blocks` of the others. Blocks take
    `kv_bytes_per_block`, those `kv_bytes_per_window_block`. With `saves_prefix_cache` it has a folder to save its prefix cache to. It
    computes at most `max_num_seqs` sequences at once."""

    model: str
    architecture: str
    backend: str
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    weights_bytes: int = 0
    kv_cache_bytes: int = 0
    version: str = ""
    enable_prefix_caching: bool = False
    kv_cache_dtype: str = ""
    sliding_window: int | None = None
    saves_prefix_cache: bool = False
    hidden_size: int = 0
    max_num_seqs: int = 0
    num_window_blocks: int = 0
    kv_bytes_per_block: int = 0
    kv_bytes_per_window_block: int = 0
