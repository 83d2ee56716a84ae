"""POST /reset_prefix_cache and /save_prefix_cache: what an operator may do to the KV cache."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from octavo.protocol.errors import InvalidRequestError
from octavo.server.context import ServerContext
from octavo.server.errors import json_response
from octavo.server.query import read_flags
from octavo.server.responses import PrefixCacheReset, PrefixCacheSaved

RESET_FLAGS = ("reset_running_requests",)


async def reset_prefix_cache(ctx: ServerContext, request: Request) -> Response:
    """Forgets what can be found by what it holds; `reset_running_requests=true` takes the blocks of running requests, too."""
    flags = read_flags(request, RESET_FLAGS)
    return json_response(PrefixCacheReset(await ctx.llm.reset_prefix_cache(**flags)))


async def save_prefix_cache(ctx: ServerContext, request: Request) -> Response:
    """Saves what can be found by what it holds to the folder that the server was started with."""
    read_flags(request, ())
    if not ctx.llm.info.saves_prefix_cache:
        raise InvalidRequestError("This server has no folder to save its prefix cache to: start it with --prefix-cache-dir DIR.")
    return json_response(PrefixCacheSaved(await ctx.llm.save_prefix_cache()))
