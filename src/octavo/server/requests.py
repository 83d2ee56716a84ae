"""What clients send: the request bodies, with the limits of every field. Absent and null mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, field

from octavo.api.prompts import LONGEST_SALT
from octavo.config.server import LONGEST_REQUEST
from octavo.protocol.beam_search import MAX_LENGTH_PENALTY
from octavo.protocol.sampling import MAX_BAD_WORD_CHARS, MAX_BAD_WORDS
from octavo.server.fields import CHAT_OFF, COMPLETION_OFF, GENERATE_OFF, TOKENIZE_OFF, OffValues
from octavo.server.item_schemas import MESSAGE_SCHEMA
from octavo.server.tool_fields import ToolChoice, Tools

INT32_MAX = 2**31 - 1
# One unit inside the 64-bit range: what passes to the engine is msgpack, and floats near the edge must not round past it.
SEED_MAX = 2**63 - 1
MAX_STOP_STRINGS = 64
MAX_N = 128
MAX_BIASES = 1024

# Printable ASCII: the id of a request ends up in headers, logs and bodies.
ID_PATTERN, LONGEST_ID = r"^[!-~]+(?![\s\S])", 128

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1},
    ]
}

NonEmpty = Annotated[str, Meta(min_length=1)]
BadWord = Annotated[str, Meta(min_length=1, max_length=MAX_BAD_WORD_CHARS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Messages = Annotated[list[Annotated[dict[str, Any], Meta(extra_json_schema=MESSAGE_SCHEMA)]], Meta(min_length=1)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Body(Struct, forbid_unknown_fields=True):
    """A request body. `off_values` are the fields that this version lacks, each with the values that are let through."""

    off_values: ClassVar[OffValues] = {}

    model: str | None = None


class StreamOptions(Struct, forbid_unknown_fields=True):
    """`include_usage` adds a last chunk with the usage; `continuous_usage_stats` puts the usage so far on every chunk;
    `include_obfuscation` is OpenAI's padding of chunks, which never changes the text and is not done here.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """What the text must be, one of the first five; `octavo.protocol.structured_outputs` says what each means."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    grammar: NonEmpty | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class TextFormat(Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(Struct, forbid_unknown_fields=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(Struct, forbid_unknown_fields=True):
    """A schema under a name. It is held to whether `strict` or not."""

    name: NonEmpty
    description: str | None = None
    schema_: dict[str, Any] | None = field(default=None, name="schema")
    strict: bool | None = None


class JsonSchemaFormat(Struct, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    """JSON that matches a schema."""

    json_schema: JsonSchema


class Generation(Body):
    """What completions and chat have in common: sampling or beam search (then `n` is the number of beams), streaming, and OpenAI's fields
    that can't change the text."""

    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=1e-6, le=1e6)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=SEED_MAX)] | None = None
    stop: NonEmpty | Annotated[list[NonEmpty], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=INT32_MAX)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=INT32_MAX)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timeout: Annotated[float, Meta(gt=0, le=LONGEST_REQUEST)] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=LONGEST_SALT)] | None = None
    priority: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Meta(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    request_id: Annotated[str, Meta(pattern=ID_PATTERN, max_length=LONGEST_ID)] | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=MAX_BIASES)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=MAX_BAD_WORDS)] | None = None
    structured_outputs: StructuredOutputs | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None


class TokenGeneration(Generation):
    """What a reply that has a place for tokens may tell of them."""

    prompt_logprobs: Annotated[int, Meta(ge=-1)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class CompletionRequest(TokenGeneration, kw_only=True):
    """POST /v1/completions. `prompt` is a string, a list of strings, a list of token ids, or a list of such lists; chat `messages` may
    stand in its place, and what the chat template makes of them is then completed. Of `best_of` completions the best `n` are returned. With
    `echo` each begins with its prompt; then, or with `prompt_logprobs`, `max_tokens` may be 0."""

    off_values: ClassVar[OffValues] = COMPLETION_OFF

    prompt: Annotated[Any, Meta(extra_json_schema=PROMPT_SCHEMA)] = None
    messages: Messages | None = None
    logprobs: Annotated[int, Meta(ge=-1)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=INT32_MAX)] | None = None
    echo: bool | None = None


class GenerateRequest(Generation, kw_only=True):
    """POST /generate. The reply is text alone, so that there is nothing that logprobs could stand in."""

    off_values: ClassVar[OffValues] = GENERATE_OFF

    prompt: NonEmpty


class ChatRequest(TokenGeneration, kw_only=True):
    """POST /v1/chat/completions. `max_completion_tokens` wins over the older `max_tokens`. `echo` puts the last message before its
    continuation; `include_reasoning` false leaves out what the model thinks."""

    off_values: ClassVar[OffValues] = CHAT_OFF

    messages: Messages
    max_completion_tokens: Annotated[int, Meta(ge=1, le=INT32_MAX)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=-1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None
    chat_template: NonEmpty | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None


class EmbeddingRequest(Body, kw_only=True):
    """POST /v1/embeddings. `input` has the forms of a completion's `prompt`. `pooling` is the server's own unless given, and with
    `normalize`, which holds by itself, vectors have a length of 1; `dimensions` may only be what the model has."""

    input: Annotated[Any, Meta(extra_json_schema=PROMPT_SCHEMA)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=INT32_MAX)] | None = None
    pooling: Literal["last", "mean"] | None = None
    normalize: bool | None = None
    add_special_tokens: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=LONGEST_REQUEST)] | None = None
    user: str | None = None


class TokenizeRequest(Body, kw_only=True):
    """POST /tokenize, with either a `prompt` or chat `messages`."""

    off_values: ClassVar[OffValues] = TOKENIZE_OFF

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    continue_final_message: bool | None = None
    chat_template: NonEmpty | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: ReasoningEffort | None = None
    tools: Tools | None = None


# What has messages, and the fields that say how they are written out.
ChatRendering = ChatRequest | TokenizeRequest


class DetokenizeRequest(Body, kw_only=True):
    """POST /detokenize."""

    tokens: list[Annotated[int, Meta(ge=0)]]


LACKING = "Not supported by this version: accepted only with a value that asks for nothing."


def schema_of_off_values(off_values: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """JSON schema properties for fields that are accepted only with a value that turns them off."""
    return {name: {"enum": [None, *values], "description": LACKING} for name, values in off_values.items()}
