"""The engine process as its front end sees it: service, aborts, every way to die, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from engines import children, config_for, is_running, request_for, socket_folders
from patience import patient

from octavo.config.engine import EngineConfig
from octavo.engine.client import EngineClient
from octavo.engine.core import build_core
from octavo.loading.progress import ConsoleProgress
from octavo.protocol.errors import ConfigError, EngineDeadError, ModelLoadError
from octavo.protocol.wire import EngineOutput, EngineRequest, EngineStats

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc for what is left behind")


@pytest.fixture(scope="module")
def model(fixtures_dir: Path) -> Path:
    return fixtures_dir / "tiny-llama"


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has a folder for temporary files of its own, and must leave neither a socket nor a child, not even a zombie."""
    tmp_path_factory.getbasetemp()  # which is not to lie in there
    folder = tempfile.mkdtemp(prefix="t", dir="/tmp")
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = children()
    yield
    assert children() <= before
    assert socket_folders() == set()
    monkeypatch.setattr(tempfile, "tempdir", None)
    Path(folder).rmdir()


class Front:
    """What a front end keeps: tokens of each request, the last stats, and news of both."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, EngineOutput] = {}
        self.stats = EngineStats()
        self.news = asyncio.Event()
        self.client: EngineClient | None = None
        self.dead_calls = 0

    def on_batch(self, outputs: list[EngineOutput], stats: EngineStats) -> None:
        if self.client is not None and not self.client.is_alive:
            self.dead_calls += 1
        for output in outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.ends[output.request_id] = output
        self.stats = stats
        self.news.set()

    async def until(self, condition: Callable[[], bool], seconds: float = 10) -> None:
        async with asyncio.timeout(patient(seconds)):
            while not condition():
                self.news.clear()
                await self.news.wait()

    async def result(self, request: EngineRequest) -> list[int]:
        """The tokens of a request, or EngineDeadError, as a server would wait for them."""
        assert self.client is not None
        await self.client.add(request)
        name = request.request_id
        await self.until(lambda: name in self.ends or not self.client.is_alive, 60)  # type: ignore[union-attr]
        if name not in self.ends:
            raise self.client.dead_error()
        return self.tokens[name]


async def start(config: EngineConfig) -> Front:
    front = Front()
    front.client = await EngineClient.start(config, front.on_batch, quiet=True)
    return front


@pytest.fixture
async def front(model: Path) -> AsyncIterator[Front]:
    made = await start(config_for(model, seats=8))
    yield made
    assert made.client is not None
    await made.client.close()
    await made.client.close()


def client_of(front: Front) -> EngineClient:
    assert front.client is not None
    return front.client


async def test_many_requests_at_once_are_as_in_process(front: Front, model: Path) -> None:
    requests = [request_for(f"r{index}", prompt=list(range(4, 6 + 3 * index)), max_tokens=2 + index % 9) for index in range(32)]
    results = await asyncio.gather(*map(front.result, requests))
    core = build_core(config_for(model, seats=8), ConsoleProgress(quiet=True), lambda line: None)
    wanted: dict[str, list[int]] = {}
    for request in requests:
        core.add(request)
    while core.has_work:
        for output in core.step():
            wanted.setdefault(output.request_id, []).extend(output.token_ids)
    assert results == [wanted[request.request_id] for request in requests]
    assert [len(result) for result in results] == [2 + index % 9 for index in range(32)]
    client = client_of(front)
    assert client.info == core.info
    core.close()
    assert client.is_alive
    assert is_running(client.pid)
    await front.until(lambda: front.stats.blocks_used == 0)


async def test_the_prefix_cache_is_reset_over_the_socket(front: Front) -> None:
    client = client_of(front)
    await front.result(request_for("a", prompt=[7] * 40))
    assert front.stats.blocks_cached == 2
    await front.result(request_for("b", prompt=[7] * 40))
    assert front.stats.prefix_cache_hits == 32
    assert await client.reset_prefix_cache() is True
    await front.result(request_for("c", prompt=[7] * 40))
    assert front.stats.prefix_cache_hits == 32


async def test_a_reset_is_refused_while_requests_run_unless_they_may_be_preempted(front: Front) -> None:
    client = client_of(front)
    await client.add(request_for("long", prompt=[7] * 40, max_tokens=400))
    await front.until(lambda: front.stats.running == 1)
    assert await client.reset_prefix_cache() is False
    assert await client.reset_prefix_cache(reset_running_requests=True) is True
    await front.until(lambda: "long" in front.ends, 60)
    assert len(front.tokens["long"]) == 400
    assert front.ends["long"].num_preemptions == 1


async def test_blocks_are_told_over_the_socket(front: Front) -> None:
    client = client_of(front)
    untouched = await client.blocks(0, 2)
    assert [msgspec.structs.astuple(block) for block in untouched.blocks] == [(0, [], 0, None, None), (1, [], 0, None, None)]
    await front.result(request_for("a", prompt=[7] * 40))
    page = await client.blocks(0, client.info.num_blocks)
    assert (page.stats.blocks_used, page.stats.blocks_cached, page.cached_free, len(page.blocks)) == (0, 2, 2, client.info.num_blocks)
    assert sum(block.digest is not None for block in page.blocks) == 2
    assert sum(block.idle_seconds is not None for block in page.blocks) == 3
    await client.add(request_for("long", prompt=[7] * 40, max_tokens=400))
    await front.until(lambda: front.stats.running == 1)
    page = await client.blocks(0, 1000)
    held = [block for block in page.blocks if block.owners]
    assert {tuple(block.owners) for block in held} == {("long",)}
    assert {(block.reference_count, block.idle_seconds) for block in held} == {(1, 0.0)}
    assert len(held) == page.stats.blocks_used >= 3


async def test_whoever_waits_for_an_answer_hears_of_a_killed_engine(front: Front) -> None:
    client = client_of(front)
    os.kill(client.pid, signal.SIGSTOP)
    waiting = asyncio.create_task(client.reset_prefix_cache())
    await asyncio.sleep(0.05)
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError):
        await asyncio.wait_for(waiting, patient(10))
    with pytest.raises(EngineDeadError):
        await client.reset_prefix_cache()


async def test_abort_frees_blocks_at_once(front: Front) -> None:
    client = client_of(front)
    for token, name in enumerate(("long", "longer"), 7):
        await client.add(request_for(name, prompt=[token] * 100, max_tokens=400))
    await front.until(lambda: front.stats.running == 2)
    used = front.stats.blocks_used
    assert used >= 14
    aborted_at = len(front.tokens.get("long", []))
    await client.abort(["long", "nobody"])
    await front.until(lambda: front.stats.running == 1)
    assert front.stats.blocks_used < used
    assert len(front.tokens["long"]) < aborted_at + 60
    await client.abort(["longer"])
    await client.abort([])
    # The worker's copies are gone with the next step, which nothing else need cause.
    await front.until(lambda: front.stats.running == front.stats.blocks_used == 0)
    assert front.ends == {}


async def test_a_refused_request_harms_no_other(front: Front) -> None:
    good = asyncio.create_task(front.result(request_for("good", max_tokens=20)))
    assert await front.result(request_for("bad", prompt=[600])) == []
    assert "token id 600 is outside" in (front.ends["bad"].error or "")
    assert len(await good) == 20


async def test_every_waiter_hears_of_a_killed_engine(front: Front) -> None:
    client = client_of(front)
    waiters = [asyncio.create_task(front.result(request_for(f"w{index}", max_tokens=400))) for index in range(20)]
    await front.until(lambda: front.stats.running == 8)
    os.kill(client.pid, signal.SIGKILL)
    killed = time.monotonic()
    results = await asyncio.gather(*waiters, return_exceptions=True)
    await client.wait_dead()
    assert time.monotonic() - killed < patient(1)
    assert {(type(result), str(result)) for result in results} == {(EngineDeadError, "the engine died (signal 9)")}
    assert not client.is_alive
    assert front.dead_calls == 1
    with pytest.raises(EngineDeadError, match="signal 9"):
        await client.add(request_for("late"))
    await client.abort(["w1"])


async def test_interrupts_and_terminations_are_the_server_s_to_handle(front: Front) -> None:
    client = client_of(front)
    for kind in (signal.SIGINT, signal.SIGTERM):
        os.kill(client.pid, kind)
    assert len(await front.result(request_for("after"))) == 8
    assert client.is_alive


async def test_close_stops_the_engine_and_tells_who_waits(model: Path) -> None:
    front = await start(config_for(model))
    client = client_of(front)
    waiter = asyncio.create_task(front.result(request_for("w", max_tokens=400)))
    await front.until(lambda: front.stats.running == 1)
    pid = client.pid
    started = time.monotonic()
    await client.close()
    assert time.monotonic() - started < patient(2)
    assert not is_running(pid)
    with pytest.raises(EngineDeadError):
        await waiter
    await client.close()
    assert front.dead_calls == 1
    with pytest.raises(EngineDeadError):
        await client.add(request_for("late"))


async def test_close_ends_an_engine_that_hangs(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.engine.client.STOP_SECONDS", 0.3)
    front = await start(config_for(model))
    os.kill(client_of(front).pid, signal.SIGSTOP)
    started = time.monotonic()
    await client_of(front).close()
    assert time.monotonic() - started < patient(2)


async def test_a_front_end_that_can_t_take_an_output_in_leaves_nobody_waiting(model: Path) -> None:
    front = await start(config_for(model))
    client = client_of(front)

    def on_batch(outputs: list[EngineOutput], stats: EngineStats) -> None:
        if outputs:
            raise KeyError("lost")

    client._on_batch = on_batch
    await client.add(request_for("a"))
    await asyncio.wait_for(client.wait_dead(), patient(5))
    assert str(client.dead_error()) == "what the engine sent could not be taken in (KeyError: 'lost')"
    await client.close()


async def both_ways(config: EngineConfig, kind: type[Exception]) -> tuple[str, str | None]:
    """The error of a start, which must be the same in process and out of it."""
    with pytest.raises(kind) as inside:
        build_core(config, ConsoleProgress(quiet=True), lambda line: None)
    with pytest.raises(kind) as outside:
        await start(config)
    assert str(outside.value) == str(inside.value)
    param = getattr(outside.value, "param", None)
    assert param == getattr(inside.value, "param", None)
    return str(outside.value), param


async def test_a_model_that_can_t_be_loaded(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    (tmp_path / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    message, _ = await both_ways(config_for(tmp_path), ModelLoadError)
    assert message == f"{tmp_path}: tensor model.layers.2.input_layernorm.weight is missing"


async def test_a_configuration_that_can_t_hold(model: Path) -> None:
    assert await both_ways(config_for(model, longest=5000), ConfigError) == (
        "max_model_len: 5000 is more than the model's own limit of 512 tokens",
        "max_model_len",
    )


async def test_an_engine_that_dies_while_it_starts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = EngineClient._launch

    async def launch_and_kill(self: EngineClient, message: object) -> None:
        await launch(self, message)  # type: ignore[arg-type]
        os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(EngineClient, "_launch", launch_and_kill)
    with pytest.raises(EngineDeadError, match=r"the engine died while it started \(signal 9\)"):
        await start(config_for(model))


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.15, 0.4])
async def test_a_start_that_is_cancelled(model: Path, seconds: float) -> None:
    """In whatever stage: before the process, in its imports, in its load."""
    task = asyncio.create_task(start(config_for(model)))
    await asyncio.sleep(seconds)
    task.cancel()
    try:
        front = await asyncio.wait_for(task, patient(5))
    except asyncio.CancelledError:
        pass
    else:
        await client_of(front).close()


async def test_files_of_the_current_folder_don_t_shadow_modules(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json.py", "numpy.py", "octavo.py", "signal.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    front = await start(config_for(model))
    assert len(await front.result(request_for("a"))) == 8
    await client_of(front).close()


async def test_a_long_folder_for_temporary_files(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's path is limited to about a hundred bytes."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with monkeypatch.context() as patch:
        patch.setenv("TMPDIR", str(deep))
        patch.setattr(tempfile, "tempdir", None)
        front = await start(config_for(model))
        await client_of(front).close()
    assert list(deep.iterdir()) == []


PARENT = """
import asyncio, sys
from engines import config_for, request_for
from octavo.engine.client import EngineClient

async def main():
    client = EngineClient.start(config_for(sys.argv[1]), lambda outputs, stats: None, quiet=True)
    if sys.argv[2] == "loading":
        task = asyncio.create_task(client)
        while not asyncio.all_tasks() or not (children := find()):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # until it knows what to load
        print(children.pop(), flush=True)
    else:
        client = await client
        if sys.argv[2] == "busy":
            for index in range(8):
                await client.add(request_for(f"r{index}", max_tokens=500))
        print(client.pid, flush=True)
    await asyncio.sleep(60)

def find():
    from engines import children
    return children()

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["idle", "busy", "loading"])
def test_no_engine_outlives_its_front_end(model: Path, state: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(model), state], env=environment, stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        engine = int(parent.stdout.readline())
        assert is_running(engine)
        parent.kill()
    killed = time.monotonic()
    while is_running(engine):
        assert time.monotonic() - killed < patient(2)
        time.sleep(0.01)
