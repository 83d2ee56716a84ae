"""What /v1/responses answers: OpenAI's Response object, its items and their parts."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(Struct, kw_only=True):
    """The text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[Any] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)


class ReasoningText(Struct, kw_only=True):
    """What the model thought."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class OutputMessage(Struct, kw_only=True, tag_field="type", tag="message"):
    """What the model said. It has one part, which comes after the item is announced."""

    id: str
    status: Status = "in_progress"
    role: str = "assistant"
    content: list[OutputText] = field(default_factory=list)


class ReasoningItem(Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model thought before."""

    id: str
    status: Status = "in_progress"
    summary: list[Any] = field(default_factory=list)
    content: list[ReasoningText] = field(default_factory=list)


class FunctionCallItem(Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function. `arguments` is JSON text; a `function_call_output` answers to `call_id`."""

    id: str
    call_id: str
    name: str
    status: Status = "in_progress"
    arguments: str = ""


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem


class InputTokensDetails(Struct):
    """Of the prompt's tokens, how many were found in the prefix cache."""

    cached_tokens: int


class OutputTokensDetails(Struct):
    """Of the answer's tokens, how many are thinking."""

    reasoning_tokens: int


class ResponseUsage(Struct, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Struct):
    """Why the answer ends early."""

    reason: Literal["max_output_tokens", "content_filter"]


class ResponseFailure(Struct):
    """Why there is no whole answer. `code` is OpenAI's server_error or invalid_prompt, or a word of the error's own, such as timeout."""

    code: str
    message: str


class ResponseObject(Struct, kw_only=True):
    """A response, with the request's own fields, or what holds in their place. It is never stored."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status = "in_progress"
    background: bool = False
    completed_at: int | None = None
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    model: str
    output: list[OutputItem] = field(default_factory=list)
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] = field(default_factory=dict)
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = False
    temperature: float
    text: dict[str, Any] = field(default_factory=dict)
    tool_choice: Any = "auto"
    tools: list[Any] = field(default_factory=list)
    top_logprobs: int = 0
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
