"""Whatever is asked of a model, the salt of its prompt and its priority reach the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, BeamSearchParams, PoolingParams, SamplingParams
from octavo.api.async_engine import AsyncLLMEngine
from octavo.api.engine_args import EngineArgs
from octavo.api.llm_engine import LLMEngine
from octavo.protocol.wire import EngineRequest

PROMPT = {"prompt": "Once upon a time there was a prompt that fills some blocks of the cache", "cache_salt": "tenant"}
SAMPLING, BEAMS, POOLING = SamplingParams(temperature=0, max_tokens=2), BeamSearchParams(2, 2), PoolingParams()


@pytest.fixture(scope="module")
def urgent(tiny_llama: Path) -> Iterator[LLM]:
    """An LLM for which priorities mean something."""
    with LLM(str(tiny_llama), scheduling_policy="priority", quiet=True) as made:
        yield made


def seen_by(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, int]]:
    """The salt and priority of each request that the engine of `llm` is given from now on."""
    seen: list[tuple[str | None, int]] = []
    add = llm._core.add
    monkeypatch.setattr(llm._core, "add", lambda request: (seen.append((request.cache_salt, request.priority)), add(request)))
    return seen


CALLS: dict[str, Callable[[LLM], Any]] = {
    "generate": lambda llm: llm.generate([PROMPT], SAMPLING, priority=[-7], use_tqdm=False),
    "beam_search": lambda llm: llm.beam_search([PROMPT], BEAMS, priority=[-7]),
    "embed": lambda llm: llm.embed([PROMPT], POOLING, priority=[-7], use_tqdm=False),
    "encode": lambda llm: llm.encode([PROMPT], POOLING, priority=[-7], use_tqdm=False),
}


@pytest.mark.parametrize("call", CALLS)
def test_in_process(urgent: LLM, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    seen = seen_by(urgent, monkeypatch)
    CALLS[call](urgent)
    assert seen == [("tenant", -7)]


def test_step_by_step(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLMEngine(EngineArgs(str(tiny_llama), scheduling_policy="priority", quiet=True)) as engine:
        seen = seen_by(engine._llm, monkeypatch)
        engine.add_request("x", PROMPT, SAMPLING, priority=-7)
    assert seen == [("tenant", -7)]


async def first(outputs: AsyncGenerator[Any, None]) -> None:
    await anext(outputs)


ASYNC_CALLS: dict[str, Callable[[AsyncLLM], Any]] = {
    "generate": lambda llm: first(llm.generate(PROMPT, SAMPLING, "x", priority=-7)),
    "beam_search": lambda llm: first(llm.beam_search(PROMPT, BEAMS, "x", priority=-7)),
    "embed": lambda llm: llm.embed(PROMPT, POOLING, "x", priority=-7),
    "encode": lambda llm: llm.encode(PROMPT, POOLING, "x", priority=-7),
}


VLLM_CALLS: dict[str, Callable[[AsyncLLMEngine], Any]] = {
    "generate": lambda engine: first(engine.generate(PROMPT, SAMPLING, "x", priority=-7)),
    "encode": lambda engine: first(engine.encode(PROMPT, POOLING, "x", priority=-7)),
}


class SentError(Exception):
    """What would have gone to an engine."""


@pytest.fixture
def apart(urgent: LLM) -> AsyncLLM:
    """One whose engine, which would be a process of its own, raises what it is sent."""

    async def add(*requests: EngineRequest) -> None:
        raise SentError([(request.cache_salt, request.priority) for request in requests])

    async def abort(request_ids: list[str]) -> None:
        assert request_ids

    model = AsyncLLM(urgent._front, None)
    model._client = SimpleNamespace(is_alive=True, check=lambda: None, add=add, abort=abort)
    return model


@pytest.mark.parametrize("call", ASYNC_CALLS)
async def test_to_an_engine_of_its_own(apart: AsyncLLM, call: str) -> None:
    with pytest.raises(SentError) as sent:
        await ASYNC_CALLS[call](apart)
    assert sent.value.args == ([("tenant", -7)],)


@pytest.mark.parametrize("call", VLLM_CALLS)
async def test_under_vllm_s_name(apart: AsyncLLM, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    async def start(engine: AsyncLLMEngine) -> AsyncLLM:
        return apart

    monkeypatch.setattr(AsyncLLMEngine, "start", start)
    with pytest.raises(SentError) as sent:
        await VLLM_CALLS[call](AsyncLLMEngine(EngineArgs(str(tiny_llama))))
    assert sent.value.args == ([("tenant", -7)],)


def test_an_embedding_finds_only_what_has_its_salt(urgent: LLM) -> None:
    def found(**salt: str) -> int:
        return urgent.embed([{"prompt": PROMPT["prompt"], **salt}], use_tqdm=False)[0].num_cached_tokens

    assert urgent.reset_prefix_cache()
    assert [found(), found(cache_salt="a"), found(cache_salt="b")] == [0, 0, 0]
    assert found(cache_salt="a") == found() > 0
