"""POST /tokenize and /detokenize and GET /tokenizer_info, in vLLM's shapes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from octavo.protocol.errors import InvalidRequestError
from octavo.server.body import parse, read_json_object
from octavo.server.context import ServerContext
from octavo.server.errors import json_response
from octavo.server.prompts import INLINE_CHARACTERS, check_token_ids, encode
from octavo.server.rendering import render
from octavo.server.requests import DetokenizeRequest, TokenizeRequest
from octavo.server.responses import Prompt, TokenizerInfo, Tokens
from octavo.server.streaming import while_connected
from octavo.server.tool_use import check_place, told_tools
from octavo.utils.background import in_background

# Fields that say how messages are written out.
_OF_MESSAGES = (
    *("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs"),
    *("documents", "reasoning_effort", "tools"),
)


async def tokenize(ctx: ServerContext, request: Request) -> Response:
    """Answers with the token ids of a prompt, or of messages through the chat template. Text may be longer than the context."""
    body = parse(await read_json_object(request, ctx), TokenizeRequest)
    ctx.model_name(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("prompt: give either prompt or messages.", param="prompt")
    if body.messages is not None:
        if body.tools:
            check_place(ctx, ctx.templates.choose(tools=True, requested=body.chat_template))
        token_ids = (await while_connected(request, ctx, render(ctx, body, tools=told_tools(body.tools)))).token_ids
    else:
        assert body.prompt is not None
        for name in _OF_MESSAGES:
            if getattr(body, name) is not None:
                raise InvalidRequestError(f"{name}: goes with messages, not with prompt.", param=name)
        token_ids = await while_connected(request, ctx, encode(ctx.llm.tokenizer, body.prompt, body.add_special_tokens is not False))
    texts = await _texts(ctx, token_ids) if body.return_token_strs else None
    return json_response(Tokens(len(token_ids), ctx.llm.info.max_model_len, token_ids, texts))


async def _texts(ctx: ServerContext, token_ids: list[int]) -> list[str]:
    """Each token as text; many are made in a thread."""
    if len(token_ids) <= INLINE_CHARACTERS:
        return list(map(ctx.llm.tokenizer.token_text, token_ids))
    return await in_background(lambda: list(map(ctx.llm.tokenizer.token_text, token_ids)))


async def detokenize(ctx: ServerContext, request: Request) -> Response:
    """Answers with the text of token ids, special tokens included."""
    body = parse(await read_json_object(request, ctx), DetokenizeRequest)
    ctx.model_name(body.model)
    check_token_ids(body.tokens, ctx.llm.info.vocab_size, "tokens")
    text = await in_background(ctx.llm.tokenizer.decode, body.tokens, False)
    return json_response(Prompt(text))


async def tokenizer_info(ctx: ServerContext, request: Request) -> Response:
    """Answers with what a client needs to know of the tokenizer that it uses over /tokenize."""
    tokenizer = ctx.llm.tokenizer
    info = TokenizerInfo(tokenizer.bos_token, tokenizer.eos_token, tokenizer.chat_template, ctx.llm.info.max_model_len)
    return json_response(info)
