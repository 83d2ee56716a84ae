"""Who is let in: nobody once the server stops, and no more at once than there are seats and places in the queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from octavo.api.metrics import QUEUE_FULL, SHUTTING_DOWN
from octavo.protocol.errors import OverloadedError

# What is still answered while the server stops: those who watch it want to know when it has done so.
WATCHED = ("/metrics",)


class Admission:
    """Counts the HTTP requests under way, and the sequences that they compute.

    `room` is the most sequences that may run and wait, None for any number. `on_refused` is told the reason of each refusal.
    """

    def __init__(self, room: int | None, on_refused: Callable[[str], None]) -> None:
        self._room = room
        self._on_refused = on_refused
        self._requests = 0
        self._sequences = 0
        self._closed = False
        self._arriving: set[asyncio.Timeout] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def closed(self) -> bool:
        """Whether the server stops."""
        return self._closed

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return self._requests > 0

    def close(self) -> None:
        """From now on nobody is let in, nor waited for."""
        self._closed = True
        for limit in self._arriving:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

    async def wait_empty(self) -> None:
        """Returns when no request is under way."""
        await self._empty.wait()

    @contextmanager
    def request(self, path: str) -> Iterator[None]:
        """The time of one HTTP request. Raises OverloadedError once the server stops."""
        if self._closed and path not in WATCHED:
            raise self._closing()
        self._requests += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._empty.set()

    @asynccontextmanager
    async def arrival(self, seconds: float | None) -> AsyncIterator[None]:
        """The time in which the rest of an HTTP request comes, which is none that runs. Raises TimeoutError after `seconds`, and
        OverloadedError once the server stops."""
        try:
            async with asyncio.timeout(0 if self._closed else seconds) as limit:
                self._arriving.add(limit)
                try:
                    yield
                finally:
                    self._arriving.discard(limit)
        except TimeoutError:
            if self._closed:
                raise self._closing() from None
            raise

    @contextmanager
    def sequences(self, count: int) -> Iterator[None]:
        """The time in which a request computes `count` sequences. Raises OverloadedError when the queue is full. A request with more of
        them than there is room for is let in when it is the only one: it never could be otherwise."""
        if self._room is not None and self._sequences and self._sequences + count > self._room:
            raise self._refusal(QUEUE_FULL, f"The queue is full: {self._sequences} sequences run and wait here, of at most {self._room}.")
        self._sequences += count
        try:
            yield
        finally:
            self._sequences -= count

    def _closing(self) -> OverloadedError:
        return self._refusal(SHUTTING_DOWN, "The server is shutting down and takes no more requests.")

    def _refusal(self, reason: str, message: str) -> OverloadedError:
        self._on_refused(reason)
        return OverloadedError(message, code=reason)
