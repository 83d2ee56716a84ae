"""`octavo bench blocks`: what a step spends on planning and block management, in pools of different sizes, without a model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from octavo.bench.report import Report, Table, number
from octavo.bench.statistics import median
from octavo.config.engine import SchedulerConfig
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.sequence_table import SequenceTable
from octavo.protocol.errors import ConfigError
from octavo.protocol.plan import SampledToken, StepPlan, StepResult
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import EngineRequest
from octavo.scheduling.scheduler import Scheduler

VOCABULARY = 1 << 20
PAGE_BLOCKS = 100
FILL_BLOCKS = 64  # of a sequence that fills the pool


@dataclass(frozen=True, slots=True)
class BlockOptions:
    """Pools of so many blocks of `block_size` tokens, all of which hold something that can be found when the measuring begins. `requests`
    run at once; prompts have `prompt_len` tokens; each kind of step is taken `iterations` times."""

    pools: tuple[int, ...] = (1_000, 1_000_000)
    block_size: int = 16
    requests: int = 32
    prompt_len: int = 512
    iterations: int = 160


# Each kind of step, and what is in it.
KINDS = {
    "decode": "every request gets one token; each fills a block, drops the oldest and takes it now and then",
    "new prompt": "a prompt that is not found: as many blocks dropped, taken, hashed and made findable as it fills",
    "known prompt": "a prompt that is found whole: its last token alone is computed",
    "page": "no step, but what GET /kv/blocks asks of the engine while these requests run: 100 blocks and the summary",
}


@dataclass(frozen=True, slots=True)
class PoolTimes:
    """Median seconds that planning and taking in a step took, by kind, in a pool of `num_blocks`."""

    num_blocks: int
    seconds: dict[str, float]


def run_blocks(options: BlockOptions) -> Report:
    """Measures; a pool of a million blocks takes some seconds to fill. Raises ConfigError for sizes that can't hold."""
    if options.block_size < 1:
        raise ConfigError(f"block_size: must be at least 1, not {options.block_size}", param="block_size")
    if options.iterations < options.block_size:
        raise ConfigError(f"iterations: must be at least block_size, which is {options.block_size}", param="iterations")
    needed = options.requests * (options.iterations // options.block_size + 2) + 2 * (options.prompt_len // options.block_size + 2)
    for num_blocks in options.pools:
        if num_blocks < needed:
            raise ConfigError(f"pools: {num_blocks} blocks are too few for {options.requests} requests; {needed} are needed", param="pools")
    pools = [_measure(num_blocks, options) for num_blocks in options.pools]
    tokens = {"decode": options.requests, "new prompt": options.prompt_len, "known prompt": options.prompt_len, "page": 0}
    results: dict[str, Any] = {
        "pools": [{"num_blocks": pool.num_blocks, "step_s": pool.seconds} for pool in pools],
        "largest_to_smallest": {kind: pools[-1].seconds[kind] / pools[0].seconds[kind] for kind in KINDS},
    }
    rows = [
        [kind, str(tokens[kind]), *(number(pool.seconds[kind] * 1e6) for pool in pools), number(results["largest_to_smallest"][kind], 2)]
        for kind in KINDS
    ]
    heads = ["µs a step", "tokens", *(f"{pool.num_blocks:,} blocks" for pool in pools), "last to first"]
    note = "medians; " + "; ".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items())
    return Report("blocks", None, asdict(options), results, [Table("Block management, schedule and update together", heads, rows, note)])


def _measure(num_blocks: int, options: BlockOptions) -> PoolTimes:
    cache = KVCacheManager(num_blocks, options.block_size)
    tokens = _Tokens()
    for table in _fill(cache, tokens):
        table.release()
    config = SchedulerConfig(
        max_num_batched_tokens=max(options.prompt_len, options.requests * options.block_size), max_num_seqs=options.requests
    )
    scheduler = Scheduler(config, cache, max_model_len=num_blocks * options.block_size, vocab_size=VOCABULARY)
    steps = {"decode": _decode, "new prompt": _new_prompts, "known prompt": _known_prompts, "page": _pages}
    return PoolTimes(num_blocks, {kind: median(step(scheduler, tokens, options)) for kind, step in steps.items()})


class _Tokens:
    """Token ids that never come again within a run of VOCABULARY / 2 sequences."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> list[int]:
        """A sequence that begins like no other."""
        self._next += 1
        return [self._next % VOCABULARY, *range(count - 1)]


def _fill(cache: KVCacheManager, tokens: _Tokens) -> Iterator[SequenceTable]:
    """Tables that fill the pool with blocks that can be found."""
    size, left = cache.block_size, cache.store.num_blocks
    while left:
        blocks = min(left, FILL_BLOCKS)
        sequence = tokens.take(blocks * size)
        table = cache.new_table(sequence)
        table.prepare(0, len(sequence))
        table.commit(len(sequence))
        left -= blocks
        yield table


def _decode(scheduler: Scheduler, tokens: _Tokens, options: BlockOptions) -> list[float]:
    _add(scheduler, [tokens.take(options.block_size) for _ in range(options.requests)], options.iterations + 2)
    _step(scheduler)
    # Steps in which many requests fill a block are a part of what is measured: medians are of runs of a block's length.
    size = options.block_size
    times = [_step(scheduler) for _ in range(options.iterations)]
    _drain(scheduler)
    return [sum(times[start : start + size]) / size for start in range(0, len(times) - size + 1, size)]


def _new_prompts(scheduler: Scheduler, tokens: _Tokens, options: BlockOptions) -> list[float]:
    return [_one_step(scheduler, tokens.take(options.prompt_len)) for _ in range(options.iterations)]


def _known_prompts(scheduler: Scheduler, tokens: _Tokens, options: BlockOptions) -> list[float]:
    prompt = tokens.take(options.prompt_len)
    _one_step(scheduler, prompt)
    return [_one_step(scheduler, prompt) for _ in range(options.iterations)]


def _pages(scheduler: Scheduler, tokens: _Tokens, options: BlockOptions) -> list[float]:
    _add(scheduler, [tokens.take(options.block_size) for _ in range(options.requests)], 2)
    _step(scheduler)
    places = range(0, scheduler.stats().blocks_total, PAGE_BLOCKS)
    times = [_page(scheduler, places[index * 7919 % len(places)]) for index in range(options.iterations)]
    _drain(scheduler)
    return times


def _page(scheduler: Scheduler, offset: int) -> float:
    start = time.perf_counter()
    scheduler.blocks(offset, PAGE_BLOCKS)
    return time.perf_counter() - start


def _one_step(scheduler: Scheduler, prompt: list[int]) -> float:
    """The one step that a request with an answer of one token needs, and the next, which tells the worker of its end."""
    _add(scheduler, [prompt], 1)
    seconds = _step(scheduler)
    _drain(scheduler)
    return seconds


def _add(scheduler: Scheduler, prompts: list[list[int]], max_tokens: int) -> None:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    for number_of, prompt in enumerate(prompts):
        scheduler.add(EngineRequest(f"r{number_of}", prompt, sampling))


def _step(scheduler: Scheduler) -> float:
    """Plans a step and takes in a token for each request; the seconds of both."""
    start = time.perf_counter()
    plan = scheduler.schedule()
    planned = time.perf_counter()
    result = _answer(plan)
    answered = time.perf_counter()
    scheduler.update(plan, result)
    return time.perf_counter() - answered + planned - start


def _answer(plan: StepPlan) -> StepResult:
    return StepResult([SampledToken(share.request_id, 1) for share in plan.scheduled])


def _drain(scheduler: Scheduler) -> None:
    while scheduler.has_work:
        _step(scheduler)
