"""AsyncLLM: the ways in which a request ends early, and what its recorder hears."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from gathering import gather
from patience import patient
from processes import children, is_alive
from spy_recorder import SpyRecorder

from octavo import AsyncLLM, RequestOutput, SamplingParams
from octavo.config.engine import BackendConfig, CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.protocol.errors import ConfigError, EngineDeadError, InvalidRequestError, ModelLoadError, OctavoError
from octavo.protocol.wire import EngineOutput

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def start(llm: AsyncLLM, params: SamplingParams, request_id: str, prompt: Any = "The cat") -> AsyncGenerator[RequestOutput, None]:
    return cast("AsyncGenerator[RequestOutput, None]", llm.generate(prompt, params, request_id))


@pytest.fixture(scope="module")
def served_model(long_llama: Path) -> Path:
    return long_llama


async def until_idle(llm: AsyncLLM, seconds: float = 2.0) -> None:
    """Waits until the engine says that nothing runs and no block is taken."""
    async with asyncio.timeout(patient(seconds)):
        while llm.stats.running or llm.stats.waiting or llm.stats.blocks_used:
            await asyncio.sleep(0.01)


async def until_running(llm: AsyncLLM, count: int) -> None:
    """Waits until the engine says that `count` samples run; each has a token by then."""
    async with asyncio.timeout(patient(5)):
        while llm.stats.running != count:
            await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def fresh(recorder: SpyRecorder) -> None:
    recorder.clear()


async def test_closing_the_iterator_aborts(allm: AsyncLLM, recorder: SpyRecorder) -> None:
    outputs = start(allm, LONG, "r")
    first = await anext(outputs)
    assert not first.finished
    assert allm.stats.running == 1
    await outputs.aclose()
    await until_idle(allm)
    assert recorder.reasons == ["abort"]
    assert recorder.finished[0][2] < 5000


async def test_a_stream_comes_while_it_runs(allm: AsyncLLM) -> None:
    sizes = []
    async for output in allm.generate("The cat", msgspec.structs.replace(LONG, max_tokens=1000), "r"):
        sizes.append(len(output.outputs[0].token_ids))
    assert sum(sizes) == 1000
    assert len(sizes) > 4


async def test_an_iterator_that_is_dropped_aborts(allm: AsyncLLM, recorder: SpyRecorder) -> None:
    async for _ in allm.generate("The cat", LONG, "r"):
        break
    await until_idle(allm)
    assert recorder.reasons == ["abort"]


async def test_an_iterator_that_never_ran_leaves_nothing(allm: AsyncLLM, recorder: SpyRecorder) -> None:
    await start(allm, LONG, "r").aclose()
    assert recorder.reasons == []
    assert (await gather(allm.generate("x", SHORT, "r"))).output().finished


@pytest.mark.parametrize("params", [LONG, SamplingParams(n=3, max_tokens=None, ignore_eos=True)], ids=["one", "n=3"])
@pytest.mark.parametrize("stream", [True, False])
async def test_cancelling_a_task_aborts(allm: AsyncLLM, recorder: SpyRecorder, params: SamplingParams, stream: bool) -> None:
    task = asyncio.create_task(gather(allm.generate("The cat", params, "r", stream=stream)))
    await until_running(allm, params.n)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(allm)
    assert recorder.reasons == ["abort"]


@pytest.mark.parametrize("params", [LONG, SamplingParams(n=3, max_tokens=None, ignore_eos=True)], ids=["one", "n=3"])
@pytest.mark.parametrize("stream", [True, False])
async def test_abort_ends_the_iterator(allm: AsyncLLM, recorder: SpyRecorder, params: SamplingParams, stream: bool) -> None:
    task = asyncio.create_task(gather(allm.generate("The cat", params, "r", stream=stream)))
    await until_running(allm, params.n)
    await allm.abort("r")
    output = (await asyncio.wait_for(task, patient(2))).output()
    assert output.finished
    assert [sample.finish_reason for sample in output.outputs] == ["abort"] * params.n
    assert all(0 < len(sample.token_ids) < 5000 for sample in output.outputs)
    await until_idle(allm)
    assert recorder.reasons == ["abort"]
    assert recorder.finished[0][2] == sum(len(sample.token_ids) for sample in output.outputs)


async def test_aborting_what_is_not_there(allm: AsyncLLM) -> None:
    await allm.abort("nobody")
    await gather(allm.generate("x", SHORT, "done"))
    await allm.abort("done")


async def test_an_id_in_use(allm: AsyncLLM) -> None:
    outputs = start(allm, LONG, "twice")
    await anext(outputs)
    with pytest.raises(InvalidRequestError, match="'twice' is already in use") as caught:
        await gather(allm.generate("x", SHORT, "twice"))
    assert caught.value.param == "request_id"
    assert (await anext(outputs)).outputs[0].token_ids
    await outputs.aclose()


@pytest.mark.parametrize("request_id", [None, 5, ["a"], {}, ""])
async def test_ids_are_strings(allm: AsyncLLM, request_id: Any) -> None:
    with pytest.raises(TypeError, match=r"^request_id must be a str"):
        await gather(allm.generate("x", SHORT, request_id))
    with pytest.raises(TypeError, match=r"^request_id must be a str"):
        await allm.abort(request_id)


async def test_an_id_used_again_at_once_is_a_request_of_its_own(allm: AsyncLLM) -> None:
    """The engine may still be sending tokens of the first one, and hears of its abort only after the second has come."""
    expected = (await gather(allm.generate("x", SHORT, "other"))).output().outputs
    for turn in range(20):
        outputs = start(allm, LONG, "again", prompt=[9, 8, 7])
        for _ in range(turn % 3 + 1):
            await anext(outputs)
        await outputs.aclose()
        found = await asyncio.wait_for(gather(allm.generate("x", SHORT, "again")), patient(5))
        assert found.output().outputs == expected
    await until_idle(allm)


async def test_a_stop_string_ends_the_request_in_the_engine(allm: AsyncLLM, recorder: SpyRecorder) -> None:
    await gather(allm.generate("The cat", SamplingParams(temperature=0, max_tokens=None, stop="low"), "r"))
    await until_idle(allm, 1)
    assert recorder.reasons == ["stop"]
    assert sum(recorder.tokens) == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_the_recorder_counts_what_was_given(allm: AsyncLLM, recorder: SpyRecorder, stream: bool) -> None:
    given = [
        SHORT,
        SamplingParams(temperature=0, max_tokens=30, stop="low"),
        SamplingParams(n=3, seed=1, max_tokens=30, stop=["e", "o"]),
        SamplingParams(n=2, seed=2, max_tokens=7, ignore_eos=True),
    ]
    found = await asyncio.gather(*(gather(allm.generate("The cat", p, f"r{i}", stream=stream)) for i, p in enumerate(given)))
    tokens = [sum(len(sample.token_ids) for sample in gathered.output().outputs) for gathered in found]
    assert sum(recorder.tokens) == sum(tokens)
    assert recorder.firsts == sum(p.n for p in given)
    assert len(recorder.finished) == 4
    prompt = len(allm.tokenizer.encode("The cat"))
    ends = sorted((entry[1], entry[2], entry[4], entry[5] or 0) for entry in recorder.finished)
    assert ends == sorted((prompt, count, p.n, p.max_tokens or 0) for count, p in zip(tokens, given, strict=True))
    assert sorted(recorder.reasons)[:1] == ["length"]
    assert "stop" in recorder.reasons
    for *_, metrics, _, _ in recorder.finished:
        times = [metrics.arrival_time, metrics.first_scheduled_time, metrics.first_token_time, metrics.last_token_time]
        assert None not in times
        assert [*times, metrics.finished_time] == sorted([*times, metrics.finished_time])


async def test_the_recorder_sees_steps(allm: AsyncLLM, recorder: SpyRecorder) -> None:
    await until_idle(allm)
    await asyncio.sleep(0.1)
    recorder.clear()
    await gather(allm.generate([9] * 40, SHORT, "r"))
    await until_idle(allm)
    assert recorder.steps[0].step_tokens == 40
    assert recorder.steps[0].running == 1
    assert recorder.steps[0].blocks_used == 3
    assert recorder.steps[-1].blocks_used == 0


async def test_a_request_that_fails_in_the_engine(allm: AsyncLLM, recorder: SpyRecorder) -> None:
    """Told as the engine would, since no honest request makes it happen."""
    task = asyncio.create_task(gather(allm.generate("The cat", SamplingParams(n=2, max_tokens=None, ignore_eos=True), "r")))
    await until_running(allm, 2)
    (key,) = allm._waiting
    await allm._engine.abort([f"{key}:1"])
    allm._on_batch([EngineOutput(f"{key}:1", finish_reason="error", error="its numbers are broken")], allm.stats)
    with pytest.raises(OctavoError, match="its numbers are broken"):
        await asyncio.wait_for(task, patient(2))
    await until_idle(allm)
    assert recorder.reasons == ["error"]


async def test_refused_requests_are_not_recorded(allm: AsyncLLM, recorder: SpyRecorder) -> None:
    with pytest.raises(InvalidRequestError):
        await gather(allm.generate("", SHORT, "r"))
    assert recorder.finished == []


async def test_the_engine_is_one_child_that_leaves_no_file(allm: AsyncLLM) -> None:
    assert allm.engine_pid in children()
    command = Path(f"/proc/{allm.engine_pid}/cmdline").read_text()
    assert "octavo.engine.process" in command


async def launch(model: Path, recorder: SpyRecorder | None = None, **options: Any) -> AsyncLLM:
    # On the native backend requests of a small model would be over too soon.
    config = EngineConfig(model=ModelConfig(str(model)), backend=BackendConfig("reference"), **options)
    async with asyncio.timeout(patient(30)):
        return await AsyncLLM.start(config, recorder=recorder, quiet=True)


async def test_the_engines_death(long_llama: Path) -> None:
    recorder = SpyRecorder()
    llm = await launch(long_llama, recorder)
    tasks = [asyncio.create_task(gather(llm.generate("The cat", LONG, f"r{i}", stream=i % 2 == 0))) for i in range(6)]
    idle = start(llm, LONG, "idle")
    await anext(idle)
    killed = time.monotonic()
    os.kill(llm.engine_pid, signal.SIGKILL)
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), patient(2))
    assert time.monotonic() - killed < patient(2)
    for error in done:
        assert isinstance(error, EngineDeadError)
        assert "signal 9" in error.message
    with pytest.raises(EngineDeadError):
        async for _ in idle:
            pass
    await asyncio.wait_for(llm.wait_dead(), patient(1))
    assert not llm.is_alive
    assert recorder.reasons == ["error"] * 7
    with pytest.raises(EngineDeadError, match="signal 9"):
        await gather(llm.generate("x", SHORT, "late"))
    await llm.abort("r0")
    await asyncio.wait_for(llm.close(), patient(5))


async def test_closing_tells_those_who_wait(long_llama: Path) -> None:
    recorder = SpyRecorder()
    llm = await launch(long_llama, recorder)
    tasks = [asyncio.create_task(gather(llm.generate("The cat", LONG, f"r{i}", stream=i % 2 == 0))) for i in range(4)]
    await until_running(llm, 4)
    pid = llm.engine_pid
    await asyncio.wait_for(llm.close(), patient(5))
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), patient(2))
    assert [type(error) for error in done] == [EngineDeadError] * 4
    assert not is_alive(pid)
    with pytest.raises(EngineDeadError):
        await gather(llm.generate("x", SHORT, "late"))
    await llm.close()


async def test_errors_at_the_start(tiny_llama: Path, tmp_path: Path) -> None:
    before = children()
    with pytest.raises(ModelLoadError, match="nowhere"):
        await launch(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="memory") as caught:
        await launch(tiny_llama, cache=CacheConfig(kv_cache_memory=1 << 60))
    assert caught.value.param == "kv_cache_memory"
    with pytest.raises(ConfigError, match="chat_template"):
        await AsyncLLM.start(EngineConfig(model=ModelConfig(str(tiny_llama))), chat_template="{% for", quiet=True)
    assert children() == before


async def test_a_start_that_is_cancelled_leaves_no_process(tiny_llama: Path) -> None:
    before = children()
    for delay in (0.05, 0.2, 0.5):
        task = asyncio.create_task(launch(tiny_llama))
        await asyncio.sleep(delay)
        if task.done():
            await task.result().close()
            continue
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, patient(10))
        assert children() == before


async def test_another_event_loop_is_refused(allm: AsyncLLM, recorder: SpyRecorder) -> None:
    calls = [lambda: gather(start(allm, SHORT, "r")), allm.kv_blocks, allm.reset_prefix_cache, allm.close]
    for call in calls:
        with pytest.raises(RuntimeError, match="started in another event loop, and can be used and closed only there"):
            await asyncio.to_thread(asyncio.run, asyncio.wait_for(call(), patient(5)))
    assert not recorder.finished
    assert (await gather(start(allm, SHORT, "r"))).output().finished


async def test_the_engine_ends_with_the_event_loop(tiny_llama: Path) -> None:
    before = children()

    async def begin() -> tuple[AsyncLLM, asyncio.Task[Any]]:
        llm = await launch(tiny_llama)
        return llm, asyncio.create_task(gather(start(llm, LONG, "r")))

    llm, task = await asyncio.to_thread(asyncio.run, begin())
    assert task.cancelled()
    assert children() == before
    with pytest.raises(EngineDeadError, match="the event loop that the engine was started in has ended"):
        await gather(start(llm, SHORT, "s"))
    await llm.close()


async def test_more_requests_than_seats_and_blocks(tiny_llama: Path) -> None:
    recorder = SpyRecorder()
    llm = await launch(tiny_llama, recorder, cache=CacheConfig(num_blocks_override=20), scheduler=SchedulerConfig(max_num_seqs=8), seed=1)
    try:
        params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        async with asyncio.timeout(patient(60)):
            found = await asyncio.gather(*(gather(llm.generate([i + 5] * 20, params, f"r{i}")) for i in range(20)))
        assert all(len(gathered.output().outputs[0].token_ids) == 100 for gathered in found)
        assert llm.stats.preemptions > 0
        assert sum(entry[3].num_preemptions for entry in recorder.finished) == llm.stats.preemptions
        await until_idle(llm)
    finally:
        await llm.close()
