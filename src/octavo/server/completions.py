"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.outputs import RequestOutput
from octavo.server.beams import check_beam_fields
from octavo.server.body import parse, read_json_object
from octavo.server.completion_choice import ChoiceWriter
from octavo.server.context import ServerContext
from octavo.server.errors import json_response
from octavo.server.generation import Job, begin, collect, make_job
from octavo.server.prompts import Bound, TokenPrompt, check_fits, check_room, tokenize_prompts, truncation
from octavo.server.rendering import render
from octavo.server.requests import CompletionRequest, TokenizeRequest
from octavo.server.responses import Completion, CompletionChoice
from octavo.server.sampling import check_many_logprobs, check_prompt_logprobs, generation_params, streams, wanted_logprobs
from octavo.server.streaming import EventStream, chain, event, while_connected
from octavo.server.usage import UsageCounter

DEFAULT_MAX_TOKENS = 16
# A reply holds a choice for each sample of each prompt, and the engine a request for each.
MAX_CHOICES = 4096


async def create_completion(ctx: ServerContext, request: Request) -> Response:
    """Answers with a completion of each prompt, whole or streamed."""
    raw = await read_json_object(request, ctx)
    body = parse(raw, CompletionRequest)
    stream = streams(body)
    check_beam_fields(body)
    job = await while_connected(request, ctx, _prepare(ctx, request, body))
    if stream:
        first, source = await begin(request, ctx, job)
        return EventStream(_chunks(ctx, job, first, source), source, ctx)
    outputs, usage = await collect(request, ctx, job)
    choices = [
        ChoiceWriter(ctx, job, prompt_index).write(output, choice)
        for prompt_index, output in enumerate(outputs)
        for choice in output.outputs
    ]
    return json_response(Completion(**job.header(ctx), choices=choices, usage=usage))


async def _prepare(ctx: ServerContext, request: Request, body: CompletionRequest) -> Job:
    ctx.model_name(body.model)
    computed, width_param = _computed(body)
    limit = ctx.llm.info.max_model_len
    _check_echo(body)
    prompts = await _prompts(ctx, body)
    if len(prompts) * computed > MAX_CHOICES:
        raise InvalidRequestError(
            f"{width_param}: {len(prompts)} prompts times {computed} make more than {MAX_CHOICES} choices.", param=width_param
        )
    # A token is computed in any case, of which then nothing is said.
    silent = body.max_tokens == 0
    max_tokens = 1 if silent else body.max_tokens
    if max_tokens is not None:
        check_room(prompts, max_tokens, limit, "max_tokens")
    else:
        # The default must not make a prompt too long that fits by itself; the engine ends each at its context.
        max_tokens = min(DEFAULT_MAX_TOKENS, limit - min(len(prompt.token_ids) for prompt in prompts))
    body.logprobs = wanted_logprobs(body.logprobs, ctx, "logprobs")
    body.prompt_logprobs = wanted_logprobs(body.prompt_logprobs, ctx, "prompt_logprobs")
    asked = [count for count in (body.prompt_logprobs, body.logprobs if body.echo else None) if count is not None]
    params = generation_params(
        body, ctx, computed=computed, max_tokens=max_tokens, logprobs=body.logprobs, prompt_logprobs=max(asked, default=None)
    )
    check_many_logprobs(prompts, params, body.logprobs, max(asked, default=None), "logprobs")
    echo = bool(body.echo)
    return make_job(ctx, request, body, "cmpl", prompts, params, body.logprobs, width_param, echo=echo, silent=silent)


def _check_echo(body: CompletionRequest) -> None:
    """Raises InvalidRequestError for fields around the prompt's part of a reply that can't be had together."""
    check_prompt_logprobs(body)
    if body.echo and body.use_beam_search and body.logprobs is not None:
        raise InvalidRequestError("logprobs: a beam search has none of the prompt, which echo asks for.", param="logprobs")
    if body.max_tokens != 0:
        return
    if not body.echo and body.prompt_logprobs is None:
        raise InvalidRequestError("max_tokens: must be at least 1 without echo or prompt_logprobs, not 0.", param="max_tokens")
    if body.min_tokens:
        raise InvalidRequestError(f"min_tokens: must be at most max_tokens (0), not {body.min_tokens}.", param="min_tokens")


async def _prompts(ctx: ServerContext, body: CompletionRequest) -> list[TokenPrompt]:
    """The prompts, or the one that the chat template makes of the messages in their place. Raises InvalidRequestError."""
    truncate = truncation(body, ctx.llm.info.max_model_len, body.max_tokens)
    if body.messages is None:
        if body.prompt is None:
            raise InvalidRequestError("prompt: is required.", param="prompt")
        return await tokenize_prompts(ctx, body.prompt, body.add_special_tokens, truncate)
    if body.prompt is not None:
        raise InvalidRequestError("messages: stand in place of a prompt; send either.", param="messages")
    add_special_tokens = bool(body.add_special_tokens)
    bound = None if truncate.count is not None else Bound(ctx.llm.info.max_model_len, "messages")
    conversation = TokenizeRequest(messages=body.messages, add_special_tokens=add_special_tokens)
    token_ids = truncate((await render(ctx, conversation, bound=bound)).token_ids)
    check_fits(token_ids, ctx.llm.info.max_model_len, "messages")
    return [TokenPrompt(token_ids, "messages")]


def _computed(body: CompletionRequest) -> tuple[int, str]:
    """How many completions of each prompt are computed, and the field that says so. Raises InvalidRequestError."""
    n = body.n or 1
    if body.best_of is None or body.best_of == n:
        return n, "n"
    if body.best_of < n:
        raise InvalidRequestError(f"best_of: must be at least n ({n}), not {body.best_of}.", param="best_of")
    if body.stream:
        raise InvalidRequestError(
            "best_of: which completions are the best is known only at their end; they can't be streamed.", param="best_of"
        )
    return body.best_of, "best_of"


async def _chunks(
    ctx: ServerContext, job: Job, first: tuple[int, RequestOutput], rest: AsyncGenerator[tuple[int, RequestOutput], None]
) -> AsyncGenerator[bytes, None]:
    counter = UsageCounter()
    writers = [ChoiceWriter(ctx, job, index // job.n) for index in range(job.choices)]
    header = job.header(ctx)

    def chunk(choices: list[CompletionChoice], usage: Any) -> bytes:
        return event(Completion(**header, choices=choices, usage=usage))

    async for prompt_index, output in chain(first, rest):
        counter.add(prompt_index, output)
        for delta in output.outputs:
            choice = writers[prompt_index * job.n + delta.index].write(output, delta)
            # Text may be held back until a stop string is decided; such an output has nothing to say yet.
            if choice.text or choice.finish_reason or choice.token_ids or (choice.logprobs and choice.logprobs.tokens):
                yield chunk([choice], counter.usage() if job.continuous_usage else None if job.include_usage else UNSET)
    if job.include_usage:
        yield chunk([], counter.usage())
