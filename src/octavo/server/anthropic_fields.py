"""What clients send to POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from octavo.config.server import LONGEST_REQUEST
from octavo.server.fields import OffValues
from octavo.server.item_schemas import TEXT_BLOCK_SCHEMA, TURN_SCHEMA
from octavo.server.requests import Body, NonEmpty
from octavo.server.tool_fields import MAX_TOOLS, ToolName

_INT32_MAX = 2**31 - 1
# Fields of Anthropic's that this version lacks, with what asks for nothing.
MESSAGES_OFF: OffValues = {
    "container": (),
    "context_management": (),
    "mcp_servers": ([],),
    "output_config": ({},),
    "output_format": (),
}
COUNT_OFF: OffValues = {name: MESSAGES_OFF[name] for name in ("context_management", "mcp_servers", "output_config", "output_format")}

TextBlockGiven = Annotated[dict[str, Any], Meta(extra_json_schema=TEXT_BLOCK_SCHEMA)]
Turns = Annotated[list[Annotated[dict[str, Any], Meta(extra_json_schema=TURN_SCHEMA)]], Meta(min_length=1)]


class AnthropicTool(Struct, forbid_unknown_fields=True):
    """A tool that the model may use. `cache_control` is let through: prompts are cached anyway."""

    name: ToolName
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class AutoChoice(Struct, forbid_unknown_fields=True, tag_field="type", tag="auto"):
    """The model chooses."""

    disable_parallel_tool_use: bool | None = None


class AnyChoice(Struct, forbid_unknown_fields=True, tag_field="type", tag="any"):
    """Some tool must be used."""

    disable_parallel_tool_use: bool | None = None


class ToolChoiceTool(Struct, forbid_unknown_fields=True, tag_field="type", tag="tool"):
    """This tool must be used."""

    name: ToolName
    disable_parallel_tool_use: bool | None = None


class NoChoice(Struct, forbid_unknown_fields=True, tag_field="type", tag="none"):
    """No tool may be used."""


class ThinkingOff(Struct, forbid_unknown_fields=True, tag_field="type", tag="disabled"):
    """The model is not to think, as far as its chat template can say so."""


class UserMetadata(Struct, forbid_unknown_fields=True):
    """Whose request it is."""

    user_id: str | None = None


class Conversation(Body, kw_only=True):
    """What counting and answering have in common."""

    messages: Turns
    system: str | list[TextBlockGiven] | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AutoChoice | AnyChoice | ToolChoiceTool | NoChoice | None = None
    thinking: ThinkingOff | None = None
    cache_control: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CountTokensRequest(Conversation, kw_only=True):
    """POST /v1/messages/count_tokens."""

    off_values: ClassVar[OffValues] = COUNT_OFF


class MessagesRequest(Conversation, kw_only=True):
    """POST /v1/messages. A last message of the assistant's is continued."""

    off_values: ClassVar[OffValues] = MESSAGES_OFF

    max_tokens: Annotated[int, Meta(ge=1, le=_INT32_MAX)]
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_INT32_MAX)] | None = None
    stop_sequences: Annotated[list[NonEmpty], Meta(max_length=64)] | None = None
    stream: bool | None = None
    metadata: UserMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    timeout: Annotated[float, Meta(gt=0, le=LONGEST_REQUEST)] | None = None
