"""What conversations are made of, for openapi.json: messages of chats, turns of /v1/messages and items of /v1/responses, which are checked
by hand since each kind has fields of its own."""

from __future__ import annotations

from typing import Any

_TEXT: dict[str, Any] = {"type": "string"}
_OBJECT: dict[str, Any] = {"type": "object"}
_ANY: dict[str, Any] = {}


def _list_of(item: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, **more}


def _object(required: tuple[str, ...] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _either(*kinds: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(kinds)}


_NULL = {"type": "null"}
_NOTHING = _either(_NULL, _list_of(_ANY, maxItems=0), {"const": ""})
_FUNCTION = _object(("name",), name=_TEXT, arguments={"type": "string", "contentMediaType": "application/json"}, parsed_arguments=_ANY)
MESSAGE_SCHEMA = _object(
    ("role",),
    role={"enum": ["system", "developer", "user", "assistant", "tool"]},
    content=_either(_TEXT, _list_of(_object(("type", "text"), type={"const": "text"}, text=_TEXT), minItems=1), _NULL),
    name=_TEXT,
    tool_call_id=_TEXT,
    tool_calls=_list_of(
        _object(("function",), id=_TEXT, type={"const": "function"}, function=_FUNCTION, index={"type": "integer"}),
    ),
    reasoning=_TEXT,
    reasoning_content=_TEXT,
    parsed=_ANY,
    refusal=_NOTHING,
    audio=_NOTHING,
    annotations=_NOTHING,
    function_call=_NOTHING,
)

_BLOCK = _object(
    ("type",),
    type={"enum": ["text", "thinking", "tool_use", "tool_result"]},
    text=_TEXT,
    thinking=_TEXT,
    signature=_TEXT,
    id=_TEXT,
    name=_TEXT,
    input=_OBJECT,
    caller=_object(type={"const": "direct"}),
    tool_use_id=_TEXT,
    content=_either(_TEXT, _list_of(_OBJECT)),
    is_error={"type": "boolean"},
    citations=_NOTHING,
    cache_control=_OBJECT,
)
TEXT_BLOCK_SCHEMA = _object(("type", "text"), type={"const": "text"}, text=_TEXT, citations=_NOTHING, cache_control=_OBJECT)
TURN_SCHEMA = _object(
    ("role", "content"), role={"enum": ["user", "assistant", "system"]}, content=_either(_TEXT, _list_of(_BLOCK, minItems=1))
)

_PART = _object(
    ("type", "text"),
    type={"enum": ["input_text", "output_text", "text", "reasoning_text"]},
    text=_TEXT,
    annotations=_ANY,
    logprobs=_ANY,
)
_PARTS = _either(_TEXT, _list_of(_PART))
INPUT_SCHEMA = _either(
    {"type": "string", "minLength": 1},
    _list_of(
        _object(
            type={"enum": ["message", "function_call", "function_call_output", "reasoning"]},
            role={"enum": ["system", "developer", "user", "assistant"]},
            content=_PARTS,
            call_id=_TEXT,
            name=_TEXT,
            arguments={"type": "string", "contentMediaType": "application/json"},
            output=_PARTS,
            summary=_NOTHING,
            encrypted_content=_NOTHING,
            id=_ANY,
            status=_ANY,
            phase=_ANY,
        ),
        minItems=1,
    ),
)

# Fields within fields that change nothing: what clients send back beside what it was made from, or cannot help to send.
WITHOUT_EFFECT = frozenset(
    {
        *("messages[].parsed", "messages[].tool_calls[].index", "messages[].tool_calls[].function.parsed_arguments"),
        *(
            "system[].cache_control",
            "messages[].content[].cache_control",
            "messages[].content[].signature",
            "tools[].cache_control",
            "metadata.user_id",
        ),
        *("input[].id", "input[].status", "input[].phase", "input[].content[].annotations", "input[].content[].logprobs"),
        *("input[].output[].annotations", "input[].output[].logprobs", "stream_options.include_obfuscation"),
        *("response_format.json_schema.name", "response_format.json_schema.description", "response_format.json_schema.strict"),
        *("text.format.name", "text.format.description", "text.format.strict"),
    }
)
# Those that are refused unless they hold nothing.
REFUSED = frozenset(
    {
        *("messages[].refusal", "messages[].audio", "messages[].annotations", "messages[].function_call"),
        *("system[].citations", "messages[].content[].citations", "input[].summary", "input[].encrypted_content"),
        *("reasoning.summary", "reasoning.generate_summary"),
    }
)
