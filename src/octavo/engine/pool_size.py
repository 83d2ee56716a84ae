"""How many blocks the KV cache gets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.config.engine import EngineConfig
from octavo.executors.executor import LoadedModel
from octavo.kvcache.window import Window, longest_held
from octavo.protocol.errors import ConfigError

GIB = 1 << 30
_ADVICE = "; ask for less, or serve a smaller or quantized model"


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The pool, the longest request that it is promised to hold (tokens), the one line that says why, and the blocks of swap space. With
    `num_window_blocks` there are so many more for the layers that see a window, which have swap space of their own, and `num_blocks` are
    for the others."""

    num_blocks: int
    max_model_len: int
    explanation: str
    num_swap_blocks: int = 0
    num_window_blocks: int = 0
    num_window_swap_blocks: int = 0

    def bytes_for(self, model: LoadedModel) -> int:
        """Bytes of all its blocks."""
        return self.num_blocks * model.kv_bytes_per_block + self.num_window_blocks * model.kv_bytes_per_window_block


def size_pool(config: EngineConfig, model: LoadedModel, total_memory: int, available_memory: int) -> PoolSize:
    """Settles the pool from the memory budget, in bytes.

    The budget is `kv_cache_memory` where it is given, else what `gpu_memory_utilization` of all memory leaves beside the weights, within
    what is available now. More than `max_num_seqs` requests of full length can never be in use, so no more is taken. A `max_model_len`
    that the user asked for must fit (ConfigError); the model's own limit is lowered to what fits. Swap space comes out of what is
    available.
    """
    size, window = config.cache.block_size, window_of(config, model)
    _check_swap_space(config, available_memory)
    available_memory -= config.cache.swap_space
    wanted = config.model.max_model_len or model.max_model_len
    param = "kv_cache_memory" if config.cache.kv_cache_memory is not None else "gpu_memory_utilization"
    budget, why = _budget(config, model, total_memory, available_memory)
    blocks, own, all_used = _blocks_within(config, model, budget, wanted)
    if all_used:
        why = f"all that max_num_seqs {config.scheduler.max_num_seqs} can use"
    if blocks < 1:
        raise ConfigError(
            f"{param}: no memory is left for the KV cache ({why}); a block of {size} tokens takes "
            f"{_bytes_of_all(model):,} bytes. Raise gpu_memory_utilization or kv_cache_memory, or serve a smaller or quantized model",
            param=param,
        )
    held = longest_held(size, blocks, window, own)
    longest = wanted if held is None else min(wanted, held)
    if longest < wanted and config.model.max_model_len is not None:
        raise ConfigError(
            f"max_model_len: a request of {wanted} tokens needs {-(-wanted // size)} blocks, but the KV cache has {blocks} ({why}). "
            f"Lower max_model_len to at most {longest}, or give the cache more memory",
            param="max_model_len",
        )
    swap_blocks, own_swap_blocks = _swap_blocks(config, model, blocks, own, window)
    pool = PoolSize(blocks, longest, "", swap_blocks, own, own_swap_blocks)
    return replace(pool, explanation=_explain(pool, model, size, window, why, wanted))


def _blocks_within(config: EngineConfig, model: LoadedModel, budget: int, wanted: int) -> tuple[int, int, bool]:
    """Blocks that `budget` bytes hold, those for layers that see a window where these have their own, and whether they are all that
    requests of `wanted` tokens can ever use.

    Of two kinds, the window's gets what all seats can use, yet no more blocks than there would be if a block were of all layers; the rest
    is for the layers that see everything. So no load but beam searches, which keep what a window has passed, finds less room than with
    blocks of all layers, and long requests find far more. With prefix caching it gets a quarter of that number at least: what is found
    again needs blocks of either kind.
    """
    size, seats, window = config.cache.block_size, config.scheduler.max_num_seqs, window_of(config, model)
    blocks = budget // _bytes_of_all(model)
    mixed = model.kv_bytes_per_window_block > 0
    if config.cache.num_blocks_override is not None:
        return blocks, blocks if mixed else 0, False
    most = seats * _blocks_a_request(wanted, size, None if mixed else window)
    own = 0
    if mixed:
        found = blocks // 4 if config.cache.enable_prefix_caching else 0
        own = min(blocks, max(seats * _blocks_a_request(wanted, size, window), found), most)
        blocks = (budget - own * model.kv_bytes_per_window_block) // model.kv_bytes_per_block if own else 0
    return min(blocks, most), own, blocks > most


def _explain(pool: PoolSize, model: LoadedModel, size: int, window: Window | None, why: str, wanted: int) -> str:
    """What was chosen and why, in one line."""
    longest, own = pool.max_model_len, pool.num_window_blocks
    at_once = pool.num_blocks / _blocks_a_request(longest, size, None if own else window)
    more = ""
    if own and window is not None:
        at_once = min(at_once, own / _blocks_a_request(longest, size, window))
        more = f" and {own:,} for the layers that see {window.size} tokens"
    shortened = f" (lowered from the model's {wanted} to what fits)" if longest < wanted else ""
    explanation = (
        f"KV cache: {pool.num_blocks:,} blocks of {size} tokens{more}, {_amount(pool.bytes_for(model))} of {model.kv_cache_dtype} ({why}); "
        f"{at_once:.1f} requests of the full {longest} tokens{shortened} fit at once"
    )
    if window is not None and window.size < longest and not own:
        explanation += f", each with the {window.size} tokens of its window"
    if pool.num_swap_blocks:
        swapped = pool.num_swap_blocks * model.kv_bytes_per_block + pool.num_window_swap_blocks * model.kv_bytes_per_window_block
        more = f" and {pool.num_window_swap_blocks:,}" if own else ""
        explanation += f"; swap space: {pool.num_swap_blocks:,}{more} blocks, {_amount(swapped)}"
    return explanation


def _bytes_of_all(model: LoadedModel) -> int:
    """Bytes of a block's tokens in every layer."""
    return model.kv_bytes_per_block + model.kv_bytes_per_window_block


def _budget(config: EngineConfig, model: LoadedModel, total_memory: int, available_memory: int) -> tuple[int, str]:
    """Bytes that the configuration's words come to, and these words. Raises ConfigError for more than there is memory for."""
    if config.cache.num_blocks_override is not None:
        blocks = config.cache.num_blocks_override
        budget = blocks * _bytes_of_all(model)
        if budget > available_memory:
            raise ConfigError(
                f"num_blocks_override: {blocks:,} blocks take {_amount(budget)}, but only "
                f"{_amount(available_memory)} of memory is available{_ADVICE}",
                param="num_blocks_override",
            )
        return budget, "as num_gpu_blocks_override says"
    if config.cache.kv_cache_memory is not None:
        budget = config.cache.kv_cache_memory
        if budget > available_memory:
            raise ConfigError(
                f"kv_cache_memory: {_amount(budget)} was asked for, but only {_amount(available_memory)} of memory is available{_ADVICE}",
                param="kv_cache_memory",
            )
        return budget, f"kv_cache_memory {_amount(budget)}"
    share = config.cache.gpu_memory_utilization
    left = int(share * total_memory) - model.weights_bytes
    bound = f"available memory {_amount(available_memory)}" if available_memory < left else f"weights {_amount(model.weights_bytes)}"
    why = f"gpu_memory_utilization {share:g} of {_amount(total_memory)}, {bound}"
    return min(left, available_memory), why


def _check_swap_space(config: EngineConfig, available_memory: int) -> None:
    """Raises ConfigError if the memory can't hold it."""
    space = config.cache.swap_space
    if space > available_memory:
        raise ConfigError(
            f"swap_space: {_amount(space)} was asked for, but only {_amount(available_memory)} of memory is available", param="swap_space"
        )


def _swap_blocks(config: EngineConfig, model: LoadedModel, blocks: int, own: int, window: Window | None) -> tuple[int, int]:
    """Blocks that the swap space holds. Of two kinds the window's gets what its share of the cache would hold, and where that is less, what
    one sequence has of them, since a sequence goes out as a whole; yet never more than the other. Raises ConfigError if it can't hold one
    of each."""
    space, size = config.cache.swap_space, config.cache.block_size
    own_slots = 0
    if own and window is not None:
        whole = blocks * model.kv_bytes_per_block + own * model.kv_bytes_per_window_block
        own_slots = min(space // _bytes_of_all(model), max(space * own // whole, window.most_blocks(size, 1)))
    slots = (space - own_slots * model.kv_bytes_per_window_block) // model.kv_bytes_per_block
    if space and (slots < 1 or (own and own_slots < 1)):
        raise ConfigError(
            f"swap_space: {_amount(space)} holds no block of {size} tokens, which takes {_bytes_of_all(model):,} bytes; write it like 4GiB",
            param="swap_space",
        )
    return slots, own_slots


def window_of(config: EngineConfig, model: LoadedModel) -> Window | None:
    """The model's window under this configuration; None where every layer sees all that a request can hold."""
    if model.window is None:
        return None
    if model.window >= (config.model.max_model_len or model.max_model_len) and not model.kv_bytes_per_window_block:
        return None
    return Window(model.window, config.scheduler.max_num_batched_tokens)


def _blocks_a_request(num_tokens: int, block_size: int, window: Window | None) -> int:
    """Blocks that a request of `num_tokens` tokens holds at most, at once."""
    blocks = -(-num_tokens // block_size)
    return blocks if window is None else min(blocks, window.most_blocks(block_size))


def _amount(size: int) -> str:
    """Bytes in a unit in which two decimals say something."""
    for name, unit in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= unit // 10:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"
