"""What is found in the prefix cache has the bits that computing it again would give."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from setups import Bits, Setup
from workload import PROMPTS, bits, greedy, prompts, run, run_alone, seeded

from octavo import SamplingParams
from octavo.engine import core as core_module
from octavo.kvcache.manager import KVCacheManager

BLOCK = 16


@pytest.fixture(scope="module")
def params(setup: Setup) -> list[SamplingParams]:
    """Greedy ones and drawn ones, in turn."""
    return [both[index % 2] for index, both in enumerate(zip(greedy(), seeded(), strict=True))][: setup.requests]


@pytest.fixture(scope="module")
def alone(setup: Setup, params: list[SamplingParams]) -> Bits:
    """Each request by itself, with the cache off."""
    with setup.start(enable_prefix_caching=False) as llm:
        return run_alone(llm, params)


def test_cold_and_warm_as_without(setup: Setup, params: list[SamplingParams], alone: Bits) -> None:
    with setup.start() as llm:
        assert run(llm, params) == alone
        cold = llm._core.stats()
        assert run(llm, params) == alone
        warm = llm._core.stats()
        assert run_alone(llm, params) == alone
    assert cold.prefix_cache_hits == 0
    hits = sum((len(prompt) - (len(prompt) % BLOCK == 0)) // BLOCK * BLOCK for prompt in prompts()[: len(params)])
    assert warm.prefix_cache_hits >= hits > 30 * len(params)
    assert warm.prompt_tokens_computed - cold.prompt_tokens_computed < cold.prompt_tokens_computed // 4


@pytest.mark.parametrize("budget", [16, 512])
def test_warm_at_every_token_budget(setup: Setup, params: list[SamplingParams], alone: Bits, budget: int) -> None:
    with setup.start(max_num_batched_tokens=budget) as llm:
        assert run(llm, params) == alone
        assert run(llm, params) == alone


def test_eviction_changes_nothing(setup: Setup, params: list[SamplingParams], alone: Bits) -> None:
    """A pool of little more than the longest request: blocks are found, dropped and computed anew all the time."""
    twice = [index for pair in range(0, len(params), 2) for index in (pair, pair + 1, pair, pair + 1)]
    with setup.start(num_gpu_blocks_override=24) as llm:
        outputs = llm.generate([prompts()[index] for index in twice], [params[index] for index in twice], use_tqdm=False)
        stats = llm._core.stats()
    assert bits(outputs) == [alone[index] for index in twice]
    assert stats.blocks_evicted > 100 * len(params) // PROMPTS
    assert stats.prefix_cache_hits > 1000 * len(params) // PROMPTS


def test_preempted_requests_find_what_they_computed(setup: Setup, params: list[SamplingParams]) -> None:
    longer = [msgspec.structs.replace(each, max_tokens=40 + index * PROMPTS // len(params)) for index, each in enumerate(params)]
    short = [prompt[:40] for prompt in prompts()[: len(params)]]
    with setup.start(enable_prefix_caching=False) as llm:
        expected = [bits(llm.generate(prompt, each, use_tqdm=False))[0] for prompt, each in zip(short, longer, strict=True)]
    with setup.start(num_gpu_blocks_override=40 if len(params) == PROMPTS else 20) as llm:
        assert bits(llm.generate(short, longer, use_tqdm=False)) == expected
        assert llm._core.stats().preemptions >= 5


@pytest.mark.parametrize("tail", [0, 1, 7])
def test_a_shared_beginning_and_whole_prompts_found(setup: Setup, tail: int) -> None:
    """A prompt that is found whole has its last token computed once more, and not written."""
    made = random.Random(3)
    start = [made.randrange(4, 512) for _ in range(6 * BLOCK)]
    asked = [start + [made.randrange(4, 512) for _ in range(tail)] for _ in range(8)]
    sampling = [SamplingParams(temperature=0.9, seed=seed, max_tokens=20, logprobs=3) for seed in range(8)]

    def results(llm: Any) -> Bits:
        return bits(llm.generate(asked, sampling, use_tqdm=False))

    with setup.start(enable_prefix_caching=False) as llm:
        expected = results(llm)
    with setup.start() as llm:
        assert results(llm) == expected
        assert llm._core.stats().prompt_tokens_computed == len(start) + 8 * tail + 7 * (tail == 0)
        assert results(llm) == expected
        outputs = llm.generate(asked, sampling, use_tqdm=False)
        assert {output.num_cached_tokens for output in outputs} == {len(start) - (tail == 0)}


def test_a_conversation_finds_its_answers(setup: Setup) -> None:
    """Blocks of generated tokens are found as those of prompts are."""
    sampling = SamplingParams(temperature=0.8, seed=5, max_tokens=40, logprobs=2, ignore_eos=True)

    def talk(llm: Any) -> tuple[Bits, int]:
        said, heard, cached = [9, 8, 7, 6, 5], [], 0
        for turn in range(4):
            (output,) = llm.generate(said, sampling, use_tqdm=False)
            heard += bits([output])
            cached += output.num_cached_tokens
            said = [*said, *output.outputs[0].token_ids, 11, 12 + turn]
        return heard, cached

    with setup.start(enable_prefix_caching=False) as llm:
        expected, nothing = talk(llm)
    with setup.start() as llm:
        found, cached = talk(llm)
    assert found == expected
    assert nothing == 0
    # Of 45, 87 and 129 tokens, 44 and so on have been computed, and all their full blocks are found.
    assert cached == 32 + 80 + 128


@pytest.mark.parametrize("collide", [lambda parent, contents: b"same", lambda parent, contents: contents[:1]], ids=["all", "many"])
def test_contents_that_collide_are_told_apart(
    setup: Setup, params: list[SamplingParams], alone: Bits, monkeypatch: pytest.MonkeyPatch, collide: Callable[[bytes, bytes], bytes]
) -> None:
    """With a hash that is no good, less is found, and nothing that is not there."""
    monkeypatch.setattr(core_module, "KVCacheManager", partial(KVCacheManager, hash_block=collide))
    with setup.start() as llm:
        assert run(llm, params) == alone
        assert run(llm, params) == alone
        stats = llm._core.stats()
    assert 0 < stats.blocks_cached < 256
    assert stats.prefix_cache_hits > 0
