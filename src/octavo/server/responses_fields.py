"""What clients send to POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, field

from octavo.config.server import LONGEST_REQUEST
from octavo.server.fields import OffValues
from octavo.server.item_schemas import INPUT_SCHEMA
from octavo.server.requests import (
    ID_PATTERN,
    LONGEST_ID,
    MAX_BIASES,
    SEED_MAX,
    Body,
    JsonObjectFormat,
    NonEmpty,
    Penalty,
    ReasoningEffort,
    StructuredOutputs,
    TextFormat,
    TokenId,
)
from octavo.server.tool_fields import MAX_TOOLS, ToolName

_INT32_MAX = 2**31 - 1
# Fields of OpenAI's and vLLM's that this version lacks, with what asks for nothing.
RESPONSES_OFF: OffValues = {
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "include": ([],),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "prompt_cache_options": ({},),
    "stream_options": ({}, {"include_obfuscation": False}, {"include_obfuscation": True}),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
    "context_management": ([],),
    "enable_response_messages": (False,),
    "previous_input_messages": (),
    "session_id": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
    "vllm_xargs": ({},),
}


class ResponseFunction(Struct, forbid_unknown_fields=True):
    """A function that the model may call, as FunctionDefinition."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFunctionChoice(Struct, forbid_unknown_fields=True):
    """The choice of one function."""

    type: Literal["function"]
    name: ToolName


class SchemaFormat(Struct, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    """JSON that matches a schema, which is held to whether `strict` or not."""

    name: NonEmpty
    schema_: dict[str, Any] = field(name="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(Struct, forbid_unknown_fields=True):
    """What the text of the answer must be. `medium` is the only verbosity."""

    format: TextFormat | JsonObjectFormat | SchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Struct, forbid_unknown_fields=True):
    """How much the model is to think; what it thinks is told as it is, not as a summary."""

    effort: ReasoningEffort | None = None
    summary: None = None
    generate_summary: None = None


class ResponsesRequest(Body, kw_only=True):
    """POST /v1/responses. `input` is text, or a list of messages, calls of functions and what these gave. Nothing is stored."""

    off_values: ClassVar[OffValues] = RESPONSES_OFF

    input: Annotated[Any, Meta(extra_json_schema=INPUT_SCHEMA)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=_INT32_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_INT32_MAX)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=1e-6, le=1e6)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=SEED_MAX)] | None = None
    stop: NonEmpty | Annotated[list[NonEmpty], Meta(max_length=64)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=_INT32_MAX)] | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=MAX_BIASES)] | None = None
    structured_outputs: StructuredOutputs | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    timeout: Annotated[float, Meta(gt=0, le=LONGEST_REQUEST)] | None = None
    request_id: Annotated[str, Meta(pattern=ID_PATTERN, max_length=LONGEST_ID)] | None = None
    tools: Annotated[list[ResponseFunction], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseFunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    store: bool | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    priority: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
