"""`octavo bench serve`: an OpenAI-compatible server under load."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from octavo.bench.http_stream import Address
from octavo.bench.load import Load, Target, ask_list, drive, find_model, negotiate
from octavo.bench.machine import processor
from octavo.bench.report import Report, Table, milliseconds, number, percent
from octavo.bench.server_process import ServerProcess, cpu_seconds
from octavo.bench.session import model_vocabulary
from octavo.bench.statistics import poisson_arrivals, summary
from octavo.bench.throughput import make_workload
from octavo.bench.workload import Workload
from octavo.config.engine import EngineConfig
from octavo.protocol.errors import ConfigError
from octavo.utils.machine import total_memory, usable_cores

PROMPT_FORMS = ("ids", "text")
# Words that most tokenizers know as one token each, for servers that take no token ids.
WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "was",
    "on",
    "are",
    "as",
    "with",
    "they",
    "at",
    "be",
    "this",
    "from",
    "have",
)
MEASURES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "E2E"}
FIRST_SECONDS = 120.0  # for what comes before the load: the list of models, one token


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """`rate` is of arrivals, in requests a second, infinite for all at once; `clients` the most requests under way, 0 for any number.

    `url` is a server that runs already; without it one is started with `server_arguments`. `warmup` requests are sent beforehand, or the
    prefix of the workload "shared-prefix". `num_prompts`, the lengths, and None for them are as for ThroughputOptions.
    Random token ids are below `vocab_size`, by default the model's, or 32,000 for a server that runs already.
    """

    url: str | None = None
    model: str | None = None
    workload: str = "chat64"
    num_prompts: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    prefix_len: int | None = None
    prompt_form: str = "ids"
    rate: float = math.inf
    clients: int = 0
    warmup: int = 4
    timeout: float = 300.0
    most_seconds: float = 900.0
    vocab_size: int | None = None
    seed: int = 0


def run_serve(
    options: ServeOptions, config: EngineConfig | None = None, server_arguments: Sequence[str] = (), *, api_key: str | None = None
) -> Report:
    """Measures. Raises ConfigError, BenchError for a server that can't be used, EngineDeadError for one that does not start.

    Without `options.url`, `config` and `server_arguments` are those of the server to start.
    """
    if config is not None and not options.url and options.vocab_size is None:
        options = replace(options, vocab_size=model_vocabulary(config.model))
    workload = check(options)
    asks = ask_list(workload.asks)
    if options.prompt_form == "text":
        asks = [(as_text(len(ids), index, len(workload.prefix)), output) for index, (ids, output) in enumerate(asks)]
    prefix: list[int] | str = list(workload.prefix)
    if options.prompt_form == "text" and prefix:
        prefix = as_text(len(prefix), 0, len(prefix))
    arrivals = poisson_arrivals(len(asks), options.rate, options.seed)
    with ExitStack() as stack:
        server = None if options.url else stack.enter_context(ServerProcess(server_arguments))
        address = Address.of(options.url or (server.url if server else ""), api_key)
        pids = [pid for pid in (server.pid, server.engine_pid) if pid is not None] if server else []
        target, load, spent = asyncio.run(_measure(options, address, asks, arrivals, pids, prefix))
    results = describe_load(load)
    results["ignore_eos"] = target.form.ignore_eos
    results["model"] = target.model
    results["server_cpu_seconds"] = spent
    settings = asdict(options)
    settings |= {"workload": workload.describe(), "rate": "inf" if math.isinf(options.rate) else options.rate}
    # A server that runs already does not say.
    settings["enable_prefix_caching"] = None if config is None or options.url else config.cache.enable_prefix_caching
    machine = {"processor": processor(), "cores": usable_cores(), "memory_bytes": total_memory()}
    return Report("serve", machine, settings, results, _tables(options, workload, results))


def check(options: ServeOptions) -> Workload:
    """The workload. Raises ConfigError for options that can't hold."""
    if options.prompt_form not in PROMPT_FORMS:
        raise ConfigError(f"prompt_form: must be one of {', '.join(PROMPT_FORMS)}, not {options.prompt_form!r}", param="prompt_form")
    if options.vocab_size is not None and options.vocab_size < 1:
        raise ConfigError(f"vocab_size: must be at least 1, not {options.vocab_size}", param="vocab_size")
    if not options.rate > 0:
        raise ConfigError(f"rate: must be over 0, or inf, not {options.rate:g}", param="rate")
    if options.url:
        Address.of(options.url)
    return make_workload(options.workload, options.vocab_size, options)


def as_text(words: int, index: int, shared: int = 0) -> str:
    """A prompt of about so many tokens, the first `shared` of which are the same for all; the same for the same arguments."""
    return " ".join([*random.Random(-1).choices(WORDS, k=shared), *random.Random(index).choices(WORDS, k=words - shared)])


async def _measure(
    options: ServeOptions,
    address: Address,
    asks: list[tuple[list[int] | str, int]],
    arrivals: list[float],
    pids: list[int],
    prefix: list[int] | str,
) -> tuple[Target, Load, float | None]:
    model = (options.model if options.url else None) or await find_model(address, FIRST_SECONDS)
    target = await negotiate(address, model, asks[0][0][:16], FIRST_SECONDS)
    if prefix:
        # As a request before them would leave it.
        await drive(target, [(prefix, 1)], [0.0], clients=0, timeout=options.timeout, most_seconds=options.most_seconds)
    elif options.warmup:
        warm = [(prompt[:64], 8) for prompt, _ in asks[: options.warmup]]
        await drive(target, warm, [0.0] * len(warm), clients=0, timeout=options.timeout, most_seconds=options.most_seconds)
    before = _spent(pids)
    load = await drive(target, asks, arrivals, clients=options.clients, timeout=options.timeout, most_seconds=options.most_seconds)
    after = _spent(pids)
    return target, load, None if before is None or after is None else after - before


def _spent(pids: list[int]) -> float | None:
    spent = [cpu_seconds(pid) for pid in pids]
    known = [seconds for seconds in spent if seconds is not None]
    return sum(known) if known and len(known) == len(spent) else None


def describe_load(load: Load) -> dict[str, Any]:
    """Rates, summaries of seconds, and errors by kind. Only requests that came to their end count."""
    good = [outcome for outcome in load.outcomes if outcome.error is None]
    bad = [outcome for outcome in load.outcomes if outcome.error is not None]
    output = sum(outcome.output_tokens for outcome in good)
    prompt = sum(outcome.prompt_tokens for outcome in good)
    return {
        "seconds": load.seconds,
        "completed": len(good),
        "failed": len(bad),
        "errors": dict(Counter(str(outcome.error) for outcome in bad)),
        "error_examples": {str(outcome.error): outcome.message for outcome in reversed(bad)},
        "prompt_tokens": prompt,
        "output_tokens": output,
        "requests_per_s": len(good) / load.seconds,
        "output_tokens_per_s": output / load.seconds,
        "total_tokens_per_s": (prompt + output) / load.seconds,
        "ttft_s": summary(outcome.ttft for outcome in good),
        "tpot_s": summary(outcome.tpot for outcome in good if outcome.tpot is not None),
        "itl_s": summary(gap for outcome in good for gap in outcome.itl),
        "e2e_s": summary(outcome.e2e for outcome in good),
        "client_cpu_seconds": load.client_cpu_seconds,
        "client_cpu_share": load.client_cpu_seconds / load.seconds,
    }


def _tables(options: ServeOptions, workload: Workload, results: dict[str, Any]) -> list[Table]:
    rate = "all at once" if math.isinf(options.rate) else f"{options.rate:g}/s"
    speed = [
        workload.name,
        rate,
        str(options.clients or "any"),
        f"{results['completed']} of {results['completed'] + results['failed']}",
        number(results["seconds"], 2),
        number(results["requests_per_s"], 2),
        number(results["output_tokens_per_s"]),
        number(results["total_tokens_per_s"]),
        percent(results["client_cpu_share"]),
        number(results["server_cpu_seconds"], 1),
    ]
    heads = ["workload", "arrivals", "clients", "completed", "s", "requests/s", "output tokens/s", "total tokens/s"]
    heads += ["client of a core", "server CPU s"]
    note = "" if results["ignore_eos"] else "the server does not take ignore_eos: answers may be shorter than asked for"
    where = f"{results['model']} at {options.url}" if options.url else results["model"]
    tables = [Table(f"Serving {where}", heads, [speed], note)]
    rows = [[name, *(milliseconds(results[key][each]) for each in ("mean", "median", "p90", "p99"))] for key, name in MEASURES.items()]
    tables.append(Table("Times", ["ms", "mean", "median", "p90", "p99"], rows))
    if results["errors"]:
        failures = [[kind, str(count), results["error_examples"][kind]] for kind, count in results["errors"].items()]
        tables.append(Table("Errors", ["kind", "requests", "for example"], failures))
    return tables
