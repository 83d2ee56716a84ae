"""The input of /v1/responses as a chat: items become messages, which a chat template can write out."""

from __future__ import annotations

from typing import Any

from octavo.protocol.errors import InvalidRequestError
from octavo.server.items import check_keys, string_of
from octavo.server.messages import arguments_of
from octavo.text.messages import check_role

# Keys of items and parts that say nothing to the model; clients send back what they got.
_SILENT = ("id", "status", "phase")
_TEXT_PARTS = ("input_text", "output_text", "text")


def messages_of(value: Any, instructions: str | None) -> list[dict[str, Any]]:
    """The messages that `input` and `instructions` make. Raises InvalidRequestError that names the field, such as `input.2.call_id`."""
    messages: list[dict[str, Any]] = [] if instructions is None else [{"role": "system", "content": instructions}]
    if isinstance(value, str) and value:
        return [*messages, {"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise InvalidRequestError("input: must be text or a list of items, and not empty.", param="input")
    reader = _Items(messages)
    for index, item in enumerate(value):
        reader.add(item, f"input.{index}")
    return reader.messages


class _Items:
    """Messages from items. What an assistant thinks, says and calls in a row is one message."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self._calls: set[str] = set()
        self._open: dict[str, Any] | None = None

    def add(self, item: Any, path: str) -> None:
        if not isinstance(item, dict):
            raise InvalidRequestError(f"{path}: must be an object.", param=path)
        kind = item.get("type")
        match kind:
            case "message" | None:
                self._message(item, path)
            case "function_call":
                self._call(item, path)
            case "function_call_output":
                self._output(item, path)
            case "reasoning":
                self._reasoning(item, path)
            case _:
                shown = repr(kind) if isinstance(kind, str) else "another kind of value"
                raise InvalidRequestError(
                    f"{path}.type: must be message, function_call, function_call_output or reasoning, not {shown:.60}; nothing is stored "
                    "here that could be referred to.",
                    param=f"{path}.type",
                )

    def _assistant(self) -> dict[str, Any]:
        """The assistant's message that is being put together."""
        if self._open is None:
            self._open = {"role": "assistant", "content": None}
            self.messages.append(self._open)
        return self._open

    def _message(self, item: dict[str, Any], path: str) -> None:
        check_keys(item, ("type", "role", "content", *_SILENT), path)
        content = _text(item.get("content"), f"{path}.content")
        role = check_role(item.get("role"), f"{path}.role")
        if role == "tool":
            raise InvalidRequestError(
                f"{path}.role: what a tool gave is an item of type function_call_output, not a message.", param=f"{path}.role"
            )
        if role != "assistant":
            self._open = None
            self.messages.append({"role": role, "content": content})
            return
        if self._open is not None and (self._open["content"] is not None or "tool_calls" in self._open):
            self._open = None
        self._assistant()["content"] = content

    def _call(self, item: dict[str, Any], path: str) -> None:
        check_keys(item, ("type", "call_id", "name", "arguments", *_SILENT), path)
        call_id, name, arguments = (string_of(item, key, path) for key in ("call_id", "name", "arguments"))
        arguments_of(arguments, f"{path}.arguments")
        self._calls.add(call_id)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._assistant().setdefault("tool_calls", []).append(call)

    def _output(self, item: dict[str, Any], path: str) -> None:
        check_keys(item, ("type", "call_id", "output", *_SILENT), path)
        call_id = string_of(item, "call_id", path)
        if call_id not in self._calls:
            raise InvalidRequestError(
                f"{path}.call_id: no function_call before it has this id; nothing is stored, so the input must hold the call.",
                param=f"{path}.call_id",
            )
        self._open = None
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": _text(item.get("output"), f"{path}.output")})

    def _reasoning(self, item: dict[str, Any], path: str) -> None:
        check_keys(item, ("type", "summary", "content", "encrypted_content", *_SILENT), path)
        for key in ("encrypted_content", "summary"):
            if item.get(key):
                raise InvalidRequestError(
                    f"{path}.{key}: is not supported by this version of Octavo; thinking is told in content.", param=f"{path}.{key}"
                )
        text = _text(item.get("content") or "", f"{path}.content", ("reasoning_text",))
        self._open = None
        if text:
            self._assistant()["reasoning_content"] = text
            self._assistant()["content"] = None


def _text(value: Any, path: str, kinds: tuple[str, ...] = _TEXT_PARTS) -> str:
    """Text, or the texts of a list of parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequestError(f"{path}: must be a string or a list of parts.", param=path)
    texts = []
    for index, part in enumerate(value):
        place = f"{path}.{index}"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in kinds:
            shown = repr(kind) if isinstance(kind, str) else "this"
            raise InvalidRequestError(
                f"{place}.type: only {' and '.join(kinds[:2])} are supported, not {shown:.60}.", param=f"{place}.type"
            )
        check_keys(part, ("type", "text", "annotations", "logprobs", *_SILENT), place)
        texts.append(string_of(part, "text", place))
    return "\n".join(texts)
