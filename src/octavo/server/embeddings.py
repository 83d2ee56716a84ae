"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from octavo.api.embedding import check_dimensions
from octavo.api.prompts import TokensPrompt, truncated
from octavo.protocol.errors import EngineDeadError, InvalidRequestError
from octavo.protocol.outputs import EmbeddingRequestOutput
from octavo.protocol.pooling import PoolingParams
from octavo.server.body import parse, read_json_object
from octavo.server.context import ServerContext
from octavo.server.errors import json_response
from octavo.server.prompts import Bound, check_added, check_token_ids, encode, split_prompts
from octavo.server.requests import EmbeddingRequest
from octavo.server.responses import EmbeddingData, EmbeddingList, EmbeddingUsage
from octavo.server.streaming import while_connected


async def create_embeddings(ctx: ServerContext, request: Request) -> Response:
    """Answers with a vector for each input."""
    body = parse(await read_json_object(request, ctx), EmbeddingRequest)
    model = ctx.model_name(body.model)
    if not ctx.llm.is_alive:
        raise EngineDeadError("The engine has stopped; this server can't answer any more.")
    check_dimensions(body.dimensions, ctx.llm.info.hidden_size)
    params = PoolingParams(body.pooling or ctx.options.pooling, body.normalize is not False)
    inputs = await while_connected(request, ctx, _inputs(ctx, body))
    name = f"embd-{request.state.unique_id}"
    request.state.timeout = body.timeout

    async def embed(index: int, prompt: TokensPrompt) -> EmbeddingRequestOutput:
        return await ctx.llm.embed(prompt, params, f"{name}-{index}", priority=body.priority or 0)

    async def embed_all() -> list[EmbeddingRequestOutput]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(embed(index, prompt)) for index, prompt in enumerate(inputs)]
        return [task.result() for task in tasks]

    try:
        with ctx.admission.sequences(len(inputs)):
            outputs = await while_connected(request, ctx, embed_all())
    except BaseExceptionGroup as errors:
        # One that failed has ended all.
        raise _first(errors) from None
    data = [EmbeddingData(index, _encoded(output.outputs.embedding, body.encoding_format)) for index, output in enumerate(outputs)]
    count = sum(len(output.prompt_token_ids) for output in outputs)
    return json_response(EmbeddingList(name, int(time.time()), data, model, EmbeddingUsage(count, count)))


def _first(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors


async def _inputs(ctx: ServerContext, body: EmbeddingRequest) -> list[TokensPrompt]:
    """Token ids of each input. Raises InvalidRequestError for one that is empty, too long or out of range."""
    made = []
    if body.truncate_prompt_tokens == 0:
        raise InvalidRequestError("truncate_prompt_tokens: must be -1 or at least 1, not 0.", param="truncate_prompt_tokens")
    limit = ctx.llm.info.max_model_len
    for path, text in _split(body.input):
        if isinstance(text, str):
            bound = None if body.truncate_prompt_tokens is not None else Bound(limit, path)
            ids = await encode(ctx.llm.tokenizer, text, body.add_special_tokens is not False, bound)
        else:
            check_added(body.add_special_tokens, path)
            ids = text
        check_token_ids(ids, ctx.llm.info.vocab_size, path)
        ids = truncated(ids, body.truncate_prompt_tokens, limit)
        if not ids:
            raise InvalidRequestError(f"{path}: gives no tokens.", param=path)
        if len(ids) > limit:
            raise InvalidRequestError(
                f"{path}: has {len(ids)} tokens, but the model's context is {limit}.", param=path, code="context_length_exceeded"
            )
        made.append(TokensPrompt(prompt_token_ids=ids))
    return made


def _split(value: Any) -> list[tuple[str, str | list[Any]]]:
    """The inputs, each with its dotted path; they have the forms of a `prompt`."""
    try:
        return [(path.replace("prompt", "input", 1), text) for path, text in split_prompts(value)]
    except InvalidRequestError as error:
        message, param = error.message.replace("prompt", "input", 1), (error.param or "").replace("prompt", "input", 1)
        raise InvalidRequestError(message, param=param) from None


def _encoded(vector: list[float], form: str | None) -> list[float] | str:
    return base64.b64encode(np.array(vector, "<f4").tobytes()).decode() if form == "base64" else vector
