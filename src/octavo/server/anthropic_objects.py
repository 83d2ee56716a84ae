"""What /v1/messages answers: Anthropic's Message and its blocks, and their shape of an error."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

MESSAGES_PATH = "/v1/messages"


class TextBlock(Struct, kw_only=True, tag_field="type", tag="text"):
    """Text for the reader."""

    text: str = ""
    citations: None = None


class ThinkingBlock(Struct, kw_only=True, tag_field="type", tag="thinking"):
    """What the model thought; nothing is signed."""

    thinking: str = ""
    signature: str = ""


class ToolUseBlock(Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """The use of a tool, whose `input` is an object."""

    id: str
    name: str
    input: dict[str, Any] = field(default_factory=dict)


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(Struct, kw_only=True):
    """Token counts; `input_tokens` are those that were not found in the prefix cache."""

    input_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens: int


class MessageObject(Struct, kw_only=True):
    """A message of the assistant's."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block] = field(default_factory=list)
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokenCount(Struct):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


class AnthropicErrorDetail(Struct):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(Struct, kw_only=True):
    """The body of every reply of /v1/messages whose status is 400 or more, and the event that ends a broken stream."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetail


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    503: "overloaded_error",
}


def anthropic_error(status: int, message: str) -> AnthropicError:
    """The error of a reply with this status."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return AnthropicError(error=AnthropicErrorDetail(kind, message))
