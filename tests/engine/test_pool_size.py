"""The KV cache's size: every branch of the budget, with the numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from octavo.config.engine import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.engine.pool_size import PoolSize, size_pool
from octavo.executors.executor import LoadedModel
from octavo.executors.in_process import widest_window
from octavo.graph.graph import CacheLayer
from octavo.protocol.errors import ConfigError

MIB, GIB = 1 << 20, 1 << 30
ADVICE = "; ask for less, or serve a smaller or quantized model"
# A block of 16 tokens takes 1 MiB; a request of the full 1000 tokens needs 63.
MODEL = LoadedModel(
    "llama", "reference", vocab_size=100, max_model_len=1000, weights_bytes=2 * GIB, kv_bytes_per_block=MIB, kv_cache_dtype="fp8"
)


def size(*, total: int = 16 * GIB, available: int = 15 * GIB, seats: int = 64, longest: int | None = None, **cache: Any) -> PoolSize:
    config = EngineConfig(
        model=ModelConfig("m", max_model_len=longest), cache=CacheConfig(**cache), scheduler=SchedulerConfig(max_num_seqs=seats)
    )
    return size_pool(config, MODEL, total, available)


def refused(**options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        size(**options)
    return caught.value


def test_a_share_of_memory_beside_the_weights() -> None:
    pool = size(total=8 * GIB, gpu_memory_utilization=0.5)
    assert pool.num_blocks == 2048  # 4 GiB less 2 GiB of weights
    assert pool.max_model_len == 1000
    assert pool.explanation == (
        "KV cache: 2,048 blocks of 16 tokens, 2.00 GiB of fp8 (gpu_memory_utilization 0.5 of 8.00 GiB, weights 2.00 GiB); "
        "32.5 requests of the full 1000 tokens fit at once"
    )


@pytest.mark.parametrize(("share", "blocks"), [(0.25, 2048), (0.375, 4096), (0.75, 10240), (1.0, 14336)])
def test_the_share_decides(share: float, blocks: int) -> None:
    pool = size(total=16 * GIB, seats=1000, gpu_memory_utilization=share)
    assert pool.num_blocks == blocks  # the share of 16 GiB less 2 GiB of weights
    assert f"(gpu_memory_utilization {share:g} of 16.00 GiB, weights 2.00 GiB)" in pool.explanation


def test_no_more_than_is_available() -> None:
    pool = size(total=8 * GIB, available=100 * MIB, gpu_memory_utilization=0.9)
    assert pool.num_blocks == 100
    assert "(gpu_memory_utilization 0.9 of 8.00 GiB, available memory 100.00 MiB)" in pool.explanation
    assert "1.6 requests of the full 1000 tokens fit at once" in pool.explanation


def test_no_more_than_all_seats_can_use() -> None:
    pool = size(seats=3, gpu_memory_utilization=1.0)
    assert pool.num_blocks == 3 * 63
    assert "0.18 GiB of fp8 (all that max_num_seqs 3 can use); 3.0 requests" in pool.explanation
    assert size(seats=3, longest=17).num_blocks == 3 * 2
    assert size(seats=3, kv_cache_memory=GIB).num_blocks == 3 * 63


def test_a_given_budget() -> None:
    pool = size(kv_cache_memory=100 * MIB + MIB - 1, gpu_memory_utilization=0.01)
    assert pool.num_blocks == 100
    assert "(kv_cache_memory 101.00 MiB)" in pool.explanation
    assert size(kv_cache_memory=15 * GIB, seats=1000).num_blocks == 15 * 1024


def test_a_budget_beyond_what_is_available() -> None:
    error = refused(kv_cache_memory=16 * GIB)
    assert error.message == f"kv_cache_memory: 16.00 GiB was asked for, but only 15.00 GiB of memory is available{ADVICE}"
    assert error.param == "kv_cache_memory"


def test_a_given_number_of_blocks() -> None:
    pool = size(num_blocks_override=7000, seats=1, kv_cache_memory=5)
    assert pool.num_blocks == 7000
    assert "7,000 blocks of 16 tokens, 6.84 GiB of fp8 (as num_gpu_blocks_override says)" in pool.explanation


@pytest.mark.parametrize("blocks", [15 * 1024 + 1, 10**18])
def test_more_blocks_than_memory(blocks: int) -> None:
    error = refused(num_blocks_override=blocks)
    assert error.message.startswith(f"num_blocks_override: {blocks:,} blocks take ")
    assert error.message.endswith(f", but only 15.00 GiB of memory is available{ADVICE}")
    assert error.param == "num_blocks_override"
    assert size(num_blocks_override=15 * 1024).num_blocks == 15 * 1024


def test_no_room_beside_the_weights() -> None:
    error = refused(total=4 * GIB, gpu_memory_utilization=0.5)
    assert error.message == (
        "gpu_memory_utilization: no memory is left for the KV cache (gpu_memory_utilization 0.5 of 4.00 GiB, weights 2.00 GiB); a block "
        "of 16 tokens takes 1,048,576 bytes. Raise gpu_memory_utilization or kv_cache_memory, or serve a smaller or quantized model"
    )
    assert error.param == "gpu_memory_utilization"
    assert refused(total=4 * GIB, gpu_memory_utilization=0.1).param == "gpu_memory_utilization"  # not even the weights fit
    assert size(total=4 * GIB + 2 * MIB, gpu_memory_utilization=0.5).num_blocks == 1


@pytest.mark.parametrize(
    ("budget", "words"),
    [(1, "1 bytes"), (101, "101 bytes"), (102, "0.10 KiB"), (1024, "1.00 KiB"), (50 << 10, "50.00 KiB"), (110_000, "0.10 MiB")],
)
def test_amounts_are_told_in_a_unit_that_fits(budget: int, words: str) -> None:
    assert f"(kv_cache_memory {words}); a block of 16 tokens takes 1,048,576 bytes" in refused(kv_cache_memory=budget).message


def test_a_budget_below_one_block() -> None:
    error = refused(kv_cache_memory=MIB - 1)
    assert error.message.startswith("kv_cache_memory: no memory is left for the KV cache (kv_cache_memory 1.00 MiB); a block of 16 tokens")
    assert error.param == "kv_cache_memory"


def test_the_model_s_limit_is_lowered_to_what_fits() -> None:
    pool = size(kv_cache_memory=10 * MIB)
    assert pool.num_blocks == 10
    assert pool.max_model_len == 160
    assert pool.explanation.endswith("1.0 requests of the full 160 tokens (lowered from the model's 1000 to what fits) fit at once")


def test_a_length_that_was_asked_for_must_fit() -> None:
    error = refused(kv_cache_memory=10 * MIB, longest=161)
    assert error.message == (
        "max_model_len: a request of 161 tokens needs 11 blocks, but the KV cache has 10 (kv_cache_memory 10.00 MiB). "
        "Lower max_model_len to at most 160, or give the cache more memory"
    )
    assert error.param == "max_model_len"
    pool = size(kv_cache_memory=10 * MIB, longest=160)
    assert (pool.num_blocks, pool.max_model_len) == (10, 160)
    assert "lowered" not in pool.explanation


def test_a_length_that_was_asked_for_is_kept() -> None:
    pool = size(longest=100)
    assert pool.max_model_len == 100
    assert pool.num_blocks == 64 * 7


@pytest.mark.parametrize(("block_size", "blocks"), [(1, 64 * 1000), (1024, 64)])
def test_the_most_depends_on_the_block_size(block_size: int, blocks: int) -> None:
    assert size(block_size=block_size, total=1 << 50, available=1 << 50).num_blocks == blocks


# --- windows


def windowed(*, longest: int | None = None, blocks: int | None = None, seats: int = 64, window: int = 100) -> PoolSize:
    config = EngineConfig(
        model=ModelConfig("m", max_model_len=longest),
        cache=CacheConfig(num_blocks_override=blocks),
        scheduler=SchedulerConfig(max_num_seqs=seats, max_num_batched_tokens=200),
    )
    return size_pool(config, replace(MODEL, window=window), 32 * GIB, 30 * GIB)


def test_a_request_needs_its_window_and_a_step() -> None:
    # 99 tokens before a step of 200 lie in 20 blocks at most, where all of a request would take 63.
    pool = windowed(seats=4)
    assert (pool.num_blocks, pool.max_model_len) == (80, 1000)
    assert pool.explanation.endswith("4.0 requests of the full 1000 tokens fit at once, each with the 100 tokens of its window")
    assert windowed(seats=4, window=2000).num_blocks == 4 * 63


def test_blocks_of_a_window_are_swapped_as_any() -> None:
    config = EngineConfig(model=ModelConfig("m"), cache=CacheConfig(swap_space=GIB))
    assert size_pool(config, replace(MODEL, window=100), 32 * GIB, 30 * GIB).num_swap_blocks == 1024


def test_a_pool_that_holds_the_window_bounds_no_length() -> None:
    assert windowed(blocks=8, longest=1000).max_model_len == 1000
    with pytest.raises(ConfigError, match="a request of 1000 tokens needs 63 blocks, but the KV cache has 7"):
        windowed(blocks=7, longest=1000)
    assert windowed(blocks=7).max_model_len == 7 * 16


@pytest.mark.parametrize(("windows", "widest"), [([], None), ([None], None), ([8], 8), ([8, 32, 8], 32), ([8, None, 4], 8), ([None, 8], 8)])
def test_the_widest_window_of_the_layers_counts(windows: list[int | None], widest: int | None) -> None:
    assert widest_window(CacheLayer(1, 8, window) for window in windows) == widest


def test_swap_space_comes_out_of_what_is_available() -> None:
    pool = size(swap_space=3 * GIB + MIB - 1, available=4 * GIB, total=64 * GIB, seats=1000)
    assert (pool.num_blocks, pool.num_swap_blocks) == (1023, 3 * 1024)
    assert pool.explanation.endswith("fit at once; swap space: 3,072 blocks, 3.00 GiB")
    assert size().num_swap_blocks == 0
    assert "swap" not in size().explanation
    assert refused(swap_space=2 * GIB, kv_cache_memory=14 * GIB).param == "kv_cache_memory"
    assert refused(swap_space=2 * GIB, num_blocks_override=14 * 1024).param == "num_blocks_override"


def test_swap_space_that_can_not_be() -> None:
    error = refused(swap_space=16 * GIB)
    assert error.message == "swap_space: 16.00 GiB was asked for, but only 15.00 GiB of memory is available"
    assert error.param == "swap_space"
    # As vLLM's flag is written, in GiB.
    error = refused(swap_space=4)
    assert error.message == "swap_space: 4 bytes holds no block of 16 tokens, which takes 1,048,576 bytes; write it like 4GiB"
    assert size(swap_space=MIB).num_swap_blocks == 1


def test_options_of_swapping() -> None:
    with pytest.raises(ConfigError, match="preemption_mode: must be one of auto, swap, recompute, not 'drop'"):
        SchedulerConfig(preemption_mode="drop")
    with pytest.raises(ConfigError, match='preemption_mode: "swap" needs a swap_space to swap to'):
        EngineConfig(scheduler=SchedulerConfig(preemption_mode="swap"))
    with pytest.raises(ConfigError, match='preemption_mode: "recompute" never uses a swap_space'):
        EngineConfig(scheduler=SchedulerConfig(preemption_mode="recompute"), cache=CacheConfig(swap_space=GIB))
    with pytest.raises(ConfigError, match="swap_space: must be from 0 to"):
        CacheConfig(swap_space=-1)
    assert CacheConfig(swap_space="1.5GiB").swap_space == 3 << 29  # type: ignore[arg-type]


# --- layers of two kinds


def mixed(
    *, blocks: int | None = None, seats: int = 4, caching: bool = False, budget: int | None = None, longest: int | None = None
) -> PoolSize:
    """A third of a block of all layers is of those that see 100 tokens."""
    config = EngineConfig(
        model=ModelConfig("m", max_model_len=longest),
        cache=CacheConfig(num_blocks_override=blocks, enable_prefix_caching=caching, kv_cache_memory=budget),
        scheduler=SchedulerConfig(max_num_seqs=seats, max_num_batched_tokens=200),
    )
    model = replace(MODEL, window=100, kv_bytes_per_block=2 * MIB, kv_bytes_per_window_block=MIB)
    return size_pool(config, model, 32 * GIB, 30 * GIB)


def test_each_kind_has_what_all_seats_can_use() -> None:
    pool = mixed()
    assert (pool.num_blocks, pool.num_window_blocks, pool.max_model_len) == (4 * 63, 4 * 20, 1000)
    assert pool.explanation.startswith(
        "KV cache: 252 blocks of 16 tokens and 80 for the layers that see 100 tokens, 0.57 GiB of fp8 (all that max_num_seqs 4 can use); "
        "4.0 requests of the full 1000 tokens fit at once"
    )
    # What is to be found again needs blocks of either kind, if there is the memory.
    assert mixed(caching=True).num_window_blocks == 4 * 63


def test_little_memory_goes_to_the_layers_that_see_everything() -> None:
    # 150 MiB are 50 blocks of all layers; 20 that the only seat can use leave 130 MiB, which are 65.
    pool = mixed(seats=1, budget=150 * MIB)
    assert (pool.num_blocks, pool.num_window_blocks) == (63, 20)
    pool = mixed(seats=2, budget=150 * MIB)
    assert (pool.num_blocks, pool.num_window_blocks) == (55, 40)
    # Never fewer than with blocks of all layers.
    pool = mixed(seats=8, budget=150 * MIB)
    assert (pool.num_blocks, pool.num_window_blocks) == (50, 50)
    assert mixed(seats=1, budget=450 * MIB, caching=True).num_window_blocks == 37


def test_either_kind_may_bound_the_longest_request() -> None:
    assert (mixed(blocks=8).num_blocks, mixed(blocks=8).num_window_blocks, mixed(blocks=8).max_model_len) == (8, 8, 128)
    assert mixed(blocks=7).max_model_len == 112
    with pytest.raises(ConfigError, match="a request of 1000 tokens needs 63 blocks, but the KV cache has 62"):
        mixed(blocks=62, longest=1000)
    assert mixed(blocks=63, longest=1000).max_model_len == 1000
    with pytest.raises(ConfigError, match="no memory is left for the KV cache"):
        mixed(budget=MIB)


def test_swap_space_for_long_requests_holds_a_window_too() -> None:
    config = EngineConfig(
        model=ModelConfig("m"),
        cache=CacheConfig(swap_space=MIB, kv_cache_memory=64 * MIB, enable_prefix_caching=False),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
    )
    model = replace(MODEL, max_model_len=8192, window=32, kv_bytes_per_block=MIB // 64, kv_bytes_per_window_block=MIB // 64)
    pool = size_pool(config, model, 32 * GIB, 30 * GIB)
    assert (pool.num_blocks, pool.num_window_blocks) == (2048, 28)
    # Of 64 slots the window's share would be less than one.
    assert (pool.num_swap_blocks, pool.num_window_swap_blocks) == (61, 3)


def test_swap_space_has_of_each_kind_what_the_cache_has() -> None:
    config = EngineConfig(
        model=ModelConfig("m"),
        cache=CacheConfig(swap_space=292 * MIB, enable_prefix_caching=False),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=200),
    )
    model = replace(MODEL, window=100, kv_bytes_per_block=2 * MIB, kv_bytes_per_window_block=MIB)
    pool = size_pool(config, model, 32 * GIB, 30 * GIB)
    # Half of what 252 and 80 blocks take.
    assert (pool.num_swap_blocks, pool.num_window_swap_blocks) == (126, 40)
    assert pool.explanation.endswith("; swap space: 126 and 40 blocks, 0.29 GiB")
    # Slots that the window's share would not come to, one sequence's: 100 tokens from anywhere in a block on.
    for space, slots in ((3 * MIB, (1, 1)), (20 * MIB, (7, 6)), (24 * MIB, (8, 8)), (40 * MIB, (16, 8))):
        pool = size_pool(replace(config, cache=CacheConfig(swap_space=space, enable_prefix_caching=False)), model, 32 * GIB, 30 * GIB)
        assert (pool.num_swap_blocks, pool.num_window_swap_blocks) == slots
    small = replace(config, cache=CacheConfig(swap_space=2 * MIB))
    with pytest.raises(ConfigError, match=r"swap_space: 2\.00 MiB holds no block of 16 tokens, which takes 3,145,728 bytes"):
        size_pool(small, model, 32 * GIB, 30 * GIB)
