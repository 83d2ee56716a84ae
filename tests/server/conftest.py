from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from fake_llm import FakeLLM
from live_server import LiveServer
from patience import patient

from octavo.api.metrics import Metrics
from octavo.config.server import ServerOptions
from octavo.server.app import build_app


@pytest.fixture
async def llm() -> FakeLLM:
    return FakeLLM()


ClientFactory = Callable[..., httpx.AsyncClient]


class BoundedTransport(httpx.ASGITransport):
    """Fails a request that is never answered, such as one whose time should have been over, instead of waiting for ever."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async with asyncio.timeout(patient(30)):
            return await super().handle_async_request(request)


@pytest.fixture
async def connect(llm: FakeLLM) -> AsyncIterator[ClientFactory]:
    """Makes a client of an application over the fake; keywords are ServerOptions."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []

        def make(metrics: Metrics | None = None, headers: dict[str, str] | None = None, **options: object) -> httpx.AsyncClient:
            app = build_app(llm, ServerOptions(**options), metrics)
            transport = BoundedTransport(app)
            client = httpx.AsyncClient(transport=transport, base_url="http://octavo", headers=headers, timeout=10)
            client.context = app.state.context
            clients.append(client)
            stack.push_async_callback(client.aclose)
            return client

        yield make


@pytest.fixture
async def client(connect: ClientFactory) -> httpx.AsyncClient:
    return connect()


@pytest.fixture
async def live(llm: FakeLLM) -> AsyncIterator[LiveServer]:
    async with LiveServer(llm, ServerOptions()) as server:
        yield server


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Waits for `condition`, failing after `seconds`."""
    async with asyncio.timeout(patient(seconds)):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., object]:
    return until
