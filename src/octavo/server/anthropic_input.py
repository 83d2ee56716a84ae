"""Anthropic's conversations as a chat: blocks become messages, which a chat template can write out."""

from __future__ import annotations

import json
from typing import Any

from octavo.protocol.errors import InvalidRequestError
from octavo.server.items import check_keys, string_of

# Who used a tool, where that is the model itself.
_DIRECT = {"type": "direct"}
_TEXT_KEYS = ("type", "text", "cache_control", "citations")


def messages_of(turns: list[dict[str, Any]], system: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The messages that `turns` and `system` make. Raises InvalidRequestError that names the field, such as `messages.2.content`."""
    messages: list[dict[str, Any]] = []
    if system:
        text = system if isinstance(system, str) else _texts(system, "system")
        messages.append({"role": "system", "content": text})
    for index, turn in enumerate(turns):
        messages += _turn(turn, f"messages.{index}")
    return messages


def _turn(turn: dict[str, Any], path: str) -> list[dict[str, Any]]:
    check_keys(turn, ("role", "content"), path)
    role, content = turn.get("role"), turn.get("content")
    if role not in ("user", "assistant", "system"):
        shown = repr(role) if isinstance(role, str) else "another kind of value"
        raise InvalidRequestError(f"{path}.role: must be user, assistant or system, not {shown:.60}.", param=f"{path}.role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or not content:
        raise InvalidRequestError(f"{path}.content: must be a string or a list of blocks, and not empty.", param=f"{path}.content")
    return _assistant(content, path) if role == "assistant" else _others(content, role, path)


def _assistant(blocks: list[Any], path: str) -> list[dict[str, Any]]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        place = f"{path}.content.{index}"
        match _kind(block, place):
            case "text":
                texts.append(_text(block, place))
            case "thinking":
                check_keys(block, ("type", "thinking", "signature"), place)
                thoughts.append(string_of(block, "thinking", place))
            case "tool_use":
                calls.append(_call(block, place))
            case kind:
                raise _unsupported(kind, "text, thinking and tool_use", place)
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts) if texts else None}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
        message["content"] = message["content"] or ""
    if calls:
        message["tool_calls"] = calls
    return [message]


def _others(blocks: list[Any], role: str, path: str) -> list[dict[str, Any]]:
    """A user's blocks: results of tools are messages of their own, in their order."""
    messages: list[dict[str, Any]] = []
    texts: list[str] = []
    for index, block in enumerate(blocks):
        place = f"{path}.content.{index}"
        match _kind(block, place):
            case "text":
                texts.append(_text(block, place))
            case "tool_result" if role == "user":
                if texts:
                    messages.append({"role": role, "content": "\n".join(texts)})
                    texts = []
                messages.append(_result(block, place))
            case kind:
                raise _unsupported(kind, "text and tool_result", place)
    return [*messages, {"role": role, "content": "\n".join(texts)}] if texts else messages


def _call(block: dict[str, Any], path: str) -> dict[str, Any]:
    check_keys(block, ("type", "id", "name", "input", "cache_control", "caller"), path)
    if block.get("caller") not in (None, _DIRECT):
        raise InvalidRequestError(f"{path}.caller: only {_DIRECT} is supported here.", param=f"{path}.caller")
    if not isinstance(block.get("input"), dict):
        raise InvalidRequestError(f"{path}.input: must be an object.", param=f"{path}.input")
    function = {"name": string_of(block, "name", path), "arguments": json.dumps(block["input"], ensure_ascii=False)}
    return {"id": string_of(block, "id", path), "type": "function", "function": function}


def _result(block: dict[str, Any], path: str) -> dict[str, Any]:
    check_keys(block, ("type", "tool_use_id", "content", "is_error", "cache_control"), path)
    content = block.get("content")
    text = content if isinstance(content, str) else _texts(content or [], f"{path}.content")
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": string_of(block, "tool_use_id", path), "content": text}


def _texts(blocks: Any, path: str) -> str:
    if not isinstance(blocks, list):
        raise InvalidRequestError(f"{path}: must be a string or a list of text blocks.", param=path)
    texts = []
    for index, block in enumerate(blocks):
        place = f"{path}.{index}"
        kind = _kind(block, place)
        if kind != "text":
            raise _unsupported(kind, "text", place)
        texts.append(_text(block, place))
    return "\n".join(texts)


def _kind(block: Any, path: str) -> Any:
    if not isinstance(block, dict):
        raise InvalidRequestError(f"{path}: must be an object.", param=path)
    return block.get("type")


def _text(block: dict[str, Any], path: str) -> str:
    check_keys(block, _TEXT_KEYS, path)
    if block.get("citations"):
        raise InvalidRequestError(f"{path}.citations: is not supported by this version of Octavo.", param=f"{path}.citations")
    return string_of(block, "text", path)


def _unsupported(kind: Any, known: str, path: str) -> InvalidRequestError:
    shown = repr(kind) if isinstance(kind, str) else "this"
    return InvalidRequestError(f"{path}.type: only {known} blocks are supported here, not {shown:.60}.", param=f"{path}.type")
