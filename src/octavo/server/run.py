"""One server process from start to exit: bind, load, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import uvicorn

from octavo._version import __version__
from octavo.api.metrics import Metrics
from octavo.config.engine import EngineConfig
from octavo.config.server import ServerOptions
from octavo.protocol.errors import OctavoError
from octavo.server.app import build_app
from octavo.server.context import ServerContext, check_parsers
from octavo.utils.people import say

if TYPE_CHECKING:
    from octavo.api.async_llm import AsyncLLM

BACKLOG = 2048
OPEN_TO_ALL = "anyone who reaches this machine at port {port} may use the server; --api-key KEY asks for a key"
# After the engine's death: how long clients may still read their errors and probes see the 503, before the process exits.
DEATH_SECONDS = 1.0
# How long the engine may take to save its prefix cache at the end.
SAVE_SECONDS = 300.0
# Between two lines about connections that can't be taken.
REFUSED_SECONDS = 10.0
# What uvicorn waits for connections to close, beyond the time that running requests have.
CLOSE_SECONDS = 2.0


def serve(config: EngineConfig, options: ServerOptions) -> int:
    """Serves the model of `config` until a signal or the engine's death, and returns the process's exit code.

    The port is taken before the model is loaded, so that one in use fails at once (1). The engine's death is 1, SIGINT or SIGTERM 0; these
    errors are one sentence on stderr. Raises ModelLoadError, ConfigError or EngineDeadError if the engine does not start.
    """
    check_parsers(options)
    try:
        listener = bind(options.host, options.port)
    except (OSError, UnicodeError) as error:  # the latter for a name that the DNS can't have
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        return _fail(f"can't listen on {options.host} port {options.port}: {reason}")
    with listener:
        return asyncio.run(_Process(config, options, listener).run())


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises OSError, and UnicodeError for a host that no name server could know."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            # Lets a restarted server take the port that its forerunner's closed connections still linger on.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Without listening, a second server could bind the same port and fail only after loading its model.
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def url(listener: socket.socket) -> str:
    """Where a client on this machine reaches `listener`."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine reaches `listener`."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _fail(message: str) -> int:
    _say(message)
    return 1


def _say(message: str) -> None:
    say(f"octavo: {message}")


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handling: it would raise the signal again after a clean exit."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Accidents:
    """Tells of what the event loop could not do. Without free file descriptors it fails once for each connection that waits, thousands of
    times a second; that is one line now and then."""

    def __init__(self) -> None:
        self._told_at = -REFUSED_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() - self._told_at >= REFUSED_SECONDS:
            self._told_at = loop.time()
            _say(f"new connections wait: {error.strerror} (raise the limit with ulimit -n)")


class _Process:
    """The life of one server. The first signal drains, a second one stops at once."""

    def __init__(self, config: EngineConfig, options: ServerOptions, listener: socket.socket) -> None:
        self._config = config
        self._options = options
        self._listener = listener
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> int:
        """Loads, serves and returns the exit code."""
        asyncio.get_running_loop().set_exception_handler(_Accidents())
        with self._signals():
            metrics = Metrics()
            llm = await self._load(metrics)
            if llm is None:
                return 0
            try:
                return await self._serve(llm, metrics)
            finally:
                await self._save(llm)
                await llm.close(save=False)

    async def _save(self, llm: AsyncLLM) -> None:
        """Saves the prefix cache where there is a folder for it, unless a second signal says to stop at once, or the engine does not come
        to it."""
        if not llm.info.saves_prefix_cache or not llm.is_alive or self._stop_now.is_set():
            return
        saving = asyncio.create_task(llm.save_prefix_cache())
        now = asyncio.create_task(self._stop_now.wait())
        done, _ = await asyncio.wait((saving, now), timeout=SAVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        now.cancel()
        saving.cancel()
        if not done:
            _say(f"the prefix cache was not saved: the engine did not come to it within {SAVE_SECONDS:g} s")
        (result,) = await asyncio.gather(saving, return_exceptions=True)
        if isinstance(result, OctavoError):
            _say(result.message)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = (signal.SIGINT, signal.SIGTERM)
        for number in handled:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        (self._stop_now if self._stop.is_set() else self._stop).set()

    async def _load(self, metrics: Metrics) -> AsyncLLM | None:
        """The model, or None if a signal came first."""
        from octavo.api.async_llm import AsyncLLM

        starting = asyncio.create_task(AsyncLLM.start(self._config, recorder=metrics, chat_template=self._options.chat_template))
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return None

    async def _serve(self, llm: AsyncLLM, metrics: Metrics) -> int:
        options = self._options
        app = build_app(llm, options, metrics)
        server = _Uvicorn(
            uvicorn.Config(
                app,
                log_level=options.uvicorn_log_level,
                access_log=options.access_log,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=int(options.shutdown_timeout + CLOSE_SECONDS + 1),
            )
        )
        if options.access_log:
            # uvicorn gives its access log the level of everything else, at which it would stay silent.
            logging.getLogger("uvicorn.access").setLevel(logging.INFO)
        context: ServerContext = app.state.context
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        names = ", ".join(context.model_names)
        if not options.api_key and not is_loopback(self._listener):
            _say(OPEN_TO_ALL.format(port=self._listener.getsockname()[1]))
        # A browser sends no key.
        docs = "" if options.api_key else " (API docs at /docs)"
        print(f"Octavo {__version__} serves {names} at {url(self._listener)}{docs}", flush=True)
        dead = asyncio.create_task(llm.wait_dead())
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((serving, dead, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if serving.done():
            dead.cancel()
            serving.result()
            return _fail("the HTTP server ended unexpectedly")
        code = await self._on_death(server, serving) if dead.done() else await self._drain(server, serving, context, dead)
        dead.cancel()
        return code

    async def _on_death(self, server: uvicorn.Server, serving: asyncio.Task[None]) -> int:
        _fail("the engine has died; every waiting client was told, and the server exits")
        await asyncio.wait((serving,), timeout=DEATH_SECONDS)
        await self._end(server, serving)
        return 1

    async def _drain(self, server: uvicorn.Server, serving: asyncio.Task[None], context: ServerContext, dead: asyncio.Task[None]) -> int:
        """Refuses new requests, lets running ones finish for a while, then ends the rest."""
        context.admission.close()
        if context.admission.busy and self._options.shutdown_timeout:
            _say(f"stopping; running requests have {self._options.shutdown_timeout:g} s to finish, and a second signal ends them")
        now = asyncio.create_task(self._stop_now.wait())
        empty = asyncio.create_task(context.admission.wait_empty())
        await asyncio.wait((serving, now, empty, dead), timeout=self._options.shutdown_timeout, return_when=asyncio.FIRST_COMPLETED)
        now.cancel()
        empty.cancel()
        context.closing.set()
        await self._end(server, serving)
        return 1 if dead.done() else 0

    async def _end(self, server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
        """Ends uvicorn; connections that are still open after a moment, as of clients that read slowly, are cut."""
        server.should_exit = True
        await asyncio.wait((serving,), timeout=CLOSE_SECONDS)
        for connection in list(server.server_state.connections):
            transport = connection.transport
            if transport is not None:
                transport.abort()
        _, pending = await asyncio.wait((serving,), timeout=CLOSE_SECONDS)
        if pending:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
