"""Blocks that were saved and restored have the bits that computing them again would give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from setups import Bits, Setup
from workload import bits, greedy, prompts, run, run_alone, seeded

from octavo import LLM, SamplingParams

BLOCK = 16


@pytest.fixture(scope="module")
def params(setup: Setup) -> list[SamplingParams]:
    """Greedy ones and drawn ones, in turn."""
    return [both[index % 2] for index, both in enumerate(zip(greedy(), seeded(), strict=True))][: setup.requests]


@pytest.fixture(scope="module")
def cold(setup: Setup, params: list[SamplingParams]) -> Bits:
    """Each request by itself, with the cache off."""
    with setup.start(enable_prefix_caching=False) as llm:
        return run_alone(llm, params)


def test_a_restart_gives_the_same_bits(setup: Setup, params: list[SamplingParams], cold: Bits, tmp_path: Path) -> None:
    with setup.start(prefix_cache_dir=tmp_path) as llm:
        assert run(llm, params) == cold
        count = llm._core.stats().blocks_cached
    for _ in range(2):
        with setup.start(prefix_cache_dir=tmp_path) as llm:
            assert llm._core.stats().blocks_cached == count
            outputs = llm.generate(prompts()[: len(params)], params, use_tqdm=False)
        assert bits(outputs) == cold
        # All full blocks of each prompt; of a prompt that fills its last block, its last token is computed once more.
        assert [output.num_cached_tokens for output in outputs] == [
            min(len(prompt) // BLOCK * BLOCK, len(prompt) - 1) for prompt in prompts()[: len(params)]
        ]


@pytest.mark.parametrize("blocks", [24, 60])
def test_a_smaller_cache_takes_what_it_can_hold(
    setup: Setup, params: list[SamplingParams], cold: Bits, tmp_path: Path, blocks: int
) -> None:
    with setup.start(prefix_cache_dir=tmp_path) as llm:
        run(llm, params)
        count = llm._core.stats().blocks_cached
    assert count > 60
    with setup.start(prefix_cache_dir=tmp_path, num_gpu_blocks_override=blocks) as llm:
        assert llm._core.stats().blocks_cached == blocks
        manager = llm._core._scheduler._cache
        found = [manager.new_table(prompt).find(len(prompt) - 1).num_tokens for prompt in prompts()[: len(params)]]
        # Of a prompt that fills its last block, one token more would be found.
        most = max((index for index in range(len(params)) if len(prompts()[index]) % BLOCK), key=found.__getitem__)
        (output,) = llm.generate(prompts()[most], params[most], use_tqdm=False)
        assert output.num_cached_tokens == found[most] > 0
        assert bits([output]) == [cold[most]]
        assert run_alone(llm, params) == cold


def test_saved_while_it_goes_on(setup: Setup, params: list[SamplingParams], cold: Bits, tmp_path: Path) -> None:
    """What is computed after a save is not in it, and the next one has that too."""
    half = len(params) // 2
    llm = setup.start(prefix_cache_dir=tmp_path)
    llm.generate(prompts()[:half], params[:half], use_tqdm=False)
    saved = llm.save_prefix_cache()
    assert saved == llm._core.stats().blocks_cached
    assert run(llm, params) == cold
    assert llm._core.stats().blocks_cached > saved
    index = json.loads((tmp_path / "prefix-cache.json").read_text())
    assert sum(each["blocks"] for each in index["files"]) == saved
    # As if it were killed here: nothing is saved any more.
    llm._core.close()
    with setup.start(prefix_cache_dir=tmp_path) as llm:
        assert llm._core.stats().blocks_cached == saved
        assert run(llm, params) == cold


def test_tenants_stay_apart(setup: Setup, tmp_path: Path) -> None:
    prompt = prompts()[max(range(64), key=lambda index: len(prompts()[index]))]
    sampling = SamplingParams(temperature=0, max_tokens=4)

    def found(llm: LLM, salt: str | None) -> int:
        return llm.generate({"prompt_token_ids": prompt, "cache_salt": salt}, sampling, use_tqdm=False)[0].num_cached_tokens

    full = len(prompt) // BLOCK * BLOCK
    with setup.start(prefix_cache_dir=tmp_path) as llm:
        assert [found(llm, "tenant one") for _ in range(2)] == [0, full]
    assert not any(b"tenant one" in file.read_bytes() for file in tmp_path.iterdir())
    with setup.start(prefix_cache_dir=tmp_path) as llm:
        assert [found(llm, salt) for salt in ("tenant two", None, "tenant one")] == [0, 0, full]
