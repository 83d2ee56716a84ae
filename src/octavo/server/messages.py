"""Chat messages as clients send them, checked and brought into the form that chat templates expect."""

from __future__ import annotations

import json
from typing import Any

from octavo.protocol.errors import InvalidRequestError
from octavo.server.items import check_keys, string_of
from octavo.text.messages import ROLES, check_role, read_json
from octavo.utils.nearest import did_you_mean

_TEXT_FIELDS = {
    "name": ROLES,
    "tool_call_id": ("tool",),
    "reasoning": ("assistant",),
    "reasoning_content": ("assistant",),
}
# Fields of OpenAI's messages that clients send back as they got them; let through when they hold nothing.
_EMPTY_FIELDS = ("refusal", "audio", "annotations", "function_call")
# What OpenAI's client makes of a message's content and of a call's arguments, and sends back beside them.
_PARSED, _PARSED_ARGUMENTS = "parsed", "parsed_arguments"
# What `chat_template_kwargs` may not set, because the request's own fields do or because this version lacks it.
_RESERVED = (
    *("messages", "add_generation_prompt", "continue_final_message", "chat_template", "tools", "documents"),
    *("tokenize", "conversation", "self"),
)


def normalize(messages: list[dict[str, Any]], *, keep_developer: bool = False) -> list[dict[str, Any]]:
    """`messages` with plain text contents, for a chat template.

    OpenAI's role developer becomes system, which most templates know, unless `keep_developer`.
    Raises InvalidRequestError that names the field, such as `messages.2.content`, for what is malformed or not text.
    """
    result = [_message(message, f"messages.{index}") for index, message in enumerate(messages)]
    for message in result:
        if message["role"] == "developer" and not keep_developer:
            message["role"] = "system"
    return result


def check_template_kwargs(kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """`kwargs` for the chat template. Raises InvalidRequestError for a name that is not free."""
    for name in kwargs or {}:
        if name in _RESERVED:
            path = f"chat_template_kwargs.{name}"
            raise InvalidRequestError(f"{path}: can't be set here.", param=path)
    return kwargs or {}


def _message(message: dict[str, Any], path: str) -> dict[str, Any]:
    role = check_role(message.get("role"), f"{path}.role")
    result: dict[str, Any] = {"role": role}
    tool_calls = _tool_calls(message.get("tool_calls"), role, f"{path}.tool_calls")
    required = not tool_calls and not message.get("reasoning") and not message.get("reasoning_content")
    for name, value in message.items():
        field = f"{path}.{name}"
        if name == "content":
            result["content"] = _content(value, field, required=required)
        elif name in _TEXT_FIELDS:
            if value is None:
                continue
            if role not in _TEXT_FIELDS[name]:
                raise InvalidRequestError(f"{field}: a message of role {role} can't have it.", param=field)
            if not isinstance(value, str):
                raise InvalidRequestError(f"{field}: must be a string.", param=field)
            result[name] = value
        elif name in _EMPTY_FIELDS:
            if value not in (None, [], ""):
                raise InvalidRequestError(f"{field} is not supported by this version of Octavo.", param=field)
        elif value is not None and name not in ("role", "tool_calls", _PARSED):
            known = ("role", "content", "tool_calls", *_TEXT_FIELDS, *_EMPTY_FIELDS)
            raise InvalidRequestError(f"{field}: unknown field{did_you_mean(name, known) or '.'}", param=field)
    if "reasoning" in result:
        # Replies call it so here; templates know the older name.
        result.setdefault("reasoning_content", result["reasoning"])
    if "content" not in result:
        result["content"] = _content(None, f"{path}.content", required=required)
    if tool_calls:
        result["tool_calls"] = tool_calls
    return result


def content_text(message: dict[str, Any]) -> str:
    """The text of a message that was checked."""
    return _content(message.get("content"), "content", required=False)


def _content(value: Any, path: str, *, required: bool) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        if required:
            raise InvalidRequestError(f"{path}: is required.", param=path)
        return ""
    if not isinstance(value, list):
        raise InvalidRequestError(f"{path}: must be a string or a list of parts.", param=path)
    if not value:
        raise InvalidRequestError(f"{path}: is an empty list.", param=path)
    return "\n".join(_part(part, f"{path}.{index}") for index, part in enumerate(value))


def _part(part: Any, path: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequestError(f"{path}: must be an object.", param=path)
    kind = part.get("type")
    if kind != "text":
        shown = repr(kind) if isinstance(kind, str) else "this"
        raise InvalidRequestError(f"{path}.type: only text parts are supported, not {shown:.60}.", param=f"{path}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{path}.text: must be a string.", param=f"{path}.text")
    check_keys(part, ("type", "text"), path)
    return text


def _tool_calls(value: Any, role: str, path: str) -> list[dict[str, Any]]:
    """Earlier tool calls of the assistant, whose arguments templates expect as an object rather than as JSON text."""
    if value is None or value == []:
        return []
    if role != "assistant":
        raise InvalidRequestError(f"{path}: a message of role {role} can't have it.", param=path)
    if not isinstance(value, list):
        raise InvalidRequestError(f"{path}: must be a list.", param=path)
    return [_tool_call(call, f"{path}.{index}") for index, call in enumerate(value)]


def _tool_call(call: Any, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type") not in (None, "function"):
        raise InvalidRequestError(f"{path}: must be an object with type function and a function.", param=path)
    check_keys(call, ("id", "type", "function", "index"), path)
    check_keys(function, ("name", "arguments", _PARSED_ARGUMENTS), f"{path}.function")
    arguments = arguments_of(function.get("arguments"), f"{path}.function.arguments")
    result: dict[str, Any] = {
        "type": "function",
        "function": {"name": string_of(function, "name", f"{path}.function"), "arguments": arguments},
    }
    if call.get("id") is not None:
        result["id"] = string_of(call, "id", path)
    return result


def arguments_of(text: Any, path: str) -> dict[str, Any]:
    """The arguments of an earlier call, which are JSON text. Raises InvalidRequestError that names their `path`."""
    # Other servers write the arguments of a function that has none as an empty text.
    if text is None or (isinstance(text, str) and not text.strip()):
        return {}
    try:
        parsed = read_json(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidRequestError(f"{path}: must be a JSON object as a string.", param=path)
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{path}: a string in it holds half of a surrogate pair.", param=path) from None
    return parsed
