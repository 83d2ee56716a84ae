"""The engine in a process of its own: `python -m octavo.engine.process`, started by `octavo.engine.client`.

Standard input brings one `Start` and then stays open: its end is how the engine learns that its front end is gone, so no engine
outlives its server, however that died. Interrupts are the server's to handle; it tells the engine when to stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

import msgspec
import zmq

from octavo.engine.core import OUT_OF_MEMORY as NO_MEMORY_TO_START
from octavo.engine.core import EngineCore, build_core
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
    ToEngine,
    UseVocabulary,
)
from octavo.loading.progress import progress_for
from octavo.protocol.errors import ConfigError, InvalidRequestError, ModelLoadError, PrefixCacheError
from octavo.protocol.wire import EngineOutput
from octavo.utils.people import say

LINGER_MS = 2000
OUT_OF_MEMORY = "the machine ran out of memory in a step: lower max_num_batched_tokens, max_num_seqs or gpu_memory_utilization, or quantize"


class EngineLoop:
    """Reads what came, runs a step, sends what came of it; sleeps on the socket while there is nothing to do."""

    def __init__(self, core: EngineCore, socket: zmq.Socket[bytes]) -> None:
        self._core = core
        self._socket = socket
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._encoder = msgspec.msgpack.Encoder()

    def run(self) -> None:
        """Returns when told to stop."""
        while self._receive():
            if self._core.has_work:
                outputs = self._step()
                self._send(Batch(outputs, self._core.stats()))

    def _step(self) -> list[EngineOutput]:
        """A step; if memory runs out in it, an error for each of its requests."""
        try:
            return self._core.step()
        except MemoryError:
            say(f"{OUT_OF_MEMORY}; {len(self._core.lost)} requests of the step were ended")
            return [EngineOutput(request_id, finish_reason="error", error=OUT_OF_MEMORY) for request_id in self._core.lost]

    def _receive(self) -> bool:
        """Takes in every message that is there, waiting for one only if there is no work; False for Stop."""
        refused: list[EngineOutput] = []
        flags = 0 if not self._core.has_work else zmq.NOBLOCK
        while True:
            try:
                message = self._decoder.decode(self._socket.recv(flags))
            except zmq.Again:
                break
            flags = zmq.NOBLOCK
            if isinstance(message, Add):
                for request in message.requests:
                    try:
                        self._core.add(request)
                    except InvalidRequestError as error:
                        refused.append(EngineOutput(request.request_id, finish_reason="error", error=error.message, invalid=True))
            elif isinstance(message, UseVocabulary):
                self._core.use_vocabulary(message.vocabulary)
            elif isinstance(message, Abort):
                for request_id in message.request_ids:
                    self._core.abort(request_id)
            elif isinstance(message, ResetPrefixCache):
                done = self._core.reset_prefix_cache(reset_running_requests=message.reset_running_requests)
                self._send(Answer(message.call, done))
            elif isinstance(message, ReadBlocks):
                self._send(Answer(message.call, self._core.blocks(message.offset, message.limit)))
            elif isinstance(message, SavePrefixCache):
                self._send(self._save_prefix_cache(message.call))
            else:
                return False
        if refused:
            self._send(Batch(refused, self._core.stats()))
        return True

    def _save_prefix_cache(self, call: int) -> Answer:
        try:
            return Answer(call, self._core.save_prefix_cache())
        except PrefixCacheError as error:
            return Answer(call, None, error.message)

    def _send(self, message: FromEngine) -> None:
        self._socket.send(self._encoder.encode(message))


def watch_parent(address: str) -> None:
    """Ends this process, whatever it is doing, when standard input ends.

    A front end that was killed while the engine loaded could not take away the socket of `address` and its folder.
    """
    while os.read(0, 4096):
        pass
    path = Path(address.removeprefix("ipc://"))
    with contextlib.suppress(OSError):
        path.unlink()
        path.parent.rmdir()
    os._exit(1)


def read_start() -> Start:
    """One `Start`, after its length as eight bytes, little-endian."""
    size = int.from_bytes(_read_exactly(8), "little")
    return msgspec.msgpack.decode(_read_exactly(size), type=Start)


def _read_exactly(count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            sys.exit(1)
        data += piece
    return data


def failure(error: BaseException) -> Failed:
    """What to tell the front end of an error."""
    if isinstance(error, ModelLoadError):
        return Failed("load", error.message)
    if isinstance(error, ConfigError):
        return Failed("config", error.message, error.param)
    if isinstance(error, MemoryError):
        return Failed("engine", NO_MEMORY_TO_START)
    return Failed("engine", f"{type(error).__name__}: {error}")


def main() -> int:
    """Runs until told to stop (0), or until something breaks (1)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start = read_start()
    threading.Thread(target=watch_parent, args=(start.address,), daemon=True).start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(start.address)
    core = None
    try:
        core = build_core(start.config, progress_for(quiet=start.quiet), (lambda line: None) if start.quiet else say)
        socket.send(msgspec.msgpack.encode(Ready(core.info)))
        EngineLoop(core, socket).run()
        return 0
    except Exception as error:
        message = failure(error)
        if message.kind == "engine" and not isinstance(error, MemoryError):
            with contextlib.suppress(OSError):
                traceback.print_exc()
        socket.send(msgspec.msgpack.encode(message))
        return 1
    finally:
        if core is not None:
            core.close()
        socket.close()
        context.term()


if __name__ == "__main__":
    sys.exit(main())
