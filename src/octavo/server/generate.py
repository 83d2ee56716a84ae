"""POST /generate: what vLLM's first server offered, before it had the OpenAI API."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.outputs import RequestOutput
from octavo.server.beams import check_beam_fields
from octavo.server.body import parse, read_json_object
from octavo.server.completions import DEFAULT_MAX_TOKENS
from octavo.server.context import ServerContext
from octavo.server.errors import describe, json_response
from octavo.server.generation import Job, begin, collect, make_job
from octavo.server.prompts import check_room, tokenize_prompts, truncation
from octavo.server.requests import GenerateRequest
from octavo.server.responses import GeneratedText
from octavo.server.sampling import generation_params
from octavo.server.streaming import EventStream, chain, while_connected


async def generate(ctx: ServerContext, request: Request) -> Response:
    """Answers with the prompt and what follows it, `n` times; streamed, each line is a JSON object with all the text so far."""
    body = parse(await read_json_object(request, ctx), GenerateRequest)
    if body.stream_options is not None:
        raise InvalidRequestError("stream_options: has no meaning for /generate.", param="stream_options")
    check_beam_fields(body)
    job = await while_connected(request, ctx, _prepare(ctx, request, body))
    if body.stream:
        first, source = await begin(request, ctx, job)
        return LineStream(_lines(body.prompt, job, first, source), source, ctx)
    outputs, _ = await collect(request, ctx, job)
    return json_response(GeneratedText([body.prompt + choice.text for choice in outputs[0].outputs]))


async def _prepare(ctx: ServerContext, request: Request, body: GenerateRequest) -> Job:
    ctx.model_name(body.model)
    limit = ctx.llm.info.max_model_len
    truncate = truncation(body, limit, body.max_tokens)
    prompts = await tokenize_prompts(ctx, body.prompt, body.add_special_tokens, truncate)
    if body.max_tokens is not None:
        check_room(prompts, body.max_tokens, limit, "max_tokens")
    max_tokens = body.max_tokens or min(DEFAULT_MAX_TOKENS, limit - len(prompts[0].token_ids))
    params = generation_params(body, ctx, computed=body.n or 1, max_tokens=max_tokens, logprobs=None)
    return make_job(ctx, request, body, "generate", prompts, params, None)


class LineStream(EventStream):
    """A reply of JSON objects, one a line. An error on the way becomes a last one `{"error": …}`."""

    media_type = "application/x-ndjson"
    last = b""

    def failed(self, failure: BaseException) -> bytes:
        """The line of an error."""
        return _line(describe(failure)[1])


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


async def _lines(
    prompt: str, job: Job, first: tuple[int, RequestOutput], rest: AsyncGenerator[tuple[int, RequestOutput], None]
) -> AsyncGenerator[bytes, None]:
    texts = [prompt] * job.n
    async for _, output in chain(first, rest):
        for delta in output.outputs:
            texts[delta.index] += delta.text
        # Text may be held back until a stop string is decided; such an output has nothing to say yet.
        if output.finished or any(delta.text for delta in output.outputs):
            yield _line(GeneratedText(texts))
