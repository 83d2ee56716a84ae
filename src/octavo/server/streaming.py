"""Running generations on behalf of a client who may vanish, read slowly, or be cut off by a server that stops.

Nothing here buffers: a chunk is produced only after the one before it was taken by the socket, so that a slow reader holds up nobody else
and costs no memory beyond what its request generated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.protocol.errors import OverloadedError, RequestTimeoutError
from octavo.protocol.outputs import RequestOutput
from octavo.server.context import ServerContext
from octavo.server.errors import describe

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


def event(value: object) -> bytes:
    """`value` as one server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def typed_event(value: dict[str, Any]) -> bytes:
    """`value`, which has a type, as one server-sent event of that type."""
    return f"event: {value['type']}\ndata: ".encode() + msgspec.json.encode(value) + b"\n\n"


def closing_error() -> OverloadedError:
    """What a request gets that could not finish before the server stops."""
    return OverloadedError("The server is shutting down; the request was ended before it finished.")


def overdue_error(ctx: ServerContext, missing: str = "its answer was complete") -> RequestTimeoutError:
    """What a request gets whose time is over before what is `missing`, which is counted."""
    ctx.metrics.on_timeout()
    return RequestTimeoutError(f"The time of this request was over before {missing}.", code="timeout")


def seconds_left(scope: Scope, ctx: ServerContext) -> float | None:
    """Until the time is over that the request or the server gives, None if neither does."""
    state = scope["state"]
    given = [seconds for seconds in (state.get("timeout"), ctx.options.request_timeout) if seconds is not None]
    return max(0.0, state["arrival_time"] + min(given) - time.monotonic()) if given else None


async def merge(iterators: Sequence[AsyncIterator[RequestOutput]]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Items of all `iterators`, each with its iterator's index, as they come; at most one of each is held here.

    When one fails, or this generator is closed, all are closed before it ends, which aborts their requests.
    """
    pending: dict[asyncio.Task[RequestOutput], int] = {}
    try:
        if len(iterators) == 1:
            async for output in iterators[0]:
                yield 0, output
            return
        pending = {_next(iterator): index for index, iterator in enumerate(iterators)}
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=pending.__getitem__):
                # The others stay known, so that their errors are taken in, too, when this one fails.
                index = pending.pop(task)
                try:
                    output = task.result()
                except StopAsyncIteration:
                    continue
                pending[_next(iterators[index])] = index
                yield index, output
    finally:
        await cancel(*pending)
        for iterator in iterators:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()


def _next(iterator: AsyncIterator[RequestOutput]) -> asyncio.Task[RequestOutput]:
    async def step() -> RequestOutput:
        return await anext(iterator)

    return asyncio.create_task(step())


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancels `tasks` and waits for their ends, whatever these are."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.gather(*tasks, return_exceptions=True)


async def _vanished(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(request: Request, ctx: ServerContext, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client vanishes (ClientDisconnect), the server closes (OverloadedError) or the
    request's time is over (RequestTimeoutError).

    The body of `request` must have been read.
    """
    task = asyncio.create_task(work)
    vanished = asyncio.create_task(_vanished(request.receive))
    closing = asyncio.create_task(ctx.closing.wait())
    try:
        left = seconds_left(request.scope, ctx)
        await asyncio.wait((task, vanished, closing), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if vanished.done():
            raise ClientDisconnect
        raise closing_error() if closing.done() else overdue_error(ctx)
    finally:
        await cancel(task, vanished, closing)


class EventStream(Response):
    """A text/event-stream reply over `events`, each of which is whole, that are made from `source`.

    An error on the way becomes a last `{"error": …}` event, then `[DONE]`. Both generators are closed when the client vanishes.
    """

    media_type = "text/event-stream"
    last = DONE

    def failed(self, failure: BaseException) -> bytes:
        """What an error on the way becomes."""
        return event(describe(failure)[1])

    def __init__(self, events: AsyncGenerator[bytes, None], source: AsyncGenerator[Any, None], ctx: ServerContext) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # The base class counted an empty body.
        del self.headers["content-length"]
        self._events = events
        self._source = source
        self._ctx = ctx

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the reply; returns once the client has it all or is gone."""
        tasks: list[asyncio.Task[Any]] = []
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            producer = asyncio.create_task(self._produce(send))
            vanished = asyncio.create_task(_vanished(receive))
            closing = asyncio.create_task(self._ctx.closing.wait())
            tasks += (producer, vanished, closing)
            await asyncio.wait(tasks, timeout=seconds_left(scope, self._ctx), return_when=asyncio.FIRST_COMPLETED)
            if vanished.done():
                return
            ended = producer.done()
            failure = producer.exception() if ended else closing_error() if closing.done() else overdue_error(self._ctx)
            await cancel(producer)
            # What it computes is given up first: a client that reads slowly may keep what follows waiting.
            await self._close()
            if failure is not None:
                await _body(send, self.failed(failure))
            await _body(send, self.last)
            await _body(send, b"", more=False)
        finally:
            await cancel(*tasks)
            await self._close()

    async def _close(self) -> None:
        # A generator that never ran does not pass its closing on, hence both.
        await self._events.aclose()
        await self._source.aclose()

    async def _produce(self, send: Send) -> None:
        async for chunk in self._events:
            await _body(send, chunk)


def _body(send: Send, data: bytes, more: bool = True) -> Awaitable[None]:
    return send({"type": "http.response.body", "body": data, "more_body": more})


async def chain(first: T, rest: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """`first`, then the items of `rest`."""
    yield first
    async for item in rest:
        yield item


async def first_item(request: Request, ctx: ServerContext, stream: AsyncGenerator[T, None]) -> T:
    """The first item of `stream`: what fails before it can still be told by the reply's status. The stream is closed on failure."""

    async def first() -> T:
        return await anext(stream)

    try:
        return await while_connected(request, ctx, first())
    except BaseException:
        await stream.aclose()
        raise
