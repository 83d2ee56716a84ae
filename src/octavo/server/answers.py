"""Answers read as they come: thinking, content and tool calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from octavo.text.answer import CallArguments, CallStart, Content, Piece, Reasoning, merged
from octavo.text.reasoning.parser import ReasoningParser
from octavo.text.tokenizer import Tokenizer
from octavo.text.tools.json_value import WHITESPACE, JsonValue
from octavo.text.tools.parser import ToolParser


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How the answers of one request are read: by which parsers, if any, and whether their thinking is told and more than one call is
    wanted. Answers that are either calls or something else, such as JSON that may hold what looks like a call, are calls if they begin
    with `calls_begin`."""

    reasoning: Callable[[], ReasoningParser] | None = None
    tools: Callable[[], ToolParser] | None = None
    include_reasoning: bool = True
    several_calls: bool = True
    calls_begin: str = ""

    def markers(self) -> list[str]:
        """What the text of an answer must hold for its parsers."""
        makers = (maker for maker in (self.reasoning, self.tools) if maker is not None)
        return [marker for maker in makers for marker in maker().markers]


class AnswerReader:
    """One answer. The pieces of `feed` and `finish`, joined, are those of the whole text."""

    def __init__(self, form: AnswerFormat) -> None:
        self._form = form
        self._reasoning = form.reasoning() if form.reasoning is not None else None
        self._tools = form.tools() if form.tools is not None else None
        # The beginning of the content, until it is certain whether calls may be in it.
        self._lead: str | None = "" if form.calls_begin else None
        self.calls = 0
        self._arguments: list[str] = []

    def feed(self, text: str) -> list[Piece]:
        """Takes more text; what is certain by now."""
        pieces = self._reasoning.feed(text) if self._reasoning is not None else [Content(text)]
        return self._wanted(self._with_calls(pieces))

    def finish(self) -> list[Piece]:
        """The rest, at the end of the text."""
        pieces = self._with_calls(self._reasoning.finish()) if self._reasoning is not None else []
        if self._tools is not None:
            pieces += [Content(self._lead)] if self._lead else self._tools.finish()
        return self._wanted(pieces)

    def new_call_id(self) -> str:
        """An id for a call."""
        return (self._tools or ToolParser).new_call_id()

    def finish_reason(self, reason: str | None, stop_reason: int | str | None) -> str | None:
        """`reason` in the words of a chat, at the end: an answer with calls ended for their sake, unless what the request asked to stop at,
        the `stop_reason`, cut the last of them."""
        if reason != "stop" or not self.calls:
            return reason
        return "tool_calls" if stop_reason is None or self._whole() else reason

    def _whole(self) -> bool:
        """Whether the arguments of the last call are there to their end."""
        value = JsonValue()
        for char in itertools.chain.from_iterable(self._arguments):
            value.feed(char)
        return value.done

    def _with_calls(self, pieces: Iterable[Piece]) -> list[Piece]:
        if self._tools is None:
            return list(pieces)
        found: list[Piece] = []
        for piece in pieces:
            found += self._read(piece.text) if isinstance(piece, Content) else [piece]
        return found

    def _read(self, text: str) -> list[Piece]:
        """More content, with the calls in it, unless the answer had to begin with these and did not."""
        if self._lead is not None:
            begin, text = self._form.calls_begin, self._lead + text
            written = text.lstrip(WHITESPACE)
            calls = written.startswith(begin)
            self._lead = text if not calls and begin.startswith(written) else None
            if self._lead is not None:
                return []
            if not calls:
                self._tools = None
        return [Content(text)] if self._tools is None else self._tools.feed(text)

    def _wanted(self, pieces: Iterable[Piece]) -> list[Piece]:
        kept: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, CallStart):
                self.calls += 1
            surplus = isinstance(piece, (CallStart, CallArguments)) and self.calls > 1 and not self._form.several_calls
            if not surplus:
                self._follow(piece)
            if not surplus and (self._form.include_reasoning or not isinstance(piece, Reasoning)):
                kept.append(piece)
        return merged(kept)

    def _follow(self, piece: Piece) -> None:
        if isinstance(piece, CallStart):
            self._arguments = []
        elif isinstance(piece, CallArguments):
            self._arguments.append(piece.text)


@dataclass(slots=True)
class Call:
    """A tool call: its id, the tool's name, and its arguments as JSON text."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """A whole answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str | None = None


def read_answer(form: AnswerFormat, text: str, finish_reason: str | None, stop_reason: int | str | None) -> Answer:
    """The parts of an answer that is there as a whole."""
    reader = AnswerReader(form)
    answer = Answer()
    for piece in [*reader.feed(text), *reader.finish()]:
        match piece:
            case Reasoning():
                answer.reasoning += piece.text
            case Content():
                answer.content += piece.text
            case CallStart():
                answer.calls.append(Call(reader.new_call_id(), piece.name))
            case CallArguments():
                answer.calls[-1].arguments += piece.text
    answer.finish_reason = reader.finish_reason(finish_reason, stop_reason)
    return answer


def count_reasoning_tokens(form: AnswerFormat, tokenizer: Tokenizer, token_ids: Sequence[int]) -> int:
    """How many of an answer's tokens are thinking, with what ends it."""
    if form.reasoning is None:
        return 0
    parser = form.reasoning()
    pieces = [tokenizer.token_bytes(token_id) for token_id in token_ids]
    data = b"".join(pieces)
    end = data.find(mark := parser.markers[-1].encode())
    thinking = data if end < 0 else data[: end + len(mark)]
    found = [*parser.feed(thinking.decode("utf-8", "replace")), *parser.finish()]
    if not any(isinstance(piece, Reasoning) for piece in found):
        return 0
    ends = itertools.accumulate(map(len, pieces))
    return next((count for count, length in enumerate(ends, 1) if length >= len(thinking)), len(pieces))
