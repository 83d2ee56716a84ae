"""`octavo bench startup`: from the start of the process to the first token, and the memory it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from octavo.bench.http_stream import Address
from octavo.bench.load import BenchError, Form, Target, ask, find_model
from octavo.bench.machine import processor
from octavo.bench.report import Report, Table, megabytes, number
from octavo.bench.server_process import Memory, ServerProcess, memory_of
from octavo.bench.statistics import median
from octavo.config.engine import EngineConfig
from octavo.engine.core import build_core
from octavo.loading.progress import progress_for
from octavo.protocol.wire import EngineInfo
from octavo.utils.machine import total_memory, usable_cores

PROMPT = "The capital of France is"
FIRST_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class StartupOptions:
    """How often the server is started."""

    iterations: int = 5


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds from the start of the process, and what its processes hold once it has answered."""

    ready: float
    first_token: float
    server: Memory | None
    engine: Memory | None


def run_startup(config: EngineConfig, options: StartupOptions, server_arguments: Sequence[str]) -> Report:
    """Measures, with the files in the page cache. Raises ModelLoadError or ConfigError, EngineDeadError if a server does not start."""
    info = _model_info(config)
    starts = [start_once(server_arguments) for _ in range(options.iterations)]
    ready, first = median([start.ready for start in starts]), median([start.first_token for start in starts])
    servers = [start.server for start in starts if start.server is not None]
    engines = [start.engine for start in starts if start.engine is not None]
    memory = {
        "server_resident_bytes": _median(servers, "resident"),
        "server_own_bytes": _median(servers, "own"),
        "engine_resident_bytes": _median(engines, "resident"),
        "engine_own_bytes": _median(engines, "own"),
    }
    both = [memory["server_resident_bytes"], memory["engine_resident_bytes"]]
    total = None if None in both else sum(part for part in both if part is not None)
    results: dict[str, Any] = {
        "model": info.model,
        "ready_s": ready,
        "first_token_s": first,
        "ready_s_of_runs": [start.ready for start in starts],
        "first_token_s_of_runs": [start.first_token for start in starts],
        "weights_bytes": info.weights_bytes,
        "kv_cache_bytes": info.kv_cache_bytes,
        **memory,
        "resident_bytes": total,
        "resident_beside_weights_bytes": None if total is None else total - info.weights_bytes,
    }
    machine = {"processor": processor(), "cores": usable_cores(), "memory_bytes": total_memory()}
    return Report(
        "startup",
        machine,
        {**asdict(options), "enable_prefix_caching": config.cache.enable_prefix_caching},
        results,
        _tables(results, options),
    )


def start_once(server_arguments: Sequence[str]) -> Start:
    """Starts a server, asks it for its first token, and ends it. Raises BenchError if it gives none."""
    with ServerProcess(server_arguments) as server:
        arrived = asyncio.run(first_token(Address.of(server.url)))
        engine = server.engine_pid
        return Start(
            server.ready - server.started,
            arrived - server.started,
            memory_of(server.pid),
            memory_of(engine) if engine is not None else None,
        )


async def first_token(address: Address) -> float:
    """Asks the server at `address` for a first token; when it came, by time.perf_counter(). Raises BenchError if it gives none."""
    model = await find_model(address, FIRST_SECONDS)
    outcome = await ask(Target(address, model, Form(include_usage=False)), PROMPT, 4, FIRST_SECONDS)
    if outcome.error is not None:
        raise BenchError(f"the first request failed: {outcome.error}: {outcome.message}")
    return outcome.sent + outcome.ttft


def _model_info(config: EngineConfig) -> EngineInfo:
    """Loads the model here once: for its sizes, and to have its files in the page cache."""
    core = build_core(config, progress_for(quiet=True), lambda line: None)
    core.close()
    return core.info


def _median(values: list[Memory], part: str) -> float | None:
    return median([getattr(each, part) for each in values]) if values else None


def _tables(results: dict[str, Any], options: StartupOptions) -> list[Table]:
    spread = max(results["first_token_s_of_runs"]) - min(results["first_token_s_of_runs"])
    times = Table(
        "From the start of the process",
        ["model", "ready s", "first token s", "spread s"],
        [[results["model"], number(results["ready_s"], 3), number(results["first_token_s"], 3), number(spread, 3)]],
        f"medians of {options.iterations} starts, the files in the page cache",
    )
    rows = [
        ["server", megabytes(results["server_resident_bytes"]), megabytes(results["server_own_bytes"])],
        ["engine", megabytes(results["engine_resident_bytes"]), megabytes(results["engine_own_bytes"])],
        ["both", megabytes(results["resident_bytes"]), ""],
        ["packed weights", megabytes(results["weights_bytes"]), ""],
        ["both, beside the weights", megabytes(results["resident_beside_weights_bytes"]), ""],
        ["KV cache, once it is full", megabytes(results["kv_cache_bytes"]), ""],
    ]
    note = "own: not backed by a file. Pages of the KV cache become resident as they are first written"
    return [times, Table("Memory after the first request", ["MB", "resident", "own"], rows, note)]
