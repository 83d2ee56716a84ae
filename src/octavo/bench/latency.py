"""`octavo bench latency`: one request at a time, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from octavo.bench.breakdown import PARTS, Breakdown, StepClock, breakdown
from octavo.bench.machine import Machine, measure_machine
from octavo.bench.native_profile import has_profile, profile_steps, profile_table
from octavo.bench.report import Report, Table, milliseconds, number, percent
from octavo.bench.session import Session
from octavo.bench.statistics import median
from octavo.bench.workload import Ask, random_asks
from octavo.config.engine import EngineConfig
from octavo.protocol.errors import ConfigError
from octavo.protocol.sampling import SamplingParams

SHORT_CONTEXT = 100
CONTEXT_OUTPUT = 64  # tokens over which the speed at a context is taken
BREAKDOWN_PROMPT, BREAKDOWN_OUTPUT = 32, 48
CROWD = 64


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """`context` 0 leaves the long context out; `prefill_len` 0 the prompt."""

    input_len: int = 32
    output_len: int = 128
    prefill_len: int = 1024
    context: int = 0
    breakdown: bool = True
    iterations: int = 5
    warmup: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """Medians of one request alone: seconds to its first token and for each further one."""

    ttft: float
    tpot: float


def run_latency(config: EngineConfig, options: LatencyOptions, *, quiet: bool = False) -> Report:
    """Measures; takes seconds on a small model. Raises ModelLoadError or ConfigError."""
    machine = measure_machine(config.backend.threads)
    with Session(config, quiet=quiet) as session:
        _check_room(session, options)
        tables = [machine.table(), session.table()]
        results: dict[str, Any] = {"model": session.describe()}
        parts = {"stream": _stream, "prefill": _prefill, "context": _context, "breakdown": _breakdowns, "native": _native}
        for name, part in parts.items():
            found = part(session, machine, options)
            if found is not None:
                results[name], table = found
                tables.append(table)
    return Report("latency", machine.describe(), asdict(options), results, tables)


Part = tuple[Any, Table] | None


def measure_stream(
    session: Session,
    input_len: int,
    output_len: int,
    iterations: int,
    warmup: int,
    seed: int,
    before: Callable[[], None] = lambda: None,
) -> Stream:
    """One request at a time, each with a prompt of its own, after `before()`. `output_len` 1 has no further tokens: `tpot` is NaN."""
    asks = random_asks(warmup + iterations, input_len, output_len, vocab_size=session.info.vocab_size, seed=seed).asks
    times = []
    for ask in asks:
        before()
        times.append(_one(session, ask))
    return Stream(median([first for first, _ in times[warmup:]]), median([each for _, each in times[warmup:]]))


def _one(session: Session, ask: Ask) -> tuple[float, float]:
    metrics = session.generate([ask])[0].metrics
    if metrics is None or metrics.first_token_time is None or metrics.last_token_time is None:
        raise RuntimeError("a request came back without its times")
    further = ask.output_len - 1
    return metrics.first_token_time - metrics.arrival_time, (
        (metrics.last_token_time - metrics.first_token_time) / further if further else float("nan")
    )


def _stream(session: Session, machine: Machine, options: LatencyOptions) -> Part:
    reads: list[float] = []
    stream = measure_stream(
        session,
        options.input_len,
        options.output_len,
        options.iterations,
        options.warmup,
        options.seed,
        before=lambda: reads.append(machine.reads_now()),
    )
    if options.output_len == 1:
        return {"ttft_s": stream.ttft}, Table("One stream", ["prompt", "TTFT ms"], [[str(options.input_len), milliseconds(stream.ttft)]])
    cost = session.cost
    context = options.input_len + options.output_len / 2
    once = cost.weights_bytes / machine.read_bytes_s
    reads_meanwhile = median(reads)
    found = {
        "ttft_s": stream.ttft,
        "tpot_s": stream.tpot,
        "tokens_per_s": 1 / stream.tpot,
        "read_bytes_per_s": cost.decode_bytes([context]) / stream.tpot,
        "ops_per_s": cost.decode_ops([context]) / stream.tpot,
        "limit_tokens_per_s": 1 / once,
        "share_of_limit": once / stream.tpot,
        "reads_meanwhile_bytes_per_s": reads_meanwhile,
        "share_of_reads_meanwhile": cost.weights_bytes / reads_meanwhile / stream.tpot,
    }
    row = [
        f"{options.input_len} + {options.output_len}",
        milliseconds(stream.ttft),
        milliseconds(stream.tpot),
        number(found["tokens_per_s"]),
        number(found["read_bytes_per_s"] / 1e9),
        number(found["ops_per_s"] / 1e9),
        number(found["limit_tokens_per_s"]),
        percent(found["share_of_limit"]),
        number(reads_meanwhile / 1e9),
        percent(found["share_of_reads_meanwhile"]),
    ]
    heads = ["prompt + output", "TTFT ms", "TPOT ms", "tokens/s", "GB/s", "GOP/s", "limit tokens/s", "of limit"]
    heads += ["reads then GB/s", "of that"]
    note = "limit: the weights read once a token, at the best rate seen; reads then: the rate just before each request, the median"
    return found, Table("One stream", heads, [row], note)


def _prefill(session: Session, machine: Machine, options: LatencyOptions) -> Part:
    if not options.prefill_len:
        return None
    length = options.prefill_len
    seconds = measure_stream(session, length, 1, options.iterations, options.warmup, options.seed).ttft
    cost = session.cost
    best = cost.prefill_seconds(machine, length)
    found = {
        "tokens": length,
        "ttft_s": seconds,
        "tokens_per_s": length / seconds,
        "ops_per_s": cost.prefill_ops(length) / seconds,
        "limit_tokens_per_s": length / best,
        "share_of_limit": best / seconds,
    }
    row = [
        str(length),
        milliseconds(seconds),
        number(found["tokens_per_s"], 0),
        number(found["ops_per_s"] / 1e9),
        number(found["limit_tokens_per_s"], 0),
        percent(found["share_of_limit"]),
    ]
    heads = ["prompt", "TTFT ms", "tokens/s", "GOP/s", "limit tokens/s", "of limit"]
    return found, Table("Prompt", heads, [row], "limit: its multiplications at the rate of the registers")


def _context(session: Session, machine: Machine, options: LatencyOptions) -> Part:
    if not options.context:
        return None
    rows, found = [], []
    for held in (SHORT_CONTEXT, options.context):
        output = min(CONTEXT_OUTPUT, held // 2)
        # The context named is what the middle token sees.
        tpot = measure_stream(session, held - output // 2, output, options.iterations, options.warmup, options.seed).tpot
        best = session.cost.decode_seconds(machine, [held])
        found.append({"context": held, "tpot_s": tpot, "tokens_per_s": 1 / tpot, "share_of_limit": best / tpot})
        read = session.cost.decode_bytes([held]) / tpot
        rows.append([str(held), milliseconds(tpot), number(1 / tpot), number(read / 1e9), percent(best / tpot)])
    ratio = found[0]["tpot_s"] / found[1]["tpot_s"]
    table = Table(
        "Long context",
        ["tokens held", "TPOT ms", "tokens/s", "GB/s", "of limit"],
        rows,
        f"with {options.context} tokens as fast as with {SHORT_CONTEXT}: {percent(ratio)}; limit: weights and cache read once a token",
    )
    return {"speeds": found, "ratio": ratio}, table


def _breakdowns(session: Session, machine: Machine, options: LatencyOptions) -> Part:
    if not options.breakdown:
        return None
    crowd = min(CROWD, session.llm._core._scheduler._config.max_num_seqs)
    drawn = SamplingParams(temperature=1.0, top_p=0.95, top_k=0, max_tokens=BREAKDOWN_OUTPUT, ignore_eos=True, seed=options.seed)
    cases = [(1, "greedy", None), (1, "top_p 0.95", drawn), (crowd, "greedy", None), (crowd, "top_p 0.95", drawn)]
    found = [_breakdown(session, count, name, params, options) for count, name, params in cases]
    rows = [
        [label, *(cell for each in found for cell in (number(value(each) * 1e6), percent(value(each) / each.total)))]
        for label, value in _lines()
    ]
    heads = ["µs a step"] + [head for each in found for head in (f"{each.requests} {each.sampling}", "%")]
    note = "; ".join(f"{name}: {meaning}" for name, meaning in PARTS.items())
    data = [
        {
            "requests": each.requests,
            "sampling": each.sampling,
            "steps": each.steps,
            "step_s": each.total,
            "parts_s": each.parts,
            "outside_native_share": each.outside / each.total,
            "sampling_is_native": each.sampling_is_native,
        }
        for each in found
    ]
    return data, Table("A step's time, in process", heads, rows, note)


def _native(session: Session, machine: Machine, options: LatencyOptions) -> Part:
    if not options.breakdown or not has_profile(session.llm):
        return None
    crowd = min(CROWD, session.llm._core._scheduler._config.max_num_seqs)
    found = [profile_steps(session, count, BREAKDOWN_OUTPUT, options.seed) for count in (1, crowd)]
    return [each.describe() for each in found], profile_table(found)


def _lines() -> list[tuple[str, Callable[[Breakdown], float]]]:
    lines: list[tuple[str, Callable[[Breakdown], float]]] = []
    for part in PARTS:
        lines.append((part, lambda each, part=part: each.parts[part]))  # type: ignore[misc]
    return [*lines, ("outside native code", lambda each: each.outside), ("step", lambda each: each.total)]


def _breakdown(session: Session, count: int, name: str, params: SamplingParams | None, options: LatencyOptions) -> Breakdown:
    prompts = random_asks(count, BREAKDOWN_PROMPT, BREAKDOWN_OUTPUT, vocab_size=session.info.vocab_size, seed=options.seed)
    split, clock = StepClock(split=True), StepClock()
    # The first run warms up for the second.
    for watch in (split, clock):
        with watch.watching(session.llm):
            if params is None:
                session.generate(prompts.asks)
            else:
                session.llm.generate([ask.prompt_token_ids for ask in prompts.asks], params, use_tqdm=False)
    return breakdown(clock, split, count, name)


def _check_room(session: Session, options: LatencyOptions) -> None:
    """Raises ConfigError for lengths that the model can't hold."""
    limit = session.info.max_model_len
    wanted = {
        "output_len": options.input_len + options.output_len,
        "prefill_len": options.prefill_len + 1,
        "context": options.context + CONTEXT_OUTPUT if options.context else 0,
    }
    for name, tokens in wanted.items():
        if tokens > limit:
            raise ConfigError(f"{name}: needs room for {tokens} tokens, but the model holds {limit}", param=name)
    if options.context and options.context < 2 * SHORT_CONTEXT:
        raise ConfigError(f"context: must be at least {2 * SHORT_CONTEXT}, or 0 for none", param="context")
