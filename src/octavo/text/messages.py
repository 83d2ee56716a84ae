"""The messages of a conversation, checked and put into the shape that a chat template reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.protocol.errors import InvalidRequestError

ROLES = ("system", "developer", "user", "assistant", "tool")


def check_role(role: Any, where: str) -> str:
    """`role` if it is one that a message may have. Raises InvalidRequestError that names `where`, the place of the message's role."""
    if role is None:
        raise InvalidRequestError(f"{where}: is required.", param=where)
    if role not in ROLES:
        shown = repr(role) if isinstance(role, str) else "another kind of value"
        raise InvalidRequestError(f"{where}: must be one of {', '.join(ROLES)}, not {shown:.60}.", param=where)
    return str(role)


def read_json(text: str) -> Any:
    """What JSON text says. Raises ValueError, also for NaN and Infinity, which Python's own reader takes, and RecursionError."""
    return json.loads(text, parse_constant=_no_json)


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def normalize_messages(messages: Sequence[Mapping[str, Any]], *, wants_parts: bool, wants_strings: bool) -> list[dict[str, Any]]:
    """Copies of `messages` for a template that loops over content (`wants_parts`), reads it as text (`wants_strings`), or either.

    A list of text parts is joined by line ends for a template that reads text only, and text becomes one part for a template that reads
    parts only. An assistant's missing content is empty text, unless it calls tools. Arguments of tool calls, which OpenAI sends as JSON
    text, become values. Raises InvalidRequestError that names the message and the field at fault.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise InvalidRequestError("messages must be a list", param="messages")
    if not messages:
        raise InvalidRequestError("messages is empty", param="messages")
    return [_normalize(message, f"messages[{place}]", wants_parts, wants_strings) for place, message in enumerate(messages)]


def _normalize(message: Mapping[str, Any], where: str, wants_parts: bool, wants_strings: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} must be an object", param=where)
    role = check_role(message.get("role"), f"{where}.role")
    result = dict(message)
    result["content"] = _content(message, where, role, wants_parts, wants_strings)
    if message.get("tool_calls"):
        result["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls")
    return result


def _content(message: Mapping[str, Any], where: str, role: str, wants_parts: bool, wants_strings: bool) -> Any:
    where = f"{where}.content"
    content = message.get("content")
    if content is None:
        if role != "assistant":
            raise InvalidRequestError(f"{where} is missing", param=where)
        return None if message.get("tool_calls") else ""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if wants_parts and not wants_strings else content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequestError(f"{where} must be text or a list of parts", param=where)
    texts = [_part_text(part, f"{where}[{place}]") for place, part in enumerate(content)]
    return [{"type": "text", "text": text} for text in texts] if wants_parts else "\n".join(texts)


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidRequestError(f"{where} must be an object with a type", param=where)
    if kind != "text":
        raise InvalidRequestError(f"{where} is of type {kind!r}; this model takes text only", param=where)
    if not isinstance(part.get("text"), str):
        raise InvalidRequestError(f"{where} has no text", param=f"{where}.text")
    for key in part:
        if key not in ("type", "text"):
            raise InvalidRequestError(f"{where}.{key} is not known: a part of text has a type and a text", param=f"{where}.{key}")
    text: str = part["text"]
    return text


def _tool_calls(calls: Any, where: str) -> list[Any]:
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        raise InvalidRequestError(f"{where} must be a list", param=where)
    return [_tool_call(call, f"{where}[{place}]") for place, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidRequestError(f"{where} has no function", param=where)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{where}.function.arguments is not JSON: {error}", param=f"{where}.function.arguments") from error
    return {**call, "function": {**function, "arguments": arguments}}
