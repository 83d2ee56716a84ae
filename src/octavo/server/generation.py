"""What completions and chat share: start the generations of one HTTP request, and collect or stream their outputs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from octavo.api.prompts import TokensPrompt
from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.errors import EngineDeadError, InvalidRequestError, OctavoError
from octavo.protocol.outputs import RequestOutput
from octavo.protocol.sampling import SamplingParams
from octavo.server.best_of import best, by_index
from octavo.server.context import ServerContext
from octavo.server.prompts import TokenPrompt
from octavo.server.requests import Generation, JsonSchemaFormat, TokenGeneration
from octavo.server.responses import Usage
from octavo.server.schema_faults import Schemas
from octavo.server.streaming import first_item, merge, while_connected
from octavo.server.usage import UsageCounter


@dataclass(frozen=True, slots=True)
class Job:
    """One checked request: its prompts, how to sample or search, and what its reply is headed with.

    It has `n` choices for each prompt, with `logprobs` likeliest tokens at each position, or None; `width_param` is the field that says
    how many completions are computed. `engine_id` is the engine's name for it, which, other than `id`, no client can repeat. A `silent` one
    says nothing of the one token that is computed. The rest is how its choices are written.
    """

    id: str
    model: str
    prompts: list[TokenPrompt]
    params: SamplingParams | BeamSearchParams
    n: int
    logprobs: int | None
    width_param: str
    include_usage: bool
    continuous_usage: bool
    created: int
    engine_id: str
    cache_salt: str | None = None
    priority: int = 0
    echo: bool = False
    silent: bool = False
    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    skip_special_tokens: bool = True
    spaces: bool = True
    schema_param: str | None = None
    schemas: Schemas | None = None

    def header(self, ctx: ServerContext) -> dict[str, Any]:
        """What every reply and chunk of the request has in common."""
        return {"id": self.id, "created": self.created, "model": self.model, "system_fingerprint": ctx.fingerprint}

    @property
    def choices(self) -> int:
        """How many choices the reply has, prompt by prompt."""
        return len(self.prompts) * self.n


def make_job(
    ctx: ServerContext,
    request: Request,
    body: Generation,
    prefix: str,
    prompts: list[TokenPrompt],
    params: SamplingParams | BeamSearchParams,
    logprobs: int | None,
    width_param: str = "n",
    *,
    echo: bool = False,
    silent: bool = False,
) -> Job:
    """A Job for `body`, whose id is `prefix` and the request's own id."""
    options = body.stream_options
    told = body if isinstance(body, TokenGeneration) else TokenGeneration()
    state = request.state
    state.timeout = body.timeout
    if state.given_id is None:
        state.given_id = body.request_id
    name = f"{prefix}-{state.given_id or state.unique_id}"
    return Job(
        id=name,
        engine_id=name if state.given_id is None else f"{name}-{state.unique_id[:12]}",
        model=ctx.model_name(body.model),
        prompts=prompts,
        params=params,
        n=body.n or 1,
        logprobs=logprobs,
        width_param=width_param,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
        created=int(time.time()),
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
        echo=echo,
        silent=silent,
        prompt_logprobs=told.prompt_logprobs,
        return_token_ids=bool(told.return_token_ids),
        tokens_as_ids=bool(told.return_tokens_as_token_ids),
        skip_special_tokens=body.skip_special_tokens is not False,
        spaces=body.spaces_between_special_tokens is not False,
        schema_param="response_format.json_schema.schema" if isinstance(body.response_format, JsonSchemaFormat) else None,
    )


def run(ctx: ServerContext, job: Job, *, stream: bool) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Outputs of all prompts of `job` with the prompt's index: deltas when `stream`, else one for each prompt.

    Raises EngineDeadError at once when the engine is gone.
    """
    if not ctx.llm.is_alive:
        raise EngineDeadError("The engine has stopped; this server can't answer any more.")
    merged = _admitted(ctx, job, merge([_outputs(ctx, job, index, stream) for index in range(len(job.prompts))]))
    return _silenced(merged) if job.silent else merged


async def _admitted(
    ctx: ServerContext, job: Job, outputs: AsyncGenerator[tuple[int, RequestOutput], None]
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """`outputs`, where there is room for them."""
    width = job.params.beam_width if isinstance(job.params, BeamSearchParams) else job.params.n
    try:
        with ctx.admission.sequences(len(job.prompts) * width):
            async for each in outputs:
                yield each
    finally:
        await outputs.aclose()


async def _silenced(outputs: AsyncGenerator[tuple[int, RequestOutput], None]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """`outputs` without what was generated."""
    try:
        async for index, output in outputs:
            for choice in output.outputs:
                choice.text, choice.token_ids, choice.stop_reason = "", [], None
                choice.logprobs = None if choice.logprobs is None else []
                choice.finish_reason = choice.finish_reason and "length"
            yield index, output
    finally:
        await outputs.aclose()


def _outputs(ctx: ServerContext, job: Job, index: int, stream: bool) -> AsyncIterator[RequestOutput]:
    """Of the prompt at `index`."""
    prompt = _prompt(job.prompts[index].token_ids, job.cache_salt)
    request_id = job.engine_id if len(job.prompts) == 1 else f"{job.engine_id}-{index}"
    if isinstance(job.params, BeamSearchParams):
        return ctx.llm.beam_search(prompt, job.params, request_id, logprobs=job.logprobs, priority=job.priority)
    return ctx.llm.generate(prompt, job.params, request_id, stream=stream, priority=job.priority)


def _prompt(token_ids: list[int], cache_salt: str | None) -> TokensPrompt:
    prompt = TokensPrompt(prompt_token_ids=token_ids)
    if cache_salt is not None:
        prompt["cache_salt"] = cache_salt
    return prompt


@contextmanager
def _naming_field(job: Job) -> Iterator[None]:
    """Names the request's own field in an error that the model's side blames on its prompt or its number of beams."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param == "prompt" and len(job.prompts) == 1:
            error.param = job.prompts[0].param
        if (field := error.param or "").startswith("structured_outputs."):
            if job.schemas is not None:
                job.schemas.blame(error)
            elif job.schema_param is not None:
                error.param, error.message = job.schema_param, error.message.replace(field, job.schema_param, 1)
        if error.param == "beam_width":
            error.param, error.message = job.width_param, f"{job.width_param}: {error.message}."
        raise


async def collect(request: Request, ctx: ServerContext, job: Job) -> tuple[list[RequestOutput], Usage]:
    """The output of each prompt, in order, with the choices to return, and the usage, which counts what is not returned, too; given up when
    the client vanishes."""
    usage = UsageCounter()
    outputs: dict[int, RequestOutput] = {}
    results = run(ctx, job, stream=False)

    async def gather() -> None:
        async for index, output in results:
            usage.add(index, output)
            outputs[index] = output

    try:
        with _naming_field(job):
            await while_connected(request, ctx, gather())
    finally:
        await results.aclose()
    if len(outputs) != len(job.prompts):
        raise OctavoError("The engine ended this request without an answer.")
    searched = isinstance(job.params, BeamSearchParams)
    found = [outputs[index] for index in range(len(job.prompts))]
    for output in found:
        # A search gives its results in their order.
        output.outputs = by_index(output)[: job.n] if searched else best(output, job.n)
    return found, usage.usage()


async def begin(
    request: Request, ctx: ServerContext, job: Job
) -> tuple[tuple[int, RequestOutput], AsyncGenerator[tuple[int, RequestOutput], None]]:
    """The first delta of `job` and the generator of the rest, which the caller must close. Errors before that delta are raised."""
    source = run(ctx, job, stream=True)
    with _naming_field(job):
        return await first_item(request, ctx, source), source
