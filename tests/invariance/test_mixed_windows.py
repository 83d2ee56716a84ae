"""Models of which some layers see a window and others everything: two kinds of blocks, and the same bits whatever happens to either."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from model_copy import copy_model
from setups import Bits, Setup
from workload import bits, prompts, seeded

from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.backends.select import has_native
from octavo.engine import core as core_module
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.window import NO_END

WINDOW = 32
# Of the workload's requests, among them the longest.
CHOSEN = sorted(range(64), key=lambda index: len(prompts()[index]))[3::5]
PROMPTS = [prompts()[index] for index in CHOSEN]
PARAMS = [msgspec.structs.replace(seeded()[index], max_tokens=20 + index % 40, min_tokens=0) for index in CHOSEN]


@pytest.fixture(scope="module", params=[("tiny-gemma2", "reference"), ("tiny-gemma2", "cpu"), ("tiny-gemma3-text", "cpu")], ids="-".join)
def setup(request: pytest.FixtureRequest, fixtures_dir: Path) -> Setup:
    name, backend = request.param
    if backend == "cpu" and not has_native():
        pytest.skip("this installation has no native module")
    return Setup(str(fixtures_dir / name), backend)


def run(llm: LLM) -> Bits:
    """All requests at once."""
    return bits(llm.generate(PROMPTS, PARAMS, use_tqdm=False))


def keep_everything(num_blocks: int, block_size: int, **options: Any) -> KVCacheManager:
    """A cache that gives nothing back before a request's end, and finds nothing."""
    window = replace(options["window"], size=NO_END)
    return KVCacheManager(num_blocks, block_size, **{**options, "window": window, "prefix_caching": False})


@pytest.fixture(scope="module")
def kept(setup: Setup) -> Bits:
    """Each request alone, in a cache that gives nothing back and finds nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "KVCacheManager", keep_everything)
        with setup.start() as llm:
            assert llm._core._scheduler._cache.window.size == NO_END
            return [bits(llm.generate(prompt, each, use_tqdm=False))[0] for prompt, each in zip(PROMPTS, PARAMS, strict=True)]


def watched(llm: Any) -> tuple[list[int], list[int]]:
    """The most blocks of either kind that any request held after each step."""
    full: list[int] = []
    own: list[int] = []
    scheduler, step = llm._core._scheduler, llm._core.step

    def measured() -> list[Any]:
        outputs = step()
        for request in scheduler._running.values():
            full.append(len(request.table.full.held))
            own.append(len(request.table.window.held))
        return outputs

    llm._core.step = measured
    return full, own


@pytest.mark.parametrize(("cache", "budget", "threads"), [(True, 16, 1), (True, 512, 2), (False, 64, 2)])
def test_chunked_cached_and_on_any_threads(setup: Setup, kept: Bits, cache: bool, budget: int, threads: int) -> None:
    with setup.start(enable_prefix_caching=cache, max_num_batched_tokens=budget, threads=threads) as llm:
        full, own = watched(llm)
        assert run(llm) == kept
        # 31 tokens before the next one lie in three blocks at most, and all tokens of the longest request in many more.
        assert max(own) == 3
        assert max(full) > 15
        assert run(llm) == kept
        stats = llm._core.stats()
    assert stats.blocks_used == 0
    assert stats.prefix_cache_hits > 300 if cache else stats.prefix_cache_hits == 0


def test_evicted(setup: Setup, kept: Bits) -> None:
    """24 blocks of each kind hold the longest request and little more."""
    with setup.start(num_gpu_blocks_override=24, max_num_batched_tokens=100) as llm:
        assert run(llm) == kept
        assert run(llm) == kept
        stats = llm._core.stats()
    assert stats.blocks_total == 48
    assert stats.blocks_evicted > 100
    assert stats.blocks_used == 0


@pytest.fixture(scope="module")
def growing(setup: Setup) -> tuple[list[list[int]], list[SamplingParams], Bits]:
    """Requests that begin short and grow, and what they give."""
    short = [prompt[:40] for prompt in PROMPTS]
    params = [msgspec.structs.replace(each, max_tokens=60 + index, ignore_eos=True) for index, each in enumerate(PARAMS)]
    with setup.start(enable_prefix_caching=False) as llm:
        return short, params, bits(llm.generate(short, params, use_tqdm=False))


def test_preempted(setup: Setup, growing: tuple[list[list[int]], list[SamplingParams], Bits]) -> None:
    """Ten blocks hold one of the requests, and not all that begin."""
    short, params, wanted = growing
    with setup.start(num_gpu_blocks_override=10) as llm:
        assert bits(llm.generate(short, params, use_tqdm=False)) == wanted
        assert llm._core.stats().preemptions >= 5


def test_saved_and_restored(setup: Setup, kept: Bits, tmp_path: Path) -> None:
    """The second engine finds what the first one left of either kind, and a smaller one as much as it has room for."""
    with setup.start(prefix_cache_dir=tmp_path) as llm:
        assert run(llm) == kept
        count = llm._core.stats().blocks_cached
    with setup.start(prefix_cache_dir=tmp_path) as llm:
        assert llm._core.stats().blocks_cached == count
        assert run(llm) == kept
        assert llm._core.stats().prefix_cache_hits > 300
    with setup.start(prefix_cache_dir=tmp_path, num_gpu_blocks_override=24) as llm:
        assert llm._core.stats().blocks_cached == 48
        assert run(llm) == kept


def test_swapped_out_and_in(setup: Setup, growing: tuple[list[list[int]], list[SamplingParams], Bits]) -> None:
    """Blocks of either kind go and come back, and none of their tokens is computed again."""
    short, params, wanted = growing
    with setup.start(num_gpu_blocks_override=20, enable_prefix_caching=False, swap_space="8MiB", preemption_mode="swap") as llm:
        assert bits(llm.generate(short, params, use_tqdm=False)) == wanted
        stats = llm._core.stats()
    assert stats.preemptions >= 3
    assert stats.blocks_swapped_in - stats.window_blocks_swapped_in > stats.window_blocks_swapped_in > 3
    assert (stats.blocks_used, stats.swap_blocks_used, stats.swapped) == (0, 0, 0)
    assert stats.prompt_tokens_computed == sum(map(len, short))


def test_samples_share_what_the_prompt_leaves_of_either_kind(setup: Setup) -> None:
    sampling = SamplingParams(temperature=0.9, seed=40, max_tokens=30, logprobs=2, ignore_eos=True)
    prompt, alone = PROMPTS[-1], []
    with setup.start(enable_prefix_caching=False) as llm:
        for index in range(4):
            alone.append(bits(llm.generate(prompt, msgspec.structs.replace(sampling, seed=40 + index), use_tqdm=False))[0][0])
        (output,) = llm.generate(prompt, msgspec.structs.replace(sampling, n=4), use_tqdm=False)
        assert list(bits([output])[0]) == alone
        assert llm._core.stats().prompt_tokens_computed == 4 * len(prompt) + len(prompt) + 3


def test_beams_in_little_memory_are_those_in_much(setup: Setup) -> None:
    searches = [(PROMPTS[-1][:length], BeamSearchParams(beam_width=3, max_tokens=12, ignore_eos=True)) for length in (21, 64, 70, 5)]
    found = []
    for options in ({}, {"num_gpu_blocks_override": 16, "max_num_batched_tokens": 40}):
        with setup.start(**options) as llm:
            outputs = [llm.beam_search([prompt], params)[0] for prompt, params in searches]
            found.append([[(each.tokens, each.cum_logprob) for each in output.sequences] for output in outputs])
            assert llm._core.stats().blocks_used == 0
    assert found[0] == found[1]


def test_a_long_sequence_grows_only_where_layers_see_it_all(setup: Setup, tmp_path: Path) -> None:
    length = 1500 if setup.backend == "cpu" else 300
    long = Setup(str(copy_model(Path(setup.model), tmp_path / "long", config={"max_position_embeddings": 4096})), setup.backend)
    sampling = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, logprobs=0)
    prompt = [[7, 8, 9] * 50]
    options = {"enable_prefix_caching": False, "max_num_batched_tokens": 64, "max_num_seqs": 1, "kv_cache_memory_bytes": 4 << 20}
    with long.start(**options) as llm:
        info = llm._core.info
        # Of a window of 32 and steps of 64, in blocks of 16.
        assert info.num_window_blocks == 7
        assert info.num_blocks > 2 * info.num_window_blocks
        full, own = watched(llm)
        output = llm.generate(prompt, sampling, use_tqdm=False)
        assert llm._core.stats().preemptions == 0
    assert max(own) == 3
    # The last step but one: after the last the request is over.
    assert max(full) == (150 + length - 2 + 15) // 16
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "KVCacheManager", keep_everything)
        with long.start(num_gpu_blocks_override=120) as llm:
            assert bits(llm.generate(prompt, sampling, use_tqdm=False)) == bits(output)
