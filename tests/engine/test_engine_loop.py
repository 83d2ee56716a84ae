"""The loop of the engine process, run on a thread against a real socket pair and an engine made up for the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from engines import request_for

from octavo.engine import process
from octavo.engine.messages import Abort, Add, Batch, Failed, FromEngine, Ready, Start, Stop
from octavo.engine.process import EngineLoop, failure
from octavo.protocol.errors import ConfigError, InvalidRequestError, ModelLoadError, UnsupportedModelError
from octavo.protocol.wire import EngineInfo, EngineOutput, EngineRequest, EngineStats

INFO = EngineInfo(model="m", architecture="a", backend="b", vocab_size=1, max_model_len=1, block_size=1, num_blocks=1)


class GoneReader:
    """A stream whose reader has gone away."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def test_nothing_ends_for_a_line_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", GoneReader())
    process.say("Prefix cache: 6 blocks saved")


class FakeCore:
    """Gives each request three tokens, one a step; a request named "bomb" breaks the step, one named "heavy" has no room in it."""

    def __init__(self) -> None:
        self.info = INFO
        self.left: dict[str, int] = {}
        self.aborted: list[str] = []
        self.closed = 0
        self.lost: list[str] = []

    @property
    def has_work(self) -> bool:
        return bool(self.left)

    def add(self, request: EngineRequest) -> None:
        if request.request_id == "refused":
            raise InvalidRequestError("not this one")
        self.left[request.request_id] = 3

    def abort(self, request_id: str) -> bool:
        self.aborted.append(request_id)
        return self.left.pop(request_id, None) is not None

    def step(self) -> list[EngineOutput]:
        if "bomb" in self.left:
            raise ZeroDivisionError("division by zero")
        if "heavy" in self.left:
            self.lost = list(self.left)
            self.left.clear()
            raise MemoryError
        outputs = []
        for name in list(self.left):
            self.left[name] -= 1
            outputs.append(EngineOutput(name, [self.left[name]], finish_reason=None if self.left[name] else "length"))
            if not self.left[name]:
                del self.left[name]
        return outputs

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self.left))

    def close(self) -> None:
        self.closed += 1


class Front:
    """The front end's side of the socket."""

    def __init__(self, address: str) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 5000)
        self.socket.bind(address)
        self.decoder = msgspec.msgpack.Decoder(FromEngine)

    def send(self, *messages: Add | Abort | Stop) -> None:
        for message in messages:
            self.socket.send(msgspec.msgpack.encode(message))

    def receive(self) -> Ready | Batch | Failed:
        return self.decoder.decode(self.socket.recv())

    def close(self) -> None:
        self.socket.close()
        self.context.term()


@pytest.fixture
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    made = Front(f"ipc://{tmp_path_factory.mktemp('e')}/engine")
    yield made
    made.close()


class Engine:
    """`process.main` on a thread, without a process of its own: it has no standard input and no signals to care for."""

    def __init__(self, front: Front, core: FakeCore | Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        from octavo.config.engine import EngineConfig

        def build(*args: Any) -> FakeCore:
            if isinstance(core, Exception):
                raise core
            return core

        address = front.socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        monkeypatch.setattr(process, "read_start", lambda: Start(EngineConfig(), address, quiet=True))
        monkeypatch.setattr(process, "watch_parent", lambda address: None)
        monkeypatch.setattr(process, "build_core", build)
        monkeypatch.setattr(process.signal, "signal", lambda *args: None)
        self.codes: list[int] = []
        self.thread = threading.Thread(target=lambda: self.codes.append(process.main()))
        self.thread.start()

    def exit_code(self) -> int:
        self.thread.join(5)
        assert not self.thread.is_alive()
        return self.codes[0]


def test_work_goes_out_step_by_step_and_stop_ends_it(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    core = FakeCore()
    engine = Engine(front, core, monkeypatch)
    assert front.receive() == Ready(INFO)
    front.send(Add([request_for("a")]))
    tokens = [front.receive() for _ in range(3)]
    assert tokens == [
        Batch([EngineOutput("a", [2])], EngineStats(running=1)),
        Batch([EngineOutput("a", [1])], EngineStats(running=1)),
        Batch([EngineOutput("a", [0], finish_reason="length")], EngineStats()),
    ]
    front.send(Stop())
    assert engine.exit_code() == 0
    assert core.closed == 1


def test_a_refused_request_is_answered_and_the_next_one_served(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(front, FakeCore(), monkeypatch)
    front.receive()
    front.send(Add([request_for("refused")]))
    assert front.receive() == Batch([EngineOutput("refused", finish_reason="error", error="not this one", invalid=True)], EngineStats())
    front.send(Add([request_for("b")]))
    assert front.receive() == Batch([EngineOutput("b", [2])], EngineStats(running=1))
    front.send(Stop())
    assert engine.exit_code() == 0


def test_aborts_are_heard_between_steps(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    core = FakeCore()
    core.left["long"] = 1_000_000_000
    engine = Engine(front, core, monkeypatch)
    front.receive()
    front.send(Abort(["long", "unknown"]), Add([request_for("last")]))
    while True:
        message = front.receive()
        assert isinstance(message, Batch)
        if [output.request_id for output in message.outputs] == ["last"]:
            break
    assert core.aborted == ["long", "unknown"]
    front.send(Stop())
    assert engine.exit_code() == 0


def test_stop_ends_it_with_work_left(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    core = FakeCore()
    core.left["long"] = 1_000_000_000
    engine = Engine(front, core, monkeypatch)
    front.receive()
    front.send(Stop())
    assert engine.exit_code() == 0
    assert core.closed == 1


def test_a_step_that_breaks_is_told_and_ends_the_engine(
    front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    core = FakeCore()
    engine = Engine(front, core, monkeypatch)
    front.receive()
    front.send(Add([request_for("bomb")]))
    assert front.receive() == Failed("engine", "ZeroDivisionError: division by zero")
    assert engine.exit_code() == 1
    assert core.closed == 1
    assert "ZeroDivisionError" in capsys.readouterr().err  # whoever runs the server sees where


def test_a_step_without_memory_ends_its_requests_and_the_next_one_is_served(
    front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Engine(front, FakeCore(), monkeypatch)
    front.receive()
    front.send(Add([request_for("a"), request_for("heavy")]))
    assert front.receive() == Batch(
        [EngineOutput(name, finish_reason="error", error=process.OUT_OF_MEMORY) for name in ("a", "heavy")], EngineStats()
    )
    front.send(Add([request_for("b")]))
    assert front.receive() == Batch([EngineOutput("b", [2])], EngineStats(running=1))
    front.send(Stop())
    assert engine.exit_code() == 0
    assert capsys.readouterr().err == f"{process.OUT_OF_MEMORY}; 2 requests of the step were ended\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModelLoadError("f: tensor t is missing"), Failed("load", "f: tensor t is missing")),
        (UnsupportedModelError("f: no"), Failed("load", "f: no")),
        (ConfigError("x: wrong", param="x"), Failed("config", "x: wrong", "x")),
        (ValueError("odd"), Failed("engine", "ValueError: odd")),
    ],
)
def test_why_it_could_not_start(
    front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, message: Failed
) -> None:
    engine = Engine(front, error, monkeypatch)
    assert front.receive() == message
    assert engine.exit_code() == 1
    assert ("Traceback" in capsys.readouterr().err) == (message.kind == "engine")


def test_out_of_memory_says_what_to_do() -> None:
    said = failure(MemoryError())
    assert said.kind == "engine"
    assert "gpu_memory_utilization" in said.message


def test_the_loop_takes_in_all_that_came_before_the_next_step(front: Front) -> None:
    """Requests that arrived together run together."""
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(front.socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode())
    front.send(*(Add([request_for(f"r{index}")]) for index in range(20)))
    assert socket.poll(2000)
    front.send(Stop())
    threading.Event().wait(0.1)
    core = FakeCore()
    EngineLoop(core, socket).run()  # type: ignore[arg-type]
    assert len(core.left) == 20
    assert not front.socket.poll(50)
    socket.close(0)
    context.term()
