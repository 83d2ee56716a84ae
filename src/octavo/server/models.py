"""GET /v1/models, /v1/models/{id}, /health and /version: what a client may ask before it sends work."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from octavo._version import __version__
from octavo.protocol.errors import EngineDeadError
from octavo.server.context import ServerContext
from octavo.server.errors import json_response
from octavo.server.responses import Health, ModelCard, ModelList, Version


async def list_models(ctx: ServerContext, request: Request) -> Response:
    """Answers with every name that the model is served under."""
    return json_response(ModelList(data=[_card(ctx, name) for name in ctx.model_names]))


async def get_model(ctx: ServerContext, request: Request) -> Response:
    """Answers with one served model; 404 for any other name."""
    return json_response(_card(ctx, ctx.model_name(request.path_params["model_id"])))


async def health(ctx: ServerContext, request: Request) -> Response:
    """Answers 200 while the engine lives and the server takes requests, 503 afterwards."""
    if not ctx.llm.is_alive:
        raise EngineDeadError("The engine has stopped.")
    return json_response(Health())


async def version(ctx: ServerContext, request: Request) -> Response:
    """Answers with Octavo's version."""
    return json_response(Version(__version__))


def _card(ctx: ServerContext, name: str) -> ModelCard:
    return ModelCard(id=name, created=ctx.created, root=ctx.llm.info.model, max_model_len=ctx.llm.info.max_model_len)
