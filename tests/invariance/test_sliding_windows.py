"""Giving back what a window has passed changes no bit, whatever else happens to the cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from model_copy import copy_model
from setups import Bits, Setup
from workload import bits, greedy, prompts, run, seeded

from octavo import SamplingParams
from octavo.backends.select import has_native
from octavo.engine import core as core_module
from octavo.kvcache.manager import KVCacheManager

WINDOW = 32


@pytest.fixture(scope="module", params=["reference", "cpu"])
def setup(request: pytest.FixtureRequest, fixtures_dir: Path) -> Setup:
    if request.param == "cpu" and not has_native():
        pytest.skip("this installation has no native module")
    return Setup(str(fixtures_dir / "tiny-mistral"), request.param)


@pytest.fixture(scope="module")
def params(setup: Setup) -> list[SamplingParams]:
    """Greedy ones and drawn ones, in turn, that go on for longer than the window."""
    return [
        msgspec.structs.replace(both[index % 2], max_tokens=30 + index % 40)
        for index, both in enumerate(zip(greedy(), seeded(), strict=True))
    ][: setup.requests]


def keep_everything(num_blocks: int, block_size: int, **options: Any) -> KVCacheManager:
    """A cache that gives nothing back before a request's end."""
    return KVCacheManager(num_blocks, block_size, **{**options, "window": None})


@pytest.fixture(scope="module")
def kept(setup: Setup, params: list[SamplingParams]) -> Bits:
    """What comes without any of it: no block is given back, and none is found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "KVCacheManager", keep_everything)
        with setup.start(enable_prefix_caching=False) as llm:
            assert llm._core._scheduler._cache.window is None
            return run(llm, params)


def watched(llm: Any) -> list[int]:
    """The most blocks that any request held after each step."""
    seen: list[int] = []
    scheduler, step = llm._core._scheduler, llm._core.step

    def measured() -> list[Any]:
        outputs = step()
        seen.extend(len(request.table.held) for request in scheduler._running.values())
        return outputs

    llm._core.step = measured
    return seen


@pytest.mark.parametrize("budget", [16, 64, 512])
@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
def test_with_and_without(setup: Setup, params: list[SamplingParams], kept: Bits, cache: bool, budget: int) -> None:
    with setup.start(enable_prefix_caching=cache, max_num_batched_tokens=budget, num_gpu_blocks_override=1000) as llm:
        held = watched(llm)
        assert run(llm, params) == kept
        # 31 tokens before the next one lie in three blocks at most.
        assert max(held) == 3
        assert run(llm, params) == kept
        hits = llm._core.stats().prefix_cache_hits
    assert hits > 30 * len(params) if cache else hits == 0


@pytest.mark.parametrize("blocks", [12, 40])
def test_preempted_and_evicted(setup: Setup, params: list[SamplingParams], kept: Bits, blocks: int) -> None:
    """Twelve blocks hold less than the longest request; more run at once than there is room for."""
    with setup.start(num_gpu_blocks_override=blocks, max_num_batched_tokens=100) as llm:
        assert run(llm, params) == kept
        assert run(llm, params) == kept
        stats = llm._core.stats()
    assert stats.blocks_evicted > 8 * len(params)
    assert stats.blocks_used == 0


def test_saved_and_restored(setup: Setup, params: list[SamplingParams], kept: Bits, tmp_path: Path) -> None:
    """The second engine finds what the first one left, also behind what was reused, and a smaller one as much as it has room for."""
    with setup.start(prefix_cache_dir=tmp_path, max_num_batched_tokens=64) as llm:
        assert run(llm, params) == kept
        count = llm._core.stats().blocks_cached
    with setup.start(prefix_cache_dir=tmp_path) as llm:
        assert llm._core.stats().blocks_cached == count
        assert run(llm, params) == kept
        assert llm._core.stats().prefix_cache_hits > 300
    with setup.start(prefix_cache_dir=tmp_path, num_gpu_blocks_override=24) as llm:
        assert llm._core.stats().blocks_cached == 24
        assert run(llm, params) == kept


def test_swapped_out_and_in(setup: Setup, params: list[SamplingParams]) -> None:
    """Only what the windows still see goes to swap space, and nothing of it is computed again."""
    short = [prompt[:8] for prompt in prompts()[:16]]
    growing = [msgspec.structs.replace(each, max_tokens=50 + index) for index, each in enumerate(params[:16])]
    with setup.start(enable_prefix_caching=False) as llm:
        wanted = bits(llm.generate(short, growing, use_tqdm=False))
    with setup.start(num_gpu_blocks_override=8, enable_prefix_caching=False, swap_space="8MiB", preemption_mode="swap") as llm:
        assert bits(llm.generate(short, growing, use_tqdm=False)) == wanted
        stats = llm._core.stats()
    assert stats.preemptions > 3
    # What was not reused meanwhile need not be copied back.
    assert 0 < stats.blocks_swapped_in <= stats.blocks_swapped_out <= 3 * stats.preemptions
    assert stats.swap_blocks_used == stats.swapped == 0
    assert stats.prompt_tokens_computed == sum(map(len, short))


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(setup: Setup, params: list[SamplingParams], kept: Bits, threads: int) -> None:
    with setup.start(threads=threads, max_num_batched_tokens=48) as llm:
        assert run(llm, params) == kept


def test_blocks_of_sixty_four(setup: Setup, params: list[SamplingParams], kept: Bits) -> None:
    """Longer than the window."""
    with setup.start(block_size=64) as llm:
        assert run(llm, params) == kept
        assert run(llm, params) == kept


@pytest.mark.parametrize("collide", [lambda parent, contents: b"same", lambda parent, contents: contents[:1]], ids=["all", "many"])
def test_contents_that_collide(
    setup: Setup, params: list[SamplingParams], kept: Bits, monkeypatch: pytest.MonkeyPatch, collide: Any
) -> None:
    monkeypatch.setattr(core_module, "KVCacheManager", partial(KVCacheManager, hash_block=collide))
    with setup.start() as llm:
        assert run(llm, params) == kept
        assert run(llm, params) == kept


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
def test_samples_of_a_prompt_longer_than_the_window(setup: Setup, cache: bool) -> None:
    prompt = prompts()[max(range(64), key=lambda index: len(prompts()[index]))]
    sampling = SamplingParams(temperature=0.9, seed=40, max_tokens=50, logprobs=2, ignore_eos=True)
    alone = []
    with setup.start(enable_prefix_caching=False) as llm:
        for index in range(6):
            alone.append(bits(llm.generate(prompt, msgspec.structs.replace(sampling, seed=40 + index), use_tqdm=False))[0][0])
    with setup.start(enable_prefix_caching=cache, max_num_batched_tokens=64) as llm:
        (output,) = llm.generate(prompt, msgspec.structs.replace(sampling, n=6), use_tqdm=False)
        assert list(bits([output])[0]) == alone
        assert llm._core.stats().prompt_tokens_computed == len(prompt) + 5


def test_thousands_of_tokens_in_the_memory_of_a_window(setup: Setup, tmp_path: Path) -> None:
    length = 4000 if setup.backend == "cpu" else 600
    long = Setup(str(copy_model(Path(setup.model), tmp_path / "long", config={"max_position_embeddings": 8192})), setup.backend)
    sampling = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, logprobs=0)
    with long.start(num_gpu_blocks_override=8, max_num_batched_tokens=64) as llm:
        # Of a window of 32 and steps of 64, in blocks of 16.
        assert llm._core.info.max_model_len == 8192
        held = watched(llm)
        (output,) = llm.generate([[7, 8, 9] * 50], sampling, use_tqdm=False)
        assert llm._core.stats().preemptions == 0
    assert len(output.outputs[0].token_ids) == length
    assert max(held) == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "KVCacheManager", keep_everything)
        with long.start(num_gpu_blocks_override=300) as llm:
            kept = watched(llm)
            whole = llm.generate([[7, 8, 9] * 50], sampling, use_tqdm=False)
    assert bits(whole) == bits([output])
    assert max(kept) == (150 + length - 1 + 15) // 16
