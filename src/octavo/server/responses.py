"""What clients get: OpenAI's response shapes. Whole replies keep their nulls; stream chunks leave out what is UNSET."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class PromptTokensDetails(Struct):
    """Of the prompt's tokens, how many were found in the prefix cache."""

    cached_tokens: int = 0


class CompletionTokensDetails(Struct):
    """Of the tokens of the answers, how many are what the model thought before."""

    reasoning_tokens: int = 0


class Usage(Struct):
    """Token counts of a request. A prompt counts once however many choices it has. `completion_tokens_details` is there where a server
    tells thinking from answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class CompletionLogprobs(Struct):
    """One entry a token. `text_offset` counts characters from the start of the choice's text; `top_logprobs` hold the sampled token too.
    The first token of a prompt that is echoed has no logprob."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(Struct):
    """One candidate at a position of the prompt. `rank` is 1 for the most likely token."""

    logprob: float
    rank: int | None
    decoded_token: str | None


# Token id → PromptLogprob at each position; null at the first, which follows nothing.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionChoice(Struct):
    """One choice of a completion, or a piece of one.

    `stop_reason` is the stop string or stop token id that ended it, null for the model's own end token. The token ids are there with
    `return_token_ids`, those of the prompt in a stream's first chunk.
    """

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class GeneratedText(Struct):
    """The prompt with what follows it, once for each choice."""

    text: list[str]


class Completion(Struct, kw_only=True):
    """A completion, or a chunk of a streamed one."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None


class TopLogprob(Struct):
    """One candidate at a position. `bytes` are the token's own, which need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct):
    """The sampled token at a position, and the most likely ones in falling order."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """Logprobs of a chat choice, one entry a token."""

    content: list[ChatLogprob]
    refusal: None = None


class CalledFunction(Struct):
    """The function of a tool call. `arguments` is JSON text, in a chunk a piece of it; `name` comes with the first."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCall(Struct, kw_only=True):
    """A call of a tool. `index` is its place among the calls of a message, in chunks only, of which the first has `id` and `type`."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: CalledFunction


class ChatMessage(Struct):
    """What the model said, null where it only thought or called tools; `reasoning` is what it thought before."""

    role: str
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Struct):
    """One choice of a chat completion."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    """A chat completion."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Delta(Struct):
    """What a chunk adds to a message: the role first, then reasoning, content and tool calls, and nothing in the last."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChunkChoice(Struct):
    """A piece of one chat choice."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    """One event of a streamed chat completion. The first has the prompt's token ids, with `return_token_ids`."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET


class ModelCard(Struct, kw_only=True):
    """One served model. `root` is where it was loaded from, `max_model_len` its context in tokens."""

    id: str
    object: str = "model"
    created: int
    root: str
    max_model_len: int
    owned_by: str = "octavo"
    parent: None = None


class ModelList(Struct, kw_only=True):
    """The served models."""

    object: str = "list"
    data: list[ModelCard]


class Tokens(Struct):
    """The answer of /tokenize. `token_strs` are the tokens as text, when asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Prompt(Struct):
    """The answer of /detokenize."""

    prompt: str


class TokenizerInfo(Struct):
    """The answer of /tokenizer_info: the tokens that begin and end texts, as they are written, null for one that there isn't."""

    bos_token: str | None
    eos_token: str | None
    chat_template: str | None
    model_max_length: int


class Version(Struct):
    """The answer of /version."""

    version: str


class PrefixCacheReset(Struct, omit_defaults=True):
    """The answer of /reset_prefix_cache: whether the cache was emptied, and what prevented it."""

    success: bool
    reason: str | None = None


class PrefixCacheSaved(Struct):
    """The answer of /save_prefix_cache: how many blocks of the KV cache were saved."""

    num_blocks: int


class KVBlock(Struct, kw_only=True):
    """One block of the KV cache. `state` is "used" while requests hold it, "cached" if nobody does and it can still be found by what it
    holds, else "free". `owners` are the requests that hold it, as ID:INDEX for sample INDEX, or ID for samples that have not begun.
    `hash` is the beginning of the digest that it is found by. `idle_seconds` is the time since somebody last held it, null if nobody has
    since the start. `layers` are those whose keys and values it holds: "all", or, where some layers of the model see a window and others
    everything, "window" or "full"."""

    block_id: int
    layers: Literal["all", "full", "window"]
    state: Literal["used", "cached", "free"]
    owners: list[str]
    reference_count: int
    hash: str | None
    idle_seconds: float | None


class KVSummary(Struct, kw_only=True):
    """The whole KV cache. `used`, `cached` and `free` blocks are all of them; `findable` are all that can be found, used ones included. Of
    the slots of used blocks, `tokens` hold one and `unused_slots` do not. `utilization` is the share of blocks that are used, `waste`
    that of their slots which hold no token."""

    num_blocks: int
    block_size: int
    used: int
    cached: int
    free: int
    findable: int
    tokens: int
    unused_slots: int
    utilization: float
    waste: float
    requests_running: int
    requests_waiting: int


class KVBlocks(Struct, kw_only=True):
    """The answer of /kv/blocks: the cache at one moment, and `limit` of its blocks from `offset` on. `next_offset` is null at the end."""

    summary: KVSummary
    blocks: list[KVBlock]
    offset: int
    limit: int
    next_offset: int | None


class Health(Struct):
    """The answer of /health while the engine lives: an empty object."""


class EmbeddingData(Struct):
    """The vector of one input: numbers, or base64 of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(Struct):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """Vectors, in the order of the inputs."""

    id: str
    created: int
    data: list[EmbeddingData]
    model: str
    usage: EmbeddingUsage
    object: str = "list"
