"""`octavo bench memory`: one trace under static allocators and under the paged cache, in the same KV memory, on the real engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from octavo.bench.machine import measure_machine
from octavo.bench.report import Report, Table, number, percent
from octavo.bench.session import Session
from octavo.bench.static_allocation import Buddies, buddies, one_for_all
from octavo.bench.svg import Bars, bar_charts
from octavo.bench.workload import CHAT64_VOCABULARY, Ask, Workload, chat64, log_normal
from octavo.config.engine import EngineConfig, SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.executors.executor import Executor, LoadedModel
from octavo.kvcache.block_table import blocks_for
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.window import Window
from octavo.protocol.errors import ConfigError
from octavo.protocol.plan import StepPlan, StepResult
from octavo.protocol.vocabulary import Vocabulary
from octavo.protocol.wire import EngineInfo
from octavo.scheduling.scheduler import Scheduler

# The length that a server of such a load would promise to take: the least power of two that holds chat64's longest request, and a common
# one for longer conversations.
MODEL_LENGTHS = {"chat64": 1024, "log-normal": 2048}
TRACES = tuple(MODEL_LENGTHS)
POLICIES = ("maximum", "buddies", "paged")


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """`full_requests` requests of the maximum length fill the KV memory. `num_prompts` is of the log-normal trace."""

    traces: tuple[str, ...] = TRACES
    full_requests: int = 4
    num_prompts: int = 64
    iterations: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """The cache while one step ran for `seconds`: `tokens` are the slots that held a token, those that the step wrote included. The step
    had `room` if neither its token budget nor its seats were used up, so that whoever waited did so for memory."""

    seconds: float
    running: int
    waiting: int
    blocks: int
    tokens: int
    room: bool

    @property
    def waits_for_memory(self) -> bool:
        """Whether requests waited and nothing but memory kept them."""
        return self.waiting > 0 and self.room


@dataclass(frozen=True, slots=True)
class Replay:
    """A run of a trace: its moments, how long it took, and how many tokens it gave."""

    seconds: float
    output_tokens: int
    preemptions: int
    moments: list[Moment]


@dataclass(frozen=True, slots=True)
class Trace:
    """A workload, and the engine that it meets: the longest request that it promises to take, its pool, and the model's window. Where only
    some layers see the window, they have as many blocks of their own, from `first_window_block` on."""

    name: str
    workload: Workload
    max_model_len: int
    num_blocks: int
    block_size: int
    window: Window | None = None
    first_window_block: int | None = None

    @property
    def total_blocks(self) -> int:
        """All that there are, of one kind or of two."""
        return self.num_blocks if self.first_window_block is None else 2 * self.num_blocks

    def manager(self, policy: str) -> KVCacheManager:
        """A cache of this size under a policy. Static ones can't know how long an answer will be: they reserve for the longest."""
        if policy == "maximum":
            return one_for_all(
                self.num_blocks, self.block_size, max_model_len=self.max_model_len, first_window_block=self.first_window_block
            )
        if policy == "buddies":
            longest = self.workload.longest_output
            return buddies(
                self.num_blocks,
                self.block_size,
                max_model_len=self.max_model_len,
                max_output=longest,
                first_window_block=self.first_window_block,
            )
        return KVCacheManager(
            self.num_blocks,
            self.block_size,
            prefix_caching=False,
            window=self.window,
            num_window_blocks=0 if self.first_window_block is None else self.num_blocks,
            first_window_block=self.first_window_block,
        )

    def describe(self) -> dict[str, Any]:
        """For the record."""
        return {
            "workload": self.workload.describe(),
            "max_model_len": self.max_model_len,
            "num_blocks": self.num_blocks,
            "longest_output": self.workload.longest_output,
        }


def run_memory(config: EngineConfig, options: MemoryOptions, *, quiet: bool = False) -> Report:
    """Measures. Raises ModelLoadError or ConfigError."""
    unknown = [name for name in options.traces if name not in TRACES]
    if unknown:
        raise ConfigError(f"traces: must be of {', '.join(TRACES)}, not {unknown[0]!r}", param="traces")
    machine = measure_machine(config.backend.threads)
    lengths = [config.model.max_model_len or MODEL_LENGTHS[name] for name in options.traces]
    block_size = config.cache.block_size
    # One engine serves all traces; each uses as many of its blocks as its memory is to have.
    pool = max(options.full_requests * blocks_for(length, block_size) for length in lengths)
    cache = replace(config.cache, num_blocks_override=pool, enable_prefix_caching=False)
    config = replace(config, model=replace(config.model, max_model_len=max(lengths)), cache=cache)
    with Session(config, quiet=quiet) as session:
        traces = [make_trace(name, length, session.info, config, options) for name, length in zip(options.traces, lengths, strict=True)]
        session.generate([Ask(ask.prompt_token_ids, 2) for ask in traces[0].workload.asks])
        runs = {
            trace.name: {policy: _median(session, config, trace, policy, options.iterations) for policy in POLICIES} for trace in traces
        }
        results: dict[str, Any] = {"model": session.describe(), "traces": {}}
        tables = [machine.table(), session.table()]
        for trace in traces:
            figures = {policy: figures_of(replay, trace) for policy, replay in runs[trace.name].items()}
            results["traces"][trace.name] = trace.describe() | {"policies": figures} | ratios(figures)
            tables.append(_table(trace, figures))
    return Report("memory", machine.describe(), asdict(options), results, tables)


def make_trace(name: str, max_model_len: int, info: EngineInfo, config: EngineConfig, options: MemoryOptions) -> Trace:
    """The requests of a trace, and a pool for `full_requests` of the maximum length. Raises ConfigError if they can't be served in it."""
    if name == "chat64" and info.vocab_size < CHAT64_VOCABULARY:
        raise ConfigError(
            f"traces: chat64 needs a vocabulary of {CHAT64_VOCABULARY:,} tokens, and this model has {info.vocab_size:,}; use log-normal",
            param="traces",
        )
    drawn = partial(log_normal, options.num_prompts, max_model_len, vocab_size=info.vocab_size, seed=options.seed)
    workload = chat64() if name == "chat64" else drawn()
    if workload.longest > max_model_len:
        raise ConfigError(
            f"max_model_len: a request of {workload.longest} tokens of {name} does not fit into {max_model_len}", param="max_model_len"
        )
    size = config.cache.block_size
    blocks = blocks_for(max_model_len, size)
    num_blocks = options.full_requests * blocks
    if not Buddies(num_blocks).fits(blocks):
        raise ConfigError(
            f"full_requests: {num_blocks} blocks hold no run of a power of two that takes a request of {blocks} blocks",
            param="full_requests",
        )
    window = None if info.sliding_window is None else Window(info.sliding_window, config.scheduler.max_num_batched_tokens)
    return Trace(name, workload, max_model_len, num_blocks, size, window, info.num_blocks if info.num_window_blocks else None)


def _median(session: Session, config: EngineConfig, trace: Trace, policy: str, iterations: int) -> Replay:
    replays = [replay(session, config, trace, policy) for _ in range(iterations)]
    return sorted(replays, key=lambda each: each.seconds)[len(replays) // 2]


def replay(session: Session, config: EngineConfig, trace: Trace, policy: str, clock: Callable[[], float] = time.perf_counter) -> Replay:
    """All requests of the trace at once, under a policy."""
    cache = trace.manager(policy)
    scheduler = Scheduler(config.scheduler, cache, max_model_len=trace.max_model_len, vocab_size=session.info.vocab_size)
    kinds = trace.total_blocks // trace.num_blocks
    with _engine(session, scheduler, config.scheduler, kinds, clock) as moments:
        start = clock()
        outputs = session.generate(trace.workload.asks)
        seconds = clock() - start
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return Replay(seconds, tokens, scheduler.stats().preemptions, moments)


@contextmanager
def _engine(
    session: Session, scheduler: Scheduler, config: SchedulerConfig, kinds: int, clock: Callable[[], float]
) -> Iterator[list[Moment]]:
    """The session's model under another scheduler, and the moments of the steps that it runs meanwhile."""
    usual = session.llm._core
    watched = _Watched(usual._executor, scheduler, config, kinds, clock)
    session.llm._core = EngineCore(scheduler, watched, usual.info)
    try:
        yield watched.moments
    finally:
        session.llm._core = usual


class _Watched:
    """An executor that notes the cache's state while each step runs, when its blocks are taken and none of it has ended yet."""

    def __init__(self, executor: Executor, scheduler: Scheduler, config: SchedulerConfig, kinds: int, clock: Callable[[], float]) -> None:
        self._executor = executor
        # A token has a slot in a block of each kind.
        self._kinds = kinds
        self._scheduler = scheduler
        self._config = config
        self._clock = clock
        self.moments: list[Moment] = []

    def load(self) -> LoadedModel:
        """See Executor."""
        return self._executor.load()

    def allocate(self, num_blocks: int, num_swap_blocks: int = 0, num_window_blocks: int = 0) -> None:
        """See Executor."""
        self._executor.allocate(num_blocks, num_swap_blocks, num_window_blocks)

    def read_block(self, block_id: int) -> bytes:
        """See Executor."""
        return self._executor.read_block(block_id)

    def write_block(self, block_id: int, content: bytes) -> None:
        """See Executor."""
        self._executor.write_block(block_id, content)

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """See Executor."""
        self._executor.use_vocabulary(vocabulary)

    def run(self, plan: StepPlan) -> StepResult:
        """See Executor."""
        start = self._clock()
        result = self._executor.run(plan)
        seconds = self._clock() - start
        stats = self._scheduler.stats()
        if plan.scheduled:
            written = self._kinds * sum(share.num_tokens - share.num_cached for share in plan.scheduled)
            room = stats.step_tokens < self._config.max_num_batched_tokens and stats.running < self._config.max_num_seqs
            self.moments.append(Moment(seconds, stats.running, stats.waiting, stats.blocks_used, stats.tokens_held + written, room))
        return result

    def close(self) -> None:
        """See Executor."""
        self._executor.close()


def figures_of(replay: Replay, trace: Trace) -> dict[str, Any]:
    """What a replay shows; means are by time, and of the steps during which requests waited for memory. All None but the counts for a trace
    that never does."""
    waiting = [moment for moment in replay.moments if moment.waits_for_memory]
    slots = trace.total_blocks * trace.block_size
    return {
        "seconds": replay.seconds,
        "waiting_s": sum(moment.seconds for moment in waiting),
        "output_tokens_per_s": replay.output_tokens / replay.seconds,
        "tokens_share": mean_by_time(waiting, lambda moment: moment.tokens / slots),
        "reserved_share": mean_by_time(waiting, lambda moment: moment.blocks / trace.total_blocks),
        "fill": mean_by_time(waiting, lambda moment: moment.tokens / (moment.blocks * trace.block_size)),
        "running_mean": mean_by_time(waiting, lambda moment: moment.running),
        "running_peak": max((moment.running for moment in replay.moments), default=0),
        "preemptions": replay.preemptions,
        "steps": len(replay.moments),
    }


def mean_by_time(moments: Sequence[Moment], value: Callable[[Moment], float]) -> float | None:
    """The mean of a value, each moment's by its seconds; None for no time at all."""
    seconds = sum(moment.seconds for moment in moments)
    return sum(value(moment) * moment.seconds for moment in moments) / seconds if seconds else None


def ratios(figures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The paged cache's throughput beside that of the static policies."""
    paged = figures["paged"]["output_tokens_per_s"]
    return {"paged_to": {policy: paged / figures[policy]["output_tokens_per_s"] for policy in POLICIES if policy != "paged"}}


NAMES = {"maximum": "static, maximum length", "buddies": "static, buddies", "paged": "paged"}


def _table(trace: Trace, figures: dict[str, dict[str, Any]]) -> Table:
    heads = [
        trace.name,
        "tokens",
        "reserved",
        "filled",
        "running",
        "peak",
        "preemptions",
        "output tokens/s",
        "s",
        "s waiting for memory",
    ]
    rows = [
        [
            NAMES[policy],
            percent(each["tokens_share"]),
            percent(each["reserved_share"]),
            percent(each["fill"]),
            number(each["running_mean"]),
            str(each["running_peak"]),
            str(each["preemptions"]),
            number(each["output_tokens_per_s"]),
            number(each["seconds"], 1),
            number(each["waiting_s"], 1),
        ]
        for policy, each in figures.items()
    ]
    workload = trace.workload
    title = (
        f"{workload.name}: {len(workload.asks)} requests, {workload.prompt_tokens:,} + {workload.output_tokens:,} tokens, in KV memory of "
        f"{trace.num_blocks:,} blocks of {trace.block_size} tokens; at most {trace.max_model_len:,} a request"
    )
    note = (
        "tokens, reserved: share of the KV memory that holds tokens, and that is taken; filled: of what is taken; means by time while "
        "requests wait for memory"
    )
    return Table(title, heads, rows, note)


def charts(results: dict[str, Any]) -> str:
    """The table as an SVG picture: a row for each trace, a chart for each figure."""
    rows = []
    for name, trace in results["traces"].items():
        figures = trace["policies"]

        def bars(title: str, key: str, show: Callable[[float | None], str], figures: dict[str, Any] = figures) -> Bars:
            return Bars(title, [(NAMES[policy], float(each[key] or 0.0), show(each[key])) for policy, each in figures.items()])

        rows.append(
            (
                name,
                [
                    bars("KV memory that holds tokens", "tokens_share", percent),
                    bars("requests running at once", "running_mean", number),
                    bars("preemptions", "preemptions", lambda value: number(value, 0)),
                    bars("output tokens/s", "output_tokens_per_s", number),
                ],
            )
        )
    return bar_charts("The same trace in the same KV memory", rows)
