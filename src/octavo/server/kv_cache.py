"""GET /kv/blocks, POST /reset_prefix_cache and /save_prefix_cache: what an operator may see of the KV cache, and do to it."""

from __future__ import annotations

from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.wire import BlocksPage, BlockState, EngineInfo
from octavo.server.context import ServerContext
from octavo.server.errors import json_response
from octavo.server.query import Whole, read_flags, read_wholes
from octavo.server.responses import KVBlock, KVBlocks, KVSummary, PrefixCacheReset, PrefixCacheSaved

RESET_FLAGS = ("reset_running_requests",)
PAGE = {"offset": Whole(0, 2**31 - 1, 0), "limit": Whole(1, 1000, 100)}
HASH_DIGITS = 12
IN_USE = "requests hold blocks; wait for them, or have them computed again with reset_running_requests=true"


async def reset_prefix_cache(ctx: ServerContext, request: Request) -> Response:
    """Forgets what can be found by what it holds; `reset_running_requests=true` takes the blocks of running requests, too."""
    flags = read_flags(request, RESET_FLAGS)
    done = await ctx.llm.reset_prefix_cache(**flags)
    return json_response(PrefixCacheReset(done, None if done else IN_USE))


async def save_prefix_cache(ctx: ServerContext, request: Request) -> Response:
    """Saves what can be found by what it holds to the folder that the server was started with."""
    if not ctx.llm.info.saves_prefix_cache:
        raise InvalidRequestError("This server has no folder to save its prefix cache to: start it with --prefix-cache-dir DIR.")
    return json_response(PrefixCacheSaved(await ctx.llm.save_prefix_cache()))


async def list_kv_blocks(ctx: ServerContext, request: Request) -> Response:
    """`limit` blocks from `offset` on, and a summary of all. The engine answers between two steps, and spends its time on these blocks
    alone."""
    place = read_wholes(request, PAGE)
    page = await ctx.llm.kv_blocks(**place)
    after = place["offset"] + place["limit"]
    return json_response(
        KVBlocks(
            summary=summarize(page, ctx.llm.info.block_size),
            blocks=[_block(state, ctx.llm.info) for state in page.blocks],
            next_offset=after if after < page.stats.blocks_total else None,
            **place,
        )
    )


def summarize(page: BlocksPage, block_size: int) -> KVSummary:
    """The sums of the whole pool."""
    stats = page.stats
    slots = stats.blocks_used * block_size
    return KVSummary(
        num_blocks=stats.blocks_total,
        block_size=block_size,
        used=stats.blocks_used,
        cached=page.cached_free,
        free=stats.blocks_total - stats.blocks_used - page.cached_free,
        findable=stats.blocks_cached,
        tokens=stats.tokens_held,
        unused_slots=slots - stats.tokens_held,
        utilization=stats.blocks_used / stats.blocks_total,
        waste=(slots - stats.tokens_held) / slots if slots else 0.0,
        requests_running=stats.running,
        requests_waiting=stats.waiting,
    )


def _block(state: BlockState, info: EngineInfo) -> KVBlock:
    layers: Literal["all", "full", "window"] = "full" if state.block_id < info.num_blocks else "window"
    return KVBlock(
        block_id=state.block_id,
        layers=layers if info.num_window_blocks else "all",
        state="used" if state.reference_count else "free" if state.digest is None else "cached",
        owners=state.owners,
        reference_count=state.reference_count,
        hash=None if state.digest is None else state.digest[:HASH_DIGITS],
        idle_seconds=None if state.idle_seconds is None else round(state.idle_seconds, 3),
    )
