"""POST /v1/responses, which answers and keeps nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.outputs import RequestOutput
from octavo.server.answers import AnswerReader, count_reasoning_tokens
from octavo.server.body import parse, read_json_object
from octavo.server.chat import ChatJob, prepare_chat
from octavo.server.context import ServerContext
from octavo.server.errors import ErrorBody, ErrorDetail, describe, json_response
from octavo.server.generation import begin, collect
from octavo.server.own_paths import own_paths
from octavo.server.requests import ChatRequest, JsonObjectFormat, JsonSchema, JsonSchemaFormat, TextFormat
from octavo.server.responses import Usage
from octavo.server.responses_fields import ResponseFunctionChoice, ResponsesRequest, SchemaFormat
from octavo.server.responses_input import messages_of
from octavo.server.responses_objects import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)
from octavo.server.responses_writer import Event, ResponseWriter
from octavo.server.streaming import EventStream, chain, typed_event, while_connected
from octavo.server.tool_fields import ChosenFunction, FunctionDefinition, NamedToolChoice, Tool
from octavo.server.usage import UsageCounter

# Fields that a chat request has under the same name.
_ALIKE = (
    *("model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "stop"),
    *("stop_token_ids", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "parallel_tool_calls", "include_reasoning"),
    *("chat_template_kwargs", "cache_salt", "priority", "timeout", "request_id", "min_tokens", "logit_bias", "structured_outputs"),
)
# What the same is called in chats.
_CALLED = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
# Beginnings of the paths of a chat request's fields, in the words of this one.
_PATHS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "tools.*.function": "tools.*",
    "tool_choice.function.name": "tool_choice.name",
    "reasoning_effort": "reasoning.effort",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
}


async def create_response(ctx: ServerContext, request: Request) -> Response:
    """Answers an input, whole or as events."""
    raw = await read_json_object(request, ctx)
    for name, ours in _CALLED.items():
        if name in raw:
            raise InvalidRequestError(f"{name}: unknown field; /v1/responses calls it {ours}.", param=name)
    body = parse(raw, ResponsesRequest)
    with own_paths(_PATHS):
        chat = await while_connected(request, ctx, prepare_chat(ctx, request, _as_chat(body), "resp"))
        response = _response(ctx, body, chat)
        reader = AnswerReader(chat.form)
        writer = ResponseWriter(response, reader.new_call_id)
        if body.stream:
            first, source = await begin(request, ctx, chat.job)
            return ResponseStream(_events(ctx, chat, writer, reader, first, source), source, ctx, writer)
        outputs, usage = await collect(request, ctx, chat.job)
    (output,) = outputs[0].outputs
    thought = count_reasoning_tokens(chat.form, ctx.llm.tokenizer, output.token_ids)
    list(writer.add([*reader.feed(output.text), *reader.finish()]))
    list(_end(writer, reader.finish_reason(output.finish_reason, output.stop_reason), usage, thought))
    return json_response(response)


async def get_response(ctx: ServerContext, request: Request) -> Response:
    """Nothing: responses are not kept."""
    detail = ErrorDetail("This server stores no responses, so none can be fetched by its id.", "not_found_error", "response_id")
    return json_response(ErrorBody(detail), 404)


def _as_chat(body: ResponsesRequest) -> ChatRequest:
    """The chat that asks for the same."""
    alike = {name: getattr(body, name) for name in _ALIKE}
    choice = body.tool_choice
    return ChatRequest(
        **alike,
        messages=messages_of(body.input, body.instructions),
        max_completion_tokens=body.max_output_tokens,
        tools=[
            Tool("function", FunctionDefinition(tool.name, tool.description, tool.parameters, tool.strict)) for tool in body.tools or ()
        ],
        tool_choice=NamedToolChoice("function", ChosenFunction(choice.name)) if isinstance(choice, ResponseFunctionChoice) else choice,
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
        response_format=_format(body.text.format) if body.text is not None else None,
    )


def _format(wanted: TextFormat | JsonObjectFormat | SchemaFormat | None) -> JsonObjectFormat | JsonSchemaFormat | None:
    """What the text must be, as a chat request has it."""
    if isinstance(wanted, SchemaFormat):
        return JsonSchemaFormat(JsonSchema(wanted.name, wanted.description, wanted.schema_, wanted.strict))
    return wanted if isinstance(wanted, JsonObjectFormat) else None


def _response(ctx: ServerContext, body: ResponsesRequest, chat: ChatJob) -> ResponseObject:
    defaults = ctx.llm.default_sampling
    return ResponseObject(
        id=chat.job.id.replace("-", "_", 1),
        created_at=chat.job.created,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        model=chat.job.model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": body.reasoning.effort if body.reasoning is not None else None, "summary": None},
        safety_identifier=body.safety_identifier,
        temperature=_first(body.temperature, defaults.get("temperature"), 1.0),
        top_p=_first(body.top_p, defaults.get("top_p"), 1.0),
        text={"format": msgspec.to_builtins(body.text.format) if body.text and body.text.format else {"type": "text"}},
        tool_choice=msgspec.to_builtins(body.tool_choice or "auto"),
        tools=[msgspec.to_builtins(tool) for tool in body.tools or ()],
        user=body.user,
        metadata=body.metadata or {},
    )


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _end(writer: ResponseWriter, finish_reason: str | None, usage: Usage, thought: int) -> Iterator[Event]:
    """The last events of an answer that came to an end."""
    response = writer.response
    response.usage = ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(thought),
        total_tokens=usage.total_tokens,
    )
    if finish_reason == "length":
        response.incomplete_details = IncompleteDetails("max_output_tokens")
        yield from writer.closing("incomplete")
    else:
        response.completed_at = int(time.time())
        yield from writer.closing("completed", cut_call=finish_reason != "tool_calls")


async def _events(
    ctx: ServerContext,
    chat: ChatJob,
    writer: ResponseWriter,
    reader: AnswerReader,
    first: tuple[int, RequestOutput],
    rest: AsyncGenerator[tuple[int, RequestOutput], None],
) -> AsyncGenerator[bytes, None]:
    counter = UsageCounter()
    token_ids: list[int] = []
    finish_reason: str | None = None
    for each in writer.opening():
        yield typed_event(each)
    async for index, output in chain(first, rest):
        counter.add(index, output)
        for delta in output.outputs:
            token_ids += delta.token_ids
            pieces = reader.feed(delta.text)
            if delta.finish_reason is not None:
                pieces += reader.finish()
                finish_reason = reader.finish_reason(delta.finish_reason, delta.stop_reason)
            for each in writer.add(pieces):
                yield typed_event(each)
    for each in _end(writer, finish_reason, counter.usage(), count_reasoning_tokens(chat.form, ctx.llm.tokenizer, token_ids)):
        yield typed_event(each)


class ResponseStream(EventStream):
    """A reply of typed events. An error on the way ends the response as failed."""

    last = b""

    def __init__(
        self, events: AsyncGenerator[bytes, None], source: AsyncGenerator[Any, None], ctx: ServerContext, writer: ResponseWriter
    ) -> None:
        super().__init__(events, source, ctx)
        self._writer = writer

    def failed(self, failure: BaseException) -> bytes:
        """The events of a failure."""
        status, body = describe(failure)
        code = body.error.code or ("invalid_prompt" if status < 500 else "server_error")
        self._writer.response.error = ResponseFailure(code, body.error.message)
        return b"".join(map(typed_event, self._writer.closing("failed")))
