"""Samples that share their prompt's blocks have the bits of requests that never shared anything."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from gathering import gather
from setups import Setup
from workload import bits

from octavo import AsyncLLM, SamplingParams
from octavo.config.engine import BackendConfig, CacheConfig, EngineConfig, ModelConfig

SAMPLES = 8


def prompt_of(length: int) -> list[int]:
    made = random.Random(length)
    return [made.randrange(4, 512) for _ in range(length)]


def sampling(**options: Any) -> SamplingParams:
    return SamplingParams(temperature=0.9, seed=40, max_tokens=30, logprobs=2, ignore_eos=True, **options)


# Inside of a block, at its end, and in the first one.
LENGTHS = (70, 64, 5)


@pytest.fixture(scope="module")
def alone(setup: Setup) -> dict[int, list[Any]]:
    """Each sample as a request of its own, one after another, with the cache off."""
    found = {}
    with setup.start(enable_prefix_caching=False) as llm:
        for length in LENGTHS:
            found[length] = []
            for index in range(SAMPLES):
                params = sampling()
                params.seed = 40 + index
                found[length].append(bits(llm.generate(prompt_of(length), params, use_tqdm=False))[0][0])
    return found


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("seats", [3, 64])
def test_eight_samples(setup: Setup, alone: dict[int, list[Any]], cache: bool, seats: int) -> None:
    with setup.start(enable_prefix_caching=cache, max_num_seqs=seats) as llm:
        for length in LENGTHS:
            before = llm._core.stats()
            (output,) = llm.generate(prompt_of(length), sampling(n=SAMPLES), use_tqdm=False)
            after = llm._core.stats()
            assert list(bits([output])[0]) == alone[length]
            assert after.prompt_tokens_computed - before.prompt_tokens_computed == length + SAMPLES - 1
            assert after.blocks_copied - before.blocks_copied == (SAMPLES - 1 if length % 16 else 0)
            assert output.num_cached_tokens == 0
        assert llm._core.stats().preemptions == 0


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
def test_eight_samples_of_several_prompts_under_preemption(setup: Setup, alone: dict[int, list[Any]], cache: bool) -> None:
    with setup.start(enable_prefix_caching=cache, num_gpu_blocks_override=16, max_num_batched_tokens=48) as llm:
        for _ in range(2):
            outputs = llm.generate([prompt_of(length) for length in LENGTHS], sampling(n=SAMPLES), use_tqdm=False)
            assert [list(each) for each in bits(outputs)] == [alone[length] for length in LENGTHS]
        stats = llm._core.stats()
    assert stats.preemptions > 5
    assert stats.blocks_used == 0


def test_samples_are_streamed_alike_over_the_engine_s_socket(setup: Setup, alone: dict[int, list[Any]]) -> None:
    async def run() -> list[Any]:
        cache = CacheConfig(kv_cache_dtype=setup.kv_cache_dtype)
        config = EngineConfig(model=ModelConfig(setup.model), cache=cache, backend=BackendConfig(setup.backend))
        llm = await AsyncLLM.start(config, quiet=True)
        try:
            gathered = await gather(llm.generate(prompt_of(70), sampling(n=SAMPLES), "x"))
            assert llm.stats.blocks_copied == SAMPLES - 1
            return list(bits([gathered.output()])[0])
        finally:
            await llm.close()

    assert asyncio.run(run()) == alone[70]
