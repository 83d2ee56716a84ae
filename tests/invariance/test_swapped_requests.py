"""Requests that were in swap space have the bits of requests that never left the cache."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from setups import Bits, Setup
from workload import PROMPTS, bits, greedy, prompts, seeded

from octavo import LLM, SamplingParams

SHORT = [prompt[:40] for prompt in prompts()]


@pytest.fixture(scope="module")
def params(setup: Setup) -> list[SamplingParams]:
    """Greedy ones and drawn ones, in turn, all long enough to be in each other's way."""
    both = [pair[index % 2] for index, pair in enumerate(zip(greedy(), seeded(), strict=True))][: setup.requests]
    return [msgspec.structs.replace(each, max_tokens=40 + index * PROMPTS // len(both)) for index, each in enumerate(both)]


@pytest.fixture(scope="module")
def alone(setup: Setup, params: list[SamplingParams]) -> Bits:
    """Each request by itself, with the cache off."""
    with setup.start(enable_prefix_caching=False) as llm:
        return [bits(llm.generate(prompt, each, use_tqdm=False))[0] for prompt, each in zip(SHORT, params, strict=False)]


def blocks_for(params: list[SamplingParams]) -> int:
    """A cache that is too small for the requests to run together."""
    return 40 if len(params) == PROMPTS else 20


def computed_in(llm: LLM) -> list[int]:
    """Tokens that each step computes, as they come."""
    counts: list[int] = []
    run = llm._core._executor.run

    def counted(plan: Any) -> Any:
        counts.append(plan.num_tokens)
        return run(plan)

    llm._core._executor.run = counted  # type: ignore[method-assign]
    return counts


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("budget", [24, 512])
def test_swapped_out_and_in(setup: Setup, params: list[SamplingParams], alone: Bits, cache: bool, budget: int) -> None:
    options = {"num_gpu_blocks_override": blocks_for(params), "max_num_batched_tokens": budget, "enable_prefix_caching": cache}
    with setup.start(**options, swap_space="64MiB", preemption_mode="swap") as llm:
        counts = computed_in(llm)
        outputs = llm.generate(SHORT[: len(params)], params, use_tqdm=False)
        stats = llm._core.stats()
    assert bits(outputs) == alone
    assert stats.preemptions >= 5
    assert stats.blocks_swapped_in > 10
    assert (stats.blocks_used, stats.swap_blocks_used, stats.swapped) == (0, 0, 0)
    # Nothing that was swapped is computed again.
    known = sum(len(prompt) + len(output.outputs[0].token_ids) - 1 for prompt, output in zip(SHORT, outputs, strict=False))
    assert sum(counts) <= known
    assert cache or sum(counts) == known


@pytest.mark.parametrize(("space", "mode"), [("64MiB", "auto"), (0, "recompute"), (12, "swap")], ids=["auto", "recompute", "small"])
def test_by_either_way(setup: Setup, params: list[SamplingParams], alone: Bits, space: str | int, mode: str) -> None:
    """A swap space of a dozen blocks leaves most to be computed again."""
    with setup.start(num_gpu_blocks_override=blocks_for(params)) as llm:
        block = llm._core.info.kv_cache_bytes // blocks_for(params)
    size = space if isinstance(space, str) else space * block
    with setup.start(num_gpu_blocks_override=blocks_for(params), swap_space=size, preemption_mode=mode) as llm:
        assert bits(llm.generate(SHORT[: len(params)], params, use_tqdm=False)) == alone
        stats = llm._core.stats()
    assert stats.preemptions >= 5
    assert (stats.blocks_swapped_out == 0) == (mode == "recompute")
    if mode == "swap":
        assert stats.swap_blocks_total == 12


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
def test_samples_of_several_prompts(setup: Setup, cache: bool) -> None:
    made = random.Random(5)
    asked = [[made.randrange(4, 512) for _ in range(length)] for length in (70, 64, 5)]
    sampling = SamplingParams(n=8, temperature=0.9, seed=40, max_tokens=30, logprobs=2, ignore_eos=True)
    with setup.start(enable_prefix_caching=False) as llm:
        expected = [bits(llm.generate(prompt, sampling, use_tqdm=False)) for prompt in asked]
    options = {"enable_prefix_caching": cache, "num_gpu_blocks_override": 16, "max_num_batched_tokens": 48}
    with setup.start(**options, swap_space="64MiB", preemption_mode="swap") as llm:
        for _ in range(2):
            outputs = llm.generate(asked, sampling, use_tqdm=False)
            assert [bits([output]) for output in outputs] == expected
        stats = llm._core.stats()
    assert stats.preemptions > 5
    assert stats.blocks_swapped_in > 5
    assert (stats.blocks_used, stats.swap_blocks_used) == (0, 0)


def test_aborted_in_swap_space(setup: Setup, params: list[SamplingParams], alone: Bits) -> None:
    """An interrupt that comes while requests are swapped leaves nothing of them."""
    with setup.start(num_gpu_blocks_override=blocks_for(params), swap_space="64MiB", preemption_mode="swap") as llm:
        step = llm._core.step

        def interrupted() -> Any:
            outputs = step()
            if llm._core.stats().swapped:
                raise KeyboardInterrupt
            return outputs

        llm._core.step = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            llm.generate(SHORT[: len(params)], params, use_tqdm=False)
        llm._core.step = step  # type: ignore[method-assign]
        stats = llm._core.stats()
        assert (stats.blocks_used, stats.swap_blocks_used, stats.swapped) == (0, 0, 0)
        assert stats.blocks_swapped_out > 0
        assert bits(llm.generate(SHORT[: len(params)], params, use_tqdm=False)) == alone
