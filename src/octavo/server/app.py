"""The application: routes, error handlers and the edge put together over one model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from octavo._version import __version__
from octavo.api.metrics import Metrics
from octavo.config.server import ServerOptions
from octavo.protocol.errors import OctavoError
from octavo.server.anthropic_fields import CountTokensRequest, MessagesRequest
from octavo.server.anthropic_objects import MessageObject, TokenCount
from octavo.server.anthropic_route import count_tokens, create_message
from octavo.server.chat import create_chat_completion
from octavo.server.completions import create_completion
from octavo.server.context import ServedLLM, ServerContext
from octavo.server.edge import Edge
from octavo.server.embeddings import create_embeddings
from octavo.server.errors import ErrorBody, on_http_exception, on_octavo_error
from octavo.server.generate import LineStream, generate
from octavo.server.kv_cache import PAGE, RESET_FLAGS, list_kv_blocks, reset_prefix_cache, save_prefix_cache
from octavo.server.models import get_model, health, list_models, version
from octavo.server.openapi import Operation, complete
from octavo.server.requests import ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest, GenerateRequest, TokenizeRequest
from octavo.server.responses import (
    ChatCompletion,
    Completion,
    EmbeddingList,
    GeneratedText,
    Health,
    KVBlocks,
    ModelCard,
    ModelList,
    PrefixCacheReset,
    PrefixCacheSaved,
    Prompt,
    TokenizerInfo,
    Tokens,
    Version,
)
from octavo.server.responses_fields import ResponsesRequest
from octavo.server.responses_objects import ResponseObject
from octavo.server.responses_route import create_response, get_response
from octavo.server.tokenize import detokenize, tokenize, tokenizer_info

Handler = Callable[[ServerContext, Request], Awaitable[Response]]

_DESCRIPTION = "Serves a large language model over the OpenAI API. Fields beyond OpenAI's are vLLM's."


def _routes() -> list[tuple[Operation, Handler, str]]:
    return [
        (Operation("/v1/models", "get", None, ModelList), list_models, "List the served models"),
        (Operation("/v1/models/{model_id}", "get", None, ModelCard), get_model, "Describe a served model"),
        (Operation("/v1/completions", "post", CompletionRequest, Completion, streams=True), create_completion, "Complete a prompt"),
        (
            Operation("/v1/chat/completions", "post", ChatRequest, ChatCompletion, streams=True),
            create_chat_completion,
            "Continue a conversation",
        ),
        (Operation("/v1/embeddings", "post", EmbeddingRequest, EmbeddingList), create_embeddings, "Turn text into vectors"),
        (
            Operation("/generate", "post", GenerateRequest, GeneratedText, streams=True, stream_type=LineStream.media_type),
            generate,
            "Complete a prompt, in vLLM's first API",
        ),
        (
            Operation("/v1/responses", "post", ResponsesRequest, ResponseObject, streams=True),
            create_response,
            "Answer an input; nothing is stored",
        ),
        (
            Operation("/v1/responses/{response_id}", "get", None, ErrorBody, any_query=True),
            get_response,
            "Nothing: responses are not stored",
        ),
        (
            Operation("/v1/messages", "post", MessagesRequest, MessageObject, streams=True),
            create_message,
            "Continue a conversation as Anthropic's API does",
        ),
        (
            Operation("/v1/messages/count_tokens", "post", CountTokensRequest, TokenCount),
            count_tokens,
            "Count the tokens of a conversation",
        ),
        (Operation("/tokenize", "post", TokenizeRequest, Tokens), tokenize, "Turn text or messages into token ids"),
        (Operation("/detokenize", "post", DetokenizeRequest, Prompt), detokenize, "Turn token ids into text"),
        (
            Operation("/reset_prefix_cache", "post", None, PrefixCacheReset, flags=RESET_FLAGS),
            reset_prefix_cache,
            "Forget the prompts that the KV cache holds",
        ),
        (Operation("/kv/blocks", "get", None, KVBlocks, wholes=PAGE), list_kv_blocks, "What the blocks of the KV cache hold, and for whom"),
        (
            Operation("/save_prefix_cache", "post", None, PrefixCacheSaved),
            save_prefix_cache,
            "Save the prompts that the KV cache holds to --prefix-cache-dir",
        ),
        (Operation("/health", "get", None, Health, any_query=True), health, "Whether the engine lives"),
        (Operation("/tokenizer_info", "get", None, TokenizerInfo), tokenizer_info, "What begins and ends texts, and the chat template"),
        (Operation("/version", "get", None, Version), version, "Octavo's version"),
        (Operation("/metrics", "get", None, None, any_query=True), _metrics, "Prometheus metrics"),
    ]


async def _metrics(ctx: ServerContext, request: Request) -> Response:
    body, content_type = request.app.state.metrics.render()
    return Response(body, headers={"Content-Type": content_type})


def build_app(llm: ServedLLM, options: ServerOptions, metrics: Metrics | None = None) -> FastAPI:
    """The ASGI application that serves `llm`. `metrics` is the recorder that `llm` was started with; without one, only edges are counted.

    `app.state.context` is its ServerContext, whose `closing` event ends running requests.
    """
    if metrics is None:
        metrics = Metrics()
    ctx = ServerContext(llm, options, metrics)
    metrics.attach(ctx.model_names[0], llm.info)
    app = FastAPI(title="Octavo", version=__version__, description=_DESCRIPTION, redirect_slashes=False)
    app.state.context = ctx
    app.state.metrics = metrics
    routes = _routes()
    for operation, handler, summary in routes:
        # A model's id may hold slashes.
        path = operation.path.replace("{model_id}", "{model_id:path}")
        app.add_api_route(
            path, _endpoint(ctx, operation, handler), methods=[operation.method.upper()], summary=summary, operation_id=handler.__name__
        )
    app.add_exception_handler(OctavoError, on_octavo_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_middleware(Edge, keys=options.api_key, root_path=options.root_path, on_error=metrics.on_http_error, admission=ctx.admission)
    if options.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.allowed_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id"],
        )
    _describe(app, [operation for operation, _, _ in routes], secured=bool(options.api_key))
    return app


def _endpoint(ctx: ServerContext, operation: Operation, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        operation.check_query(request)
        return await handler(ctx, request)

    return endpoint


def _describe(app: FastAPI, operations: list[Operation], *, secured: bool) -> None:
    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            app.openapi_schema = complete(document, operations, secured=secured)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
