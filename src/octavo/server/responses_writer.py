"""The output of a response, item by item, and the events that tell a client of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from octavo.server.responses_objects import (
    FunctionCallItem,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseObject,
    Status,
)
from octavo.text.answer import CallArguments, CallStart, Content, Piece, Reasoning

Event = dict[str, Any]


class ResponseWriter:
    """Builds `response.output` out of the pieces of an answer. Each change is an event, in OpenAI's order."""

    def __init__(self, response: ResponseObject, new_call_id: Callable[[], str]) -> None:
        self.response = response
        self._new_call_id = new_call_id
        self._number = 0

    def opening(self) -> Iterator[Event]:
        """The events before any output."""
        yield self._event("response.created", response=self.response)
        yield self._event("response.in_progress", response=self.response)

    def add(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        """The events of more of the answer."""
        for piece in pieces:
            match piece:
                case Content(text):
                    if not isinstance(self._last, OutputMessage):
                        yield from self._begin(OutputMessage(id=_new_id("msg")), OutputText())
                    yield self._text_delta("response.output_text", text)
                case Reasoning(text):
                    if not isinstance(self._last, ReasoningItem):
                        yield from self._begin(ReasoningItem(id=_new_id("rs")), ReasoningText())
                    yield self._text_delta("response.reasoning_text", text)
                case CallStart(name):
                    yield from self._begin(FunctionCallItem(id=_new_id("fc"), call_id=self._new_call_id(), name=name), None)
                case CallArguments(text):
                    assert isinstance(self._last, FunctionCallItem)
                    self._last.arguments += text
                    yield self._of_item("response.function_call_arguments.delta", delta=text)

    def closing(self, status: Status, *, cut_call: bool = False) -> Iterator[Event]:
        """The events of the end: of the last item, and of the response, which is then `status`. With `cut_call` a call that is the last
        item is not complete."""
        if not self.response.output and status == "completed":
            yield from self._begin(OutputMessage(id=_new_id("msg")), OutputText())
        cut = cut_call and isinstance(self._last, FunctionCallItem)
        yield from self._end_item("completed" if status == "completed" and not cut else "incomplete")
        self.response.status = status
        yield self._event(f"response.{status}", response=self.response)

    @property
    def _last(self) -> OutputItem | None:
        """The item that is being written."""
        output = self.response.output
        return output[-1] if output and output[-1].status == "in_progress" else None

    def _begin(self, item: OutputItem, part: OutputText | ReasoningText | None) -> Iterator[Event]:
        yield from self._end_item("completed")
        self.response.output.append(item)
        yield self._event("response.output_item.added", output_index=self._place, item=item)
        if part is not None:
            content: list[Any] = getattr(item, "content", [])
            content.append(part)
            yield self._of_item("response.content_part.added", content_index=0, part=part)

    def _end_item(self, status: Status) -> Iterator[Event]:
        item = self._last
        if item is None:
            return
        if isinstance(item, FunctionCallItem):
            yield self._of_item("response.function_call_arguments.done", name=item.name, arguments=item.arguments)
        else:
            part = item.content[0]
            logprobs: Event = {"logprobs": []} if isinstance(item, OutputMessage) else {}
            yield self._of_item(f"response.{part.type}.done", content_index=0, text=part.text, **logprobs)
            yield self._of_item("response.content_part.done", content_index=0, part=part)
        item.status = status
        yield self._event("response.output_item.done", output_index=self._place, item=item)

    def _text_delta(self, kind: str, text: str) -> Event:
        item = self._last
        assert isinstance(item, (OutputMessage, ReasoningItem))
        item.content[0].text += text
        logprobs: Event = {"logprobs": []} if isinstance(item, OutputMessage) else {}
        return self._of_item(f"{kind}.delta", content_index=0, delta=text, **logprobs)

    @property
    def _place(self) -> int:
        return len(self.response.output) - 1

    def _of_item(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, item_id=self.response.output[-1].id, output_index=self._place, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._number += 1
        # As it is now: what is written later must not change it.
        told = {name: msgspec.to_builtins(value) for name, value in fields.items()}
        return {"type": kind, "sequence_number": self._number - 1, **told}


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
