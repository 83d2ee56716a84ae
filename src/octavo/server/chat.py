"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.outputs import CompletionOutput, RequestOutput
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.structured_outputs import StructuredOutputsParams
from octavo.server.answer_grammar import answer_grammar
from octavo.server.answers import AnswerFormat, AnswerReader, count_reasoning_tokens, read_answer
from octavo.server.beams import check_beam_fields
from octavo.server.body import parse, read_json_object
from octavo.server.context import ServerContext
from octavo.server.errors import json_response
from octavo.server.generation import Job, begin, collect, make_job
from octavo.server.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.messages import content_text
from octavo.server.prompts import Bound, TokenPrompt, check_fits, check_room, truncation
from octavo.server.rendering import render
from octavo.server.requests import ChatRequest
from octavo.server.responses import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChunkChoice,
    CompletionTokensDetails,
    Delta,
    ToolCall,
    Usage,
)
from octavo.server.sampling import check_many_logprobs, check_prompt_logprobs, generation_params, streams, wanted_logprobs
from octavo.server.schema_faults import Schemas
from octavo.server.streaming import EventStream, chain, event, while_connected
from octavo.server.tool_use import ToolUse, tool_use
from octavo.server.usage import UsageCounter
from octavo.text.answer import CallArguments, CallStart, Content, Piece, Reasoning
from octavo.text.reasoning.registry import REASONING_PARSERS


@dataclass(frozen=True, slots=True)
class ChatJob:
    """A checked chat request: its generation, how its answers are read, who speaks, and what is put before each answer."""

    job: Job
    form: AnswerFormat
    role: str
    echo: str = ""


async def create_chat_completion(ctx: ServerContext, request: Request) -> Response:
    """Answers with the assistant's next message, whole or streamed."""
    raw = await read_json_object(request, ctx)
    if "prompt" in raw:
        raise InvalidRequestError("prompt: /v1/chat/completions takes messages; send a prompt to /v1/completions.", param="prompt")
    body = parse(raw, ChatRequest)
    stream = streams(body)
    check_beam_fields(body)
    chat = await while_connected(request, ctx, prepare_chat(ctx, request, body, "chatcmpl"))
    if stream:
        first, source = await begin(request, ctx, chat.job)
        return EventStream(_ChunkWriter(ctx, chat).events(first, source), source, ctx)
    outputs, usage = await collect(request, ctx, chat.job)
    (output,) = outputs
    choices = [_choice(ctx, chat, choice) for choice in output.outputs]
    if chat.form.reasoning is not None:
        thought = sum(count_reasoning_tokens(chat.form, ctx.llm.tokenizer, choice.token_ids) for choice in output.outputs)
        usage.completion_tokens_details = CompletionTokensDetails(thought)
    reply = ChatCompletion(**chat.job.header(ctx), choices=choices, usage=usage)
    if chat.job.prompt_logprobs is not None:
        reply.prompt_logprobs = prompt_logprobs(output.prompt_logprobs, chat.job.prompt_logprobs)
    if chat.job.return_token_ids:
        reply.prompt_token_ids = chat.job.prompts[0].token_ids
    return json_response(reply)


async def prepare_chat(ctx: ServerContext, request: Request, body: ChatRequest, prefix: str) -> ChatJob:
    """The checked job of `body`, whose id begins with `prefix`. Raises InvalidRequestError that names the field at fault."""
    ctx.model_name(body.model)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequestError("top_logprobs: needs logprobs to be true.", param="top_logprobs")
    if body.include_reasoning is False and not ctx.options.reasoning_parser:
        raise InvalidRequestError(
            "include_reasoning: can't be false on a server that does not tell thinking from answers (octavo serve --reasoning-parser).",
            param="include_reasoning",
        )
    tools = tool_use(ctx, body)
    bound = None if body.truncate_prompt_tokens is not None else Bound(ctx.llm.info.max_model_len, "messages")
    rendered = await render(ctx, body, tools=tools.told, bound=bound)
    param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = getattr(body, param)
    token_ids = truncation(body, ctx.llm.info.max_model_len, max_tokens)(rendered.token_ids)
    check_fits(token_ids, ctx.llm.info.max_model_len, "messages")
    form = _answer_format(ctx, body, tools, rendered.text)
    if _lost(ctx, form.markers()):
        # What the answer is read by must be in its text.
        body.skip_special_tokens = False
    prompts = [TokenPrompt(token_ids, "messages")]
    room = ctx.llm.info.max_model_len - len(token_ids)
    if max_tokens is not None:
        check_room(prompts, max_tokens, ctx.llm.info.max_model_len, param)
    else:
        max_tokens = min(room, ctx.llm.default_sampling.get("max_tokens") or room)
    logprobs = wanted_logprobs((body.top_logprobs or 0) if body.logprobs else None, ctx, "top_logprobs")
    check_prompt_logprobs(body)
    body.prompt_logprobs = wanted_logprobs(body.prompt_logprobs, ctx, "prompt_logprobs")
    params = generation_params(
        body, ctx, computed=body.n or 1, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=body.prompt_logprobs
    )
    check_many_logprobs(prompts, params, logprobs, body.prompt_logprobs, "top_logprobs")
    job = make_job(ctx, request, body, prefix, prompts, params, logprobs)
    if isinstance(params, SamplingParams):
        thinking = form.reasoning() if form.reasoning is not None else None
        asked = params.structured_outputs
        params.structured_outputs = answer_grammar(ctx, asked, tools, thinking)
        if asked is not None and asked.kind != "grammar" and tools.form is not None:
            form = replace(form, calls_begin=tools.form.trigger)
        field = _schema_param(body, tools, job.schema_param)
        job = replace(job, schema_param=field, schemas=_schemas(asked, params.structured_outputs, tools, field))
    return ChatJob(job, form, *_speaker(ctx, body))


def _schema_param(body: ChatRequest, tools: ToolUse, param: str | None) -> str | None:
    """The field at fault where the grammar of the answer can't be used."""
    if tools.forced or (tools.strict and param is None and body.structured_outputs is None):
        return "tools"
    return param or ("structured_outputs" if body.structured_outputs is not None else None)


def _schemas(
    asked: StructuredOutputsParams | None, made: StructuredOutputsParams | None, tools: ToolUse, param: str | None
) -> Schemas | None:
    """What the grammar of an answer was made of, other than a grammar that the request brings."""
    if made is None or made is asked or made.grammar is None:
        return None
    places = {function.name: place for place, function in enumerate(tools.functions)}
    return Schemas(made.grammar, [places[function.name] for function in tools.forced or tools.functions], param or "structured_outputs")


def _answer_format(ctx: ServerContext, body: ChatRequest, tools: ToolUse, prompt: str) -> AnswerFormat:
    kind = REASONING_PARSERS.get(ctx.options.reasoning_parser)
    reasoning = None if kind is None else (lambda: kind(prompt))
    return AnswerFormat(reasoning, tools.parser, body.include_reasoning is not False, tools.several)


def _lost(ctx: ServerContext, markers: Iterable[str]) -> bool:
    """Whether some of `markers` are special tokens, which are left out of texts."""
    tokenizer = ctx.llm.tokenizer
    return any(marker in tokenizer.special_tokens for marker in markers)


def _speaker(ctx: ServerContext, body: ChatRequest) -> tuple[str, str]:
    """The role of the answer, and the text before it: that of the last message, where the answer goes on with it and is to repeat it."""
    last = body.messages[-1]
    begins = not body.continue_final_message and body.add_generation_prompt is not False
    role = ctx.options.response_role if begins else str(last["role"])
    if not body.echo:
        return role, ""
    if last["role"] != role:
        raise InvalidRequestError(
            f"echo: repeats the last message, of role {last['role']}, only before an answer of that role, which is of role {role} here.",
            param="echo",
        )
    return role, content_text(last)


def _logprobs(ctx: ServerContext, job: Job, output: CompletionOutput) -> ChatLogprobs | None:
    if job.logprobs is None:
        return None
    return chat_logprobs(output.logprobs or [], ctx.llm.tokenizer, job.logprobs, as_ids=job.tokens_as_ids)


def _choice(ctx: ServerContext, chat: ChatJob, output: CompletionOutput) -> ChatChoice:
    answer = read_answer(chat.form, output.text, output.finish_reason, output.stop_reason)
    content: str | None = chat.echo + answer.content
    message = ChatMessage(chat.role, content if content or not (answer.calls or answer.reasoning) else None)
    if answer.reasoning:
        message.reasoning = answer.reasoning
    if answer.calls:
        message.tool_calls = [
            ToolCall(id=call.id, type="function", function=CalledFunction(call.name, call.arguments)) for call in answer.calls
        ]
    choice = ChatChoice(output.index, message, _logprobs(ctx, chat.job, output), answer.finish_reason, output.stop_reason)
    choice.token_ids = output.token_ids if chat.job.return_token_ids else UNSET
    return choice


class _ChoiceWriter:
    """The deltas of one streamed choice."""

    def __init__(self, form: AnswerFormat) -> None:
        self.reader = AnswerReader(form)
        self.token_ids: list[int] = []

    def deltas(self, output: CompletionOutput) -> list[Delta]:
        """What `output` adds."""
        self.token_ids += output.token_ids
        pieces = self.reader.feed(output.text)
        if output.finish_reason is not None:
            pieces += self.reader.finish()
        deltas: list[Delta] = []
        called = self.reader.calls - sum(isinstance(piece, CallStart) for piece in pieces)
        for piece in pieces:
            called += isinstance(piece, CallStart)
            self._add(deltas, piece, called - 1)
        return deltas

    def _add(self, deltas: list[Delta], piece: Piece, index: int) -> None:
        match piece:
            case Content(text):
                deltas.append(Delta(content=text))
            case Reasoning(text):
                deltas.append(Delta(reasoning=text))
            case CallStart(name):
                call = ToolCall(index=index, id=self.reader.new_call_id(), type="function", function=CalledFunction(name))
                deltas.append(Delta(tool_calls=[call]))
            case CallArguments(text):
                last = deltas[-1].tool_calls if deltas else UNSET
                if isinstance(last, list):
                    last[0].function.arguments += text
                else:
                    deltas.append(Delta(tool_calls=[ToolCall(index=index, function=CalledFunction(arguments=text))]))


class _ChunkWriter:
    """The events of one streamed chat: a role for each choice, what it says as it comes, an end for each choice, and the usage if
    wanted."""

    def __init__(self, ctx: ServerContext, chat: ChatJob) -> None:
        self._ctx = ctx
        self._chat = chat
        self._job = chat.job
        self._header = chat.job.header(ctx)
        self._counter = UsageCounter()
        self._prompt_token_ids: list[int] | UnsetType = chat.job.prompts[0].token_ids if chat.job.return_token_ids else UNSET
        self._writers = [_ChoiceWriter(chat.form) for _ in range(chat.job.choices)]

    async def events(
        self, first: tuple[int, RequestOutput], rest: AsyncGenerator[tuple[int, RequestOutput], None]
    ) -> AsyncGenerator[bytes, None]:
        opened = False
        async for prompt_index, output in chain(first, rest):
            self._counter.add(prompt_index, output)
            if not opened:
                opened = True
                for index in range(self._job.choices):
                    yield self._chunk(ChunkChoice(index, Delta(self._chat.role, self._chat.echo)))
            for delta in output.outputs:
                for choice in self._choices(delta):
                    yield self._chunk(choice)
        if self._job.include_usage:
            yield self._event([], self._usage())

    def _choices(self, output: CompletionOutput) -> Iterator[ChunkChoice]:
        writer = self._writers[output.index]
        deltas = writer.deltas(output)
        logprobs = _logprobs(self._ctx, self._job, output)
        # Text may be held back until a stop string or a tag is decided; such an output has nothing to say yet.
        token_ids: list[int] | UnsetType = output.token_ids if self._job.return_token_ids else UNSET
        if not deltas and (token_ids or (logprobs and logprobs.content)):
            deltas.append(Delta(content=""))
        for place, delta in enumerate(deltas):
            yield ChunkChoice(output.index, delta, None if place else logprobs, token_ids=UNSET if place else token_ids)
        if output.finish_reason is not None:
            reason = writer.reader.finish_reason(output.finish_reason, output.stop_reason)
            yield ChunkChoice(output.index, Delta(), None, reason, output.stop_reason)

    def _usage(self) -> Usage:
        usage = self._counter.usage()
        if self._chat.form.reasoning is not None:
            counts = (count_reasoning_tokens(self._chat.form, self._ctx.llm.tokenizer, writer.token_ids) for writer in self._writers)
            usage.completion_tokens_details = CompletionTokensDetails(sum(counts))
        return usage

    def _chunk(self, choice: ChunkChoice) -> bytes:
        usage = self._counter.usage() if self._job.continuous_usage else None if self._job.include_usage else UNSET
        return self._event([choice], usage)

    def _event(self, choices: list[ChunkChoice], usage: Any) -> bytes:
        chunk = ChatChunk(**self._header, choices=choices, usage=usage, prompt_token_ids=self._prompt_token_ids)
        self._prompt_token_ids = UNSET
        return event(chunk)
