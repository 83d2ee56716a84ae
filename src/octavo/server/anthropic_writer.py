"""A message of /v1/messages, block by block, and the events that tell a client of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from octavo.server.anthropic_objects import Block, MessageObject, MessageUsage, TextBlock, ThinkingBlock, ToolUseBlock
from octavo.server.responses import Usage
from octavo.text.answer import CallArguments, CallStart, Content, Piece, Reasoning

Event = dict[str, Any]


class MessageWriter:
    """Builds `message.content` out of the pieces of an answer. Each change is an event, in Anthropic's order."""

    def __init__(self, message: MessageObject, new_id: Any) -> None:
        self.message = message
        self._new_id = new_id
        self._arguments = ""
        self._open: Block | None = None

    def opening(self, usage: Usage) -> Iterator[Event]:
        """The event before any content."""
        self.message.usage = _usage(usage)
        yield {"type": "message_start", "message": msgspec.to_builtins(self.message)}

    def add(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        """The events of more of the answer."""
        for piece in pieces:
            match piece:
                case Content(text):
                    if not isinstance(self._open, TextBlock):
                        yield from self._begin(TextBlock())
                    assert isinstance(self._open, TextBlock)
                    self._open.text += text
                    yield self._delta("text_delta", text=text)
                case Reasoning(text):
                    if not isinstance(self._open, ThinkingBlock):
                        yield from self._begin(ThinkingBlock())
                    assert isinstance(self._open, ThinkingBlock)
                    self._open.thinking += text
                    yield self._delta("thinking_delta", thinking=text)
                case CallStart(name):
                    yield from self._begin(ToolUseBlock(id=self._new_id(), name=name))
                case CallArguments(text):
                    self._arguments += text
                    yield self._delta("input_json_delta", partial_json=text)

    def closing(self, finish_reason: str | None, stop_reason: int | str | None, usage: Usage) -> Iterator[Event]:
        """The events of the end, which set why the message ends, and what it took."""
        yield from self._end_block()
        message = self.message
        message.usage = _usage(usage)
        if finish_reason == "length":
            message.stop_reason = "max_tokens"
        elif isinstance(stop_reason, str):
            message.stop_reason, message.stop_sequence = "stop_sequence", stop_reason
        else:
            message.stop_reason = "tool_use" if finish_reason == "tool_calls" else "end_turn"
        delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        yield {"type": "message_delta", "delta": delta, "usage": msgspec.to_builtins(message.usage)}
        yield {"type": "message_stop"}

    @property
    def _place(self) -> int:
        return len(self.message.content) - 1

    def _begin(self, block: Block) -> Iterator[Event]:
        yield from self._end_block()
        self.message.content.append(block)
        self._open, self._arguments = block, ""
        yield {"type": "content_block_start", "index": self._place, "content_block": msgspec.to_builtins(block)}

    def _end_block(self) -> Iterator[Event]:
        block, self._open = self._open, None
        if block is None:
            return
        if isinstance(block, ToolUseBlock):
            block.input = _object(self._arguments)
        yield {"type": "content_block_stop", "index": self._place}

    def _delta(self, kind: str, **fields: str) -> Event:
        return {"type": "content_block_delta", "index": self._place, "delta": {"type": kind, **fields}}


def _usage(usage: Usage) -> MessageUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(input_tokens=usage.prompt_tokens - cached, cache_read_input_tokens=cached, output_tokens=usage.completion_tokens)


def _object(text: str) -> dict[str, Any]:
    """The object that `text` is; an empty one for arguments that were cut, or are no object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
