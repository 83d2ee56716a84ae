"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.outputs import CompletionOutput, RequestOutput
from octavo.server.beams import check_beam_fields
from octavo.server.body import parse, read_json_object
from octavo.server.context import ServerContext
from octavo.server.errors import json_response
from octavo.server.generation import Job, begin, collect, make_job
from octavo.server.logprobs import chat_logprobs
from octavo.server.messages import check_template_kwargs, normalize
from octavo.server.prompts import INLINE_CHARACTERS, TokenPrompt, check_fits, check_room, encode
from octavo.server.requests import ChatRequest
from octavo.server.responses import ChatChoice, ChatChunk, ChatCompletion, ChatLogprobs, ChatMessage, ChunkChoice, Delta
from octavo.server.sampling import check_logprobs, generation_params, streams
from octavo.server.streaming import EventStream, chain, event
from octavo.server.usage import UsageCounter


async def create_chat_completion(ctx: ServerContext, request: Request) -> Response:
    """Answers with the assistant's next message, whole or streamed."""
    raw = await read_json_object(request, ctx.options.max_body_bytes)
    if "prompt" in raw:
        raise InvalidRequestError("prompt: /v1/chat/completions takes messages; send a prompt to /v1/completions.", param="prompt")
    body = parse(raw, ChatRequest)
    stream = streams(body)
    check_beam_fields(body)
    job = await _prepare(ctx, request, body)
    if stream:
        first, source = await begin(request, ctx, job)
        return EventStream(_ChunkWriter(ctx, job).events(first, source), source, ctx)
    outputs, usage = await collect(request, ctx, job)
    choices = [_choice(ctx, job, choice) for choice in outputs[0]]
    return json_response(ChatCompletion(**job.header(ctx), choices=choices, usage=usage))


async def _prepare(ctx: ServerContext, request: Request, body: ChatRequest) -> Job:
    ctx.model_name(body.model)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequestError("top_logprobs: needs logprobs to be true.", param="top_logprobs")
    token_ids = await render(
        ctx,
        body.messages,
        add_generation_prompt=body.add_generation_prompt is not False,
        add_special_tokens=bool(body.add_special_tokens),
        template_kwargs=body.chat_template_kwargs,
    )
    check_fits(token_ids, ctx.llm.info.max_model_len, "messages")
    prompts = [TokenPrompt(token_ids, "messages")]
    param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = getattr(body, param)
    room = ctx.llm.info.max_model_len - len(token_ids)
    if max_tokens is not None:
        check_room(prompts, max_tokens, ctx.llm.info.max_model_len, param)
    else:
        max_tokens = min(room, ctx.llm.default_sampling.get("max_tokens") or room)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    check_logprobs(logprobs, ctx, "top_logprobs")
    params = generation_params(body, ctx, computed=body.n or 1, max_tokens=max_tokens, logprobs=logprobs)
    return make_job(ctx, request, body, "chatcmpl", prompts, params, logprobs)


async def render(
    ctx: ServerContext,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool,
    add_special_tokens: bool,
    template_kwargs: dict[str, Any] | None,
) -> list[int]:
    """Token ids of `messages` through the chat template. Raises InvalidRequestError that names the field at fault."""
    kwargs = check_template_kwargs(template_kwargs)

    def write() -> str:
        plain = normalize(messages, keep_developer=ctx.knows_developer)
        return ctx.llm.render_chat(plain, add_generation_prompt=add_generation_prompt, **kwargs)

    # A template is an interpreted program: a body of many messages keeps it busy for seconds.
    small = len(msgspec.json.encode((messages, kwargs))) <= INLINE_CHARACTERS
    text = write() if small else await asyncio.to_thread(write)
    # Templates write the special tokens themselves, so by default none are added to what they give.
    return await encode(ctx.llm.tokenizer, text, add_special_tokens)


def _logprobs(ctx: ServerContext, job: Job, output: CompletionOutput) -> ChatLogprobs | None:
    if job.logprobs is None:
        return None
    return chat_logprobs(output.logprobs or [], ctx.llm.tokenizer, job.logprobs)


def _choice(ctx: ServerContext, job: Job, output: CompletionOutput) -> ChatChoice:
    message = ChatMessage(ctx.options.response_role, output.text)
    return ChatChoice(output.index, message, _logprobs(ctx, job, output), output.finish_reason, output.stop_reason)


class _ChunkWriter:
    """The events of one streamed chat: a role for each choice, content as it comes, an end for each choice, and the usage if wanted."""

    def __init__(self, ctx: ServerContext, job: Job) -> None:
        self._ctx = ctx
        self._job = job
        self._header = job.header(ctx)
        self._counter = UsageCounter()

    async def events(
        self, first: tuple[int, RequestOutput], rest: AsyncGenerator[tuple[int, RequestOutput], None]
    ) -> AsyncGenerator[bytes, None]:
        opened = False
        async for prompt_index, output in chain(first, rest):
            self._counter.add(prompt_index, output)
            if not opened:
                opened = True
                for index in range(self._job.choices):
                    yield self._chunk(ChunkChoice(index, Delta(self._ctx.options.response_role, "")))
            for delta in output.outputs:
                for choice in self._choices(delta):
                    yield self._chunk(choice)
        if self._job.include_usage:
            yield self._event([], self._counter.usage())

    def _choices(self, output: CompletionOutput) -> Iterator[ChunkChoice]:
        logprobs = _logprobs(self._ctx, self._job, output)
        # Text may be held back until a stop string is decided; such an output has nothing to say yet.
        if output.text or (logprobs and logprobs.content):
            yield ChunkChoice(output.index, Delta(content=output.text), logprobs)
        if output.finish_reason is not None:
            yield ChunkChoice(output.index, Delta(), None, output.finish_reason, output.stop_reason)

    def _chunk(self, choice: ChunkChoice) -> bytes:
        usage = self._counter.usage() if self._job.continuous_usage else None if self._job.include_usage else UNSET
        return self._event([choice], usage)

    def _event(self, choices: list[ChunkChoice], usage: Any) -> bytes:
        return event(ChatChunk(**self._header, choices=choices, usage=usage))
