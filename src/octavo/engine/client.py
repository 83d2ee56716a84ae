"""An engine process seen from an asyncio front end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from octavo.config.engine import EngineConfig
from octavo.engine.messages import (
    Abort,
    Add,
    Answer,
    Batch,
    Failed,
    FromEngine,
    ReadBlocks,
    Ready,
    ResetPrefixCache,
    SavePrefixCache,
    Start,
    Stop,
    ToEngine,
    UseVocabulary,
)
from octavo.protocol.errors import ConfigError, EngineDeadError, ModelLoadError, OctavoError, PrefixCacheError
from octavo.protocol.vocabulary import Vocabulary
from octavo.protocol.wire import BlocksPage, EngineInfo, EngineOutput, EngineRequest, EngineStats

OnBatch = Callable[[list[EngineOutput], EngineStats], None]
STOP_SECONDS = 5.0
LAST_WORDS_SECONDS = 0.2
# A socket's path has at most 103 bytes on some systems.
LONGEST_FOLDER = 80


class EngineClient:
    """Starts an engine process, sends it requests, hands what it answers to `on_batch`, and knows when it has died.

    The socket is a file in a private folder that is gone as soon as both ends hold it, so that nothing stays behind.
    """

    def __init__(self, on_batch: OnBatch) -> None:
        self._on_batch = on_batch
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self._socket.setsockopt(option, 0)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._dead = asyncio.Event()
        self._reason = "the engine stopped"
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.info = EngineInfo(model="", architecture="", backend="", vocab_size=0, max_model_len=0, block_size=0, num_blocks=0)

    @classmethod
    async def start(cls, config: EngineConfig, on_batch: OnBatch, *, quiet: bool = False) -> EngineClient:
        """Starts the process and waits until its model is loaded.

        Raises ModelLoadError or ConfigError as the engine met them, EngineDeadError if it died on the way.
        """
        client = cls(on_batch)
        client._loop = asyncio.get_running_loop()
        temporary = tempfile.gettempdir()
        folder = Path(tempfile.mkdtemp(prefix="octavo-", dir=temporary if len(os.fsencode(temporary)) <= LONGEST_FOLDER else "/tmp"))
        try:
            address = f"ipc://{folder}/engine"
            client._socket.bind(address)
            await client._launch(Start(config, address, quiet))
            await client._wait_ready()
        except BaseException:
            await client.close()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if client._process is not None:
            client._tasks = [asyncio.create_task(client._read()), asyncio.create_task(client._watch(client._process))]
        return client

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid if self._process is not None else 0

    @property
    def is_alive(self) -> bool:
        """Whether the engine can still answer."""
        return not self._dead.is_set()

    async def wait_dead(self) -> None:
        """Returns when the engine has died."""
        await self._dead.wait()

    def dead_error(self) -> EngineDeadError:
        """The error to give to whoever still waits."""
        return EngineDeadError(self._reason)

    def check(self) -> None:
        """Raises EngineDeadError if the engine can't answer, RuntimeError in another event loop than the one of `start`."""
        if not self.is_alive:
            raise self.dead_error()
        self._check_loop()

    async def add(self, *requests: EngineRequest) -> None:
        """Sends requests, which the engine gets to know at once. Raises EngineDeadError."""
        self.check()
        await self._send(Add(list(requests)))

    async def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Tells the engine the tokens as bytes, before requests with a grammar. Raises EngineDeadError."""
        self.check()
        await self._send(UseVocabulary(vocabulary))

    async def abort(self, request_ids: list[str]) -> None:
        """Tells the engine to forget requests; nothing if it is dead. Raises RuntimeError in another event loop than the one of `start`."""
        if self.is_alive and request_ids:
            self._check_loop()
            await self._send(Abort(request_ids))

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Makes the engine forget what blocks hold; False if it could not, because some are in use. Raises EngineDeadError."""
        return bool(await self._call(lambda call: ResetPrefixCache(call, reset_running_requests)))

    async def blocks(self, offset: int, limit: int) -> BlocksPage:
        """What the engine knows of `limit` blocks of its KV cache from `offset` on. Raises EngineDeadError."""
        return msgspec.convert(await self._call(lambda call: ReadBlocks(call, offset, limit)), BlocksPage)

    async def save_prefix_cache(self) -> int:
        """Makes the engine save what blocks hold, which no step runs beside; returns how many were saved. Raises PrefixCacheError if that
        failed, EngineDeadError."""
        return int(await self._call(SavePrefixCache))

    async def _call(self, message: Callable[[int], ToEngine]) -> Any:
        """Sends the message made for a new number and waits for its Answer. Raises EngineDeadError if that can't come any more."""
        self.check()
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send(message(number))
            return await answer
        finally:
            del self._answers[number]

    async def close(self) -> None:
        """Stops the engine, by force after some seconds; whoever still waits gets EngineDeadError. May be called twice. Raises RuntimeError
        in another event loop than the one of `start`, while that runs."""
        self._check_loop()
        process = self._process
        if process is not None and process.returncode is None:
            if self._tasks and self.is_alive:
                with contextlib.suppress(zmq.ZMQError):
                    await self._send(Stop())
            elif process.stdin is not None:
                process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
        if process is not None and process.stdin is not None:
            process.stdin.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(task for task in self._tasks if not task.done()), return_exceptions=True)
        if self._tasks:
            self._die(self._reason)
        self._dead.set()
        self._socket.close(0)
        self._context.term()

    async def _launch(self, start: Start) -> None:
        # -P keeps files of the current folder from standing in for modules; the path makes sure that it is this Octavo that runs.
        package_home = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(part for part in (package_home, os.environ.get("PYTHONPATH", "")) if part)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "octavo.engine.process",
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            # An interrupt at the terminal is the front end's to handle, from the child's first moment on.
            start_new_session=True,
        )
        if self._process.stdin is None:
            raise RuntimeError("the engine process has no standard input")
        data = msgspec.msgpack.encode(start)
        self._process.stdin.write(len(data).to_bytes(8, "little") + data)
        await self._process.stdin.drain()

    async def _wait_ready(self) -> None:
        message = await self._next()
        if isinstance(message, Ready):
            self.info = message.info
            return
        raise self._start_error(message)

    def _start_error(self, message: FromEngine | None) -> OctavoError:
        if isinstance(message, Failed):
            if message.kind == "load":
                return ModelLoadError(message.message)
            if message.kind == "config":
                return ConfigError(message.message, param=message.param)
            return EngineDeadError(f"the engine could not start: {message.message}")
        return EngineDeadError(f"the engine died while it started ({self._exit_text()})")

    def _exit_text(self) -> str:
        code = self._process.returncode if self._process is not None else None
        if code is None:
            return "no exit status"
        return f"signal {-code}" if code < 0 else f"exit status {code}"

    async def _next(self) -> FromEngine | None:
        """The next message, or None when the process has ended and all that it sent is read."""
        if self._process is None:
            raise RuntimeError("no process")
        receive = asyncio.ensure_future(self._socket.recv())
        ended = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait({receive, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not receive.done():
                # Its last words may still be on their way.
                await asyncio.wait({receive}, timeout=LAST_WORDS_SECONDS)
            return self._decoder.decode(receive.result()) if receive.done() else None
        finally:
            for task in (receive, ended):
                task.cancel()

    async def _read(self) -> None:
        """Hands out batches until the engine says that it can't go on."""
        try:
            while True:
                message = self._decoder.decode(await self._socket.recv())
                if isinstance(message, Batch):
                    self._on_batch(message.outputs, message.stats)
                elif isinstance(message, Answer):
                    answer = self._answers.get(message.call)
                    if answer is not None and not answer.done():
                        if message.error is None:
                            answer.set_result(message.value)
                        else:
                            answer.set_exception(PrefixCacheError(message.error))
                elif isinstance(message, Failed):
                    self._die(f"the engine stopped: {message.message}")
                    return
        except Exception as error:
            # Nobody would hear of any further batch, so nobody may wait for one.
            self._die(f"what the engine sent could not be taken in ({type(error).__name__}: {error})")
            raise

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Notices that the process has ended, however it did, and ends it with the event loop, in which alone it could be heard."""
        try:
            await process.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            self._die("the event loop that the engine was started in has ended")
            raise
        await asyncio.sleep(LAST_WORDS_SECONDS)
        self._die(f"the engine died ({self._exit_text()})")

    def _die(self, reason: str) -> None:
        if self.is_alive:
            self._reason = reason
            self._dead.set()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(self.dead_error())
            self._on_batch([], EngineStats())

    def _check_loop(self) -> None:
        if self.is_alive and self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise RuntimeError("the engine was started in another event loop, and can be used and closed only there")

    async def _send(self, message: ToEngine) -> None:
        await self._socket.send(self._encoder.encode(message))
