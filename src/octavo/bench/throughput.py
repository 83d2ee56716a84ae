"""`octavo bench throughput`: a batch of requests through LLM, in process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from octavo.bench.machine import Machine, measure_machine
from octavo.bench.report import Report, Table, milliseconds, number, percent
from octavo.bench.session import Session
from octavo.bench.statistics import summary
from octavo.bench.workload import Ask, Workload, chat64, random_asks, shared_prefix
from octavo.config.engine import EngineConfig
from octavo.engine.core import EngineCore
from octavo.protocol.errors import ConfigError
from octavo.protocol.outputs import RequestOutput
from octavo.protocol.wire import EngineOutput, EngineStats

WORKLOADS = ("chat64", "random", "shared-prefix")


@dataclass(frozen=True, slots=True)
class ThroughputOptions:
    """The numbers are those of the workloads "random" and "shared-prefix", None for the workload's own (`make_workload`); `input_len` is a
    prompt's, without the prefix of `prefix_len` tokens that "shared-prefix" puts before each."""

    workload: str = "chat64"
    num_prompts: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    prefix_len: int | None = None
    iterations: int = 3
    seed: int = 0


@dataclass(slots=True)
class BatchRun:
    """One run of the workload. `before` are the engine's sums when it began."""

    seconds: float
    before: EngineStats
    stats: list[EngineStats]
    outputs: list[RequestOutput]


def run_throughput(config: EngineConfig, options: ThroughputOptions, *, quiet: bool = False) -> Report:
    """Measures. Raises ModelLoadError or ConfigError."""
    machine = measure_machine(config.backend.threads)
    with Session(config, quiet=quiet) as session:
        workload = make_workload(options.workload, session.info.vocab_size, options)
        if workload.longest > session.info.max_model_len:
            raise ConfigError(
                f"output_len: a request of {workload.longest} tokens is longer than the model holds ({session.info.max_model_len})",
                param="output_len",
            )
        # The first steps of a process find cold caches and unwritten memory.
        session.generate([Ask(ask.prompt_token_ids, 2) for ask in workload.asks])
        runs = [_run(session, workload) for _ in range(options.iterations)]
        block_size = session.info.block_size
        results, tables = describe_runs(session, machine, workload, runs, block_size)
    return Report("throughput", machine.describe(), {**asdict(options), "workload": workload.describe()}, results, tables)


def make_workload(name: str, vocab_size: int | None, options: Any) -> Workload:
    """chat64, or random requests of the lengths in `options`: by default 64 of 128 + 128 tokens, or 32 of 32 + 32 tokens after a prefix of
    512. Raises ConfigError for another name."""
    if name == "chat64":
        return chat64(vocab_size)
    size = vocab_size or 32_000
    given = (options.num_prompts, options.input_len, options.output_len)
    if name == "random":
        count, prompt_len, output_len = (value or default for value, default in zip(given, (64, 128, 128), strict=True))
        return random_asks(count, prompt_len, output_len, vocab_size=size, seed=options.seed)
    if name == "shared-prefix":
        count, tail_len, output_len = (value or default for value, default in zip(given, (32, 32, 32), strict=True))
        return shared_prefix(count, options.prefix_len or 512, tail_len, output_len, vocab_size=size, seed=options.seed)
    raise ConfigError(f"workload: must be one of {', '.join(WORKLOADS)}, not {name!r}", param="workload")


@contextmanager
def step_stats(core: EngineCore) -> Iterator[list[EngineStats]]:
    """The gauges after each step that `core` runs meanwhile."""
    seen: list[EngineStats] = []
    inner = core.step

    def step() -> list[EngineOutput]:
        outputs = inner()
        seen.append(core.stats())
        return outputs

    setattr(core, "step", step)  # noqa: B010 - mypy lets nothing else replace a method
    try:
        yield seen
    finally:
        vars(core).pop("step")


def _run(session: Session, workload: Workload) -> BatchRun:
    # Each run finds what the first one would have found: nothing, or the prefix that a request before them has left.
    session.llm.reset_prefix_cache()
    if workload.prefix:
        session.generate([Ask(list(workload.prefix), 1)])
    before = session.core.stats()
    with step_stats(session.core) as stats:
        start = time.perf_counter()
        outputs = session.generate(workload.asks)
        return BatchRun(time.perf_counter() - start, before, stats, outputs)


def describe_runs(
    session: Session, machine: Machine, workload: Workload, runs: list[BatchRun], block_size: int
) -> tuple[dict[str, Any], list[Table]]:
    """The figures of the run of median time, with each run's time."""
    chosen = sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
    lengths = [(len(ask.prompt_token_ids), ask.output_len) for ask in workload.asks]
    output = sum(len(result.outputs[0].token_ids) for result in chosen.outputs)
    total = output + workload.prompt_tokens
    best = session.cost.batch_seconds(machine, lengths)
    ops = sum(session.cost.batch_ops(lengths))
    cached = chosen.stats[-1].prefix_cache_hits - chosen.before.prefix_cache_hits
    limits = {
        "ops_per_s": ops / chosen.seconds,
        "limit_output_tokens_per_s": output / best,
        "share_of_limit": best / chosen.seconds,
    }
    results = {
        "model": session.describe(),
        "seconds": chosen.seconds,
        "seconds_of_runs": [run.seconds for run in runs],
        "requests_per_s": len(workload.asks) / chosen.seconds,
        "output_tokens_per_s": output / chosen.seconds,
        "total_tokens_per_s": total / chosen.seconds,
        # They are those of computing every token.
        **(dict.fromkeys(limits) if cached else limits),
        **gauges(chosen.stats, block_size),
        "prompt_tokens_computed": chosen.stats[-1].prompt_tokens_computed - chosen.before.prompt_tokens_computed,
        "prompt_tokens_cached": cached,
        **times(chosen.outputs),
    }
    tables = [machine.table(), session.table(), _speed_table(workload, results), _engine_table(results)]
    return results, tables


def gauges(stats: list[EngineStats], block_size: int) -> dict[str, Any]:
    """What the steps' gauges say of a run: `kv_fill` is the share of the slots of blocks in use that hold a token, `kv_use` the share of
    blocks in use."""
    busy = [each for each in stats if each.running and each.blocks_used]
    return {
        "steps": len(stats),
        "mean_batch_requests": _mean([each.running for each in busy]),
        "mean_step_tokens": _mean([each.step_tokens for each in stats if each.step_tokens]),
        "preemptions": stats[-1].preemptions - stats[0].preemptions if stats else 0,
        "kv_use_mean": _mean([each.blocks_used / each.blocks_total for each in busy]),
        "kv_use_peak": max((each.blocks_used / each.blocks_total for each in busy), default=0.0),
        "kv_fill_mean": _mean([each.tokens_held / (each.blocks_used * block_size) for each in busy]),
    }


def times(outputs: list[RequestOutput]) -> dict[str, Any]:
    """Summaries of seconds to the first token and for each further one."""
    first, further = [], []
    for output in outputs:
        metrics, count = output.metrics, len(output.outputs[0].token_ids)
        if metrics is not None and metrics.first_token_time is not None and metrics.last_token_time is not None:
            first.append(metrics.first_token_time - metrics.arrival_time)
            if count > 1:
                further.append((metrics.last_token_time - metrics.first_token_time) / (count - 1))
    return {"ttft_s": summary(first), "tpot_s": summary(further)}


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _speed_table(workload: Workload, results: dict[str, Any]) -> Table:
    row = [
        workload.name,
        f"{workload.prompt_tokens:,} + {workload.output_tokens:,}",
        number(results["seconds"], 2),
        number(max(results["seconds_of_runs"]) - min(results["seconds_of_runs"]), 2),
        number(results["output_tokens_per_s"]),
        number(results["total_tokens_per_s"]),
        number(None if results["ops_per_s"] is None else results["ops_per_s"] / 1e9),
        number(results["limit_output_tokens_per_s"]),
        percent(results["share_of_limit"]),
    ]
    heads = [
        "workload",
        "prompt + output tokens",
        "s",
        "spread s",
        "output tokens/s",
        "total tokens/s",
        "GOP/s",
        "limit output/s",
        "of limit",
    ]
    note = f"median of {len(results['seconds_of_runs'])} runs; limit: every multiplication at the rate of the registers"
    return Table("Throughput", heads, [row], note)


def _engine_table(results: dict[str, Any]) -> Table:
    heads = [
        "steps",
        "mean batch",
        "tokens a step",
        "preemptions",
        "KV in use",
        "KV peak",
        "KV filled",
        "prompt cached",
        "TTFT ms",
        "TPOT ms",
    ]
    row = [
        str(results["steps"]),
        number(results["mean_batch_requests"]),
        number(results["mean_step_tokens"]),
        str(results["preemptions"]),
        percent(results["kv_use_mean"]),
        percent(results["kv_use_peak"]),
        percent(results["kv_fill_mean"]),
        str(results["prompt_tokens_cached"]),
        milliseconds(results["ttft_s"]["median"]),
        milliseconds(results["tpot_s"]["median"]),
    ]
    return Table(
        "Engine", heads, [row], "KV in use: blocks, of all; KV filled: slots that hold a token, of those in use; times are medians"
    )
