"""POST /v1/messages and /v1/messages/count_tokens, in Anthropic's shapes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.outputs import RequestOutput
from octavo.server.answers import AnswerReader
from octavo.server.anthropic_fields import (
    AnyChoice,
    AutoChoice,
    Conversation,
    CountTokensRequest,
    MessagesRequest,
    ThinkingOff,
    ToolChoiceTool,
)
from octavo.server.anthropic_input import messages_of
from octavo.server.anthropic_objects import MessageObject, MessageUsage, TokenCount, anthropic_error
from octavo.server.anthropic_writer import MessageWriter
from octavo.server.body import parse, read_json_object
from octavo.server.chat import ChatJob, prepare_chat
from octavo.server.context import ServerContext
from octavo.server.errors import describe, json_response
from octavo.server.generation import begin, collect
from octavo.server.own_paths import own_paths
from octavo.server.rendering import render
from octavo.server.requests import ChatRequest
from octavo.server.streaming import EventStream, chain, typed_event, while_connected
from octavo.server.tool_fields import ChosenFunction, FunctionDefinition, NamedToolChoice, Tool, ToolChoice
from octavo.server.tool_use import counted_tools
from octavo.server.usage import UsageCounter

T = TypeVar("T", bound=Conversation)

# Beginnings of the paths of a chat request's fields, in the words of this one.
_PATHS = {
    "max_completion_tokens": "max_tokens",
    "continue_final_message": "messages",
    "stop": "stop_sequences",
    "tools.*.function.parameters": "tools.*.input_schema",
    "tools.*.function": "tools.*",
    "tool_choice.function.name": "tool_choice.name",
}


async def create_message(ctx: ServerContext, request: Request) -> Response:
    """Answers with the assistant's next message, whole or as events."""
    body = await _body(ctx, request, MessagesRequest)
    with own_paths(_PATHS):
        chat = await while_connected(request, ctx, prepare_chat(ctx, request, _answerable(body), "msg"))
        reader = AnswerReader(chat.form)
        writer = MessageWriter(_message(chat), reader.new_call_id)
        if body.stream:
            first, source = await begin(request, ctx, chat.job)
            return MessageStream(_events(writer, reader, first, source), source, ctx)
        outputs, usage = await collect(request, ctx, chat.job)
    (output,) = outputs[0].outputs
    list(writer.add([*reader.feed(output.text), *reader.finish()]))
    list(writer.closing(reader.finish_reason(output.finish_reason, output.stop_reason), output.stop_reason, usage))
    return json_response(writer.message)


async def count_tokens(ctx: ServerContext, request: Request) -> Response:
    """Answers with how many tokens a conversation has."""
    body = await _body(ctx, request, CountTokensRequest)
    ctx.model_name(body.model)
    with own_paths(_PATHS):
        chat = _as_chat(body)
        rendered = await while_connected(request, ctx, render(ctx, chat, tools=counted_tools(ctx, chat)))
    return json_response(TokenCount(len(rendered.token_ids)))


async def _body(ctx: ServerContext, request: Request, kind: type[T]) -> T:
    raw = await read_json_object(request, ctx)
    thinking = raw.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") in ("enabled", "adaptive"):
        raise InvalidRequestError(
            f"thinking.type: can't be {thinking['type']!r}; whether and how long a model thinks is its own and its chat template's choice, "
            "and no budget is held to. Leave thinking out, or send disabled.",
            param="thinking.type",
        )
    return parse(raw, kind)


def _answerable(body: MessagesRequest) -> ChatRequest:
    """The chat that asks for the same answer."""
    chat = _as_chat(body)
    chat.max_completion_tokens, chat.timeout = body.max_tokens, body.timeout
    chat.temperature, chat.top_p, chat.top_k, chat.stop = body.temperature, body.top_p, body.top_k, body.stop_sequences
    return chat


def _as_chat(body: Conversation) -> ChatRequest:
    messages = messages_of(body.messages, body.system)
    choice = body.tool_choice
    parallel = None if choice is None else not getattr(choice, "disable_parallel_tool_use", None)
    last = messages[-1]
    return ChatRequest(
        model=body.model,
        messages=messages,
        continue_final_message=last["role"] == "assistant" and "tool_calls" not in last,
        tools=[
            Tool("function", FunctionDefinition(tool.name, tool.description, tool.input_schema, tool.strict)) for tool in body.tools or ()
        ],
        tool_choice=_choice(choice),
        parallel_tool_calls=parallel,
        reasoning_effort="none" if isinstance(body.thinking, ThinkingOff) else None,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _choice(choice: Any) -> ToolChoice | None:
    match choice:
        case None:
            return None
        case ToolChoiceTool():
            return NamedToolChoice("function", ChosenFunction(choice.name))
        case AnyChoice():
            return "required"
        case AutoChoice():
            return "auto"
        case _:
            return "none"


def _message(chat: ChatJob) -> MessageObject:
    usage = MessageUsage(input_tokens=0, output_tokens=0)
    return MessageObject(id=chat.job.id.replace("-", "_", 1), model=chat.job.model, usage=usage)


async def _events(
    writer: MessageWriter,
    reader: AnswerReader,
    first: tuple[int, RequestOutput],
    rest: AsyncGenerator[tuple[int, RequestOutput], None],
) -> AsyncGenerator[bytes, None]:
    counter = UsageCounter()
    opened = False
    async for index, output in chain(first, rest):
        counter.add(index, output)
        if not opened:
            opened = True
            for each in writer.opening(counter.usage()):
                yield typed_event(each)
        for delta in output.outputs:
            pieces = reader.feed(delta.text)
            if delta.finish_reason is not None:
                pieces += reader.finish()
            for each in writer.add(pieces):
                yield typed_event(each)
            if delta.finish_reason is not None:
                reason = reader.finish_reason(delta.finish_reason, delta.stop_reason)
                for each in writer.closing(reason, delta.stop_reason, counter.usage()):
                    yield typed_event(each)


class MessageStream(EventStream):
    """A reply of typed events. An error on the way is the last of them."""

    last = b""

    def failed(self, failure: BaseException) -> bytes:
        """The event of an error."""
        status, body = describe(failure)
        return typed_event(msgspec.to_builtins(anthropic_error(status, body.error.message)))
