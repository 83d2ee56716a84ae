from __future__ import annotations

import asyncio
import contextlib

import uvicorn
from fake_llm import FakeLLM
from patience import patient

from octavo.config.server import ServerOptions
from octavo.server.app import build_app


class LiveServer:
    """uvicorn on a loopback port, in the test's own event loop."""

    def __init__(self, llm: FakeLLM, options: ServerOptions) -> None:
        self.app = build_app(llm, options)
        config = uvicorn.Config(self.app, port=0, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.server.capture_signals = contextlib.nullcontext

    async def __aenter__(self) -> LiveServer:
        self.task = asyncio.create_task(self.server.serve())
        async with asyncio.timeout(patient(10)):
            while not self.server.started:
                await asyncio.sleep(0.005)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.app.state.context.closing.set()
        await asyncio.wait_for(self.task, patient(10))
