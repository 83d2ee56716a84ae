"""What `LLM.generate` returns; the shapes are vLLM's."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Logprob:
    """One candidate token at one position. `rank` is 1 for the most likely token; `decoded_token` is its text, or OpenAI's
    `bytes:\\xe2\\x80` for one that is no whole character."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# One position: token id → Logprob. The token that is there comes first, then the most likely ones in order.
PositionLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt.

    `finish_reason` is None while it runs, then "stop" (an end token, a stop string or a stop token id), "length", or "abort".
    `stop_reason` is the stop string or stop token id that ended it, None for the model's own end token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Whether no token will be added."""
        return self.finish_reason is not None


@dataclass(slots=True)
class BeamSearchSequence:
    """One sequence that a beam search found.

    `tokens` are the prompt's and the generated ones, the end token last if there is one, and `text` is theirs; `logprobs` has one entry for
    each generated token, and `cum_logprob` is their sum. `finish_reason` is "stop" (an end token) or "length".
    """

    tokens: list[int]
    logprobs: list[PositionLogprobs]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """What a beam search found for one prompt: `beam_width` sequences, the best first."""

    sequences: list[BeamSearchSequence]


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request in seconds of `time.monotonic()`; None for what has not happened."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0


@dataclass(slots=True)
class RequestOutput:
    """Everything known of one request: its prompt and, for each of its `n` samples, a CompletionOutput.

    `num_cached_tokens` of the prompt were in the prefix cache and not computed again. `prompt_logprobs`, where they were asked for, have
    one entry for each token of the prompt: None for the first, which follows nothing.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: list[PositionLogprobs | None] | None = None


@dataclass(slots=True)
class PoolingOutput:
    """What a prompt's hidden states came to: `data`, as long as the model is wide."""

    data: list[float]


@dataclass(slots=True)
class EmbeddingOutput:
    """The same, as an embedding."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers it has."""
        return len(self.embedding)


@dataclass(slots=True)
class PoolingRequestOutput:
    """The vector of one prompt, `num_cached_tokens` of which were in the prefix cache."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """The embedding of one prompt, `num_cached_tokens` of which were in the prefix cache."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0
