"""Contenders and settings that run small scripts in the place of peers, and results without measurements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from comparison.contenders import Contender
from comparison.environments import EnvironmentSetupError
from comparison.measuring import Setting
from comparison.tasks import ANSWER

READY = {"ready_s": 0.5, "versions": {"fake": "1.0"}}
STREAM = {"task": "stream", "first_token_s": [0.1], "seconds": [1.1], "output_tokens": [101]}
PREFILL = {"task": "prefill", "first_token_s": [0.5], "seconds": [0.5], "output_tokens": [1]}
CHAT64 = {"task": "chat64", "seconds": 2.0, "output_tokens": 600}
LINES = (READY, {"answer": ANSWER}, STREAM, PREFILL, CHAT64)


class Models:
    """Every form of the model is the same empty file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "model"
        self._path.write_text("")

    def path(self, name: str) -> Path:
        return self._path

    def seconds(self, name: str) -> float | None:
        return 12.0 if name == "slow to make" else None


class Interpreters:
    """This interpreter for every environment but the one named "broken"."""

    def python(self, name: str) -> Path:
        if name == "broken":
            raise EnvironmentSetupError("broken can't be installed: no such package")
        return Path(sys.executable)


def setting(folder: Path, log: list[str] | None = None, *, quick: bool = True) -> Setting:
    lines = [] if log is None else log
    return Setting(Models(folder), Interpreters(), folder / "cache", 1, quick, lines.append)


def contender(key: str, runner: str, **fields: Any) -> Contender:
    """One that runs `runner`, a path."""
    values: dict[str, Any] = {"engine": "Peer", "weights": key, "bits": 4, "model": "model", "environment": "peer", "how": "by hand"}
    return Contender(key=key, runner=runner, **{**values, **fields})


def script(folder: Path, name: str, body: str) -> str:
    """Writes a runner that has read its job as `job` and prints what `say` is given."""
    path = folder / f"{name}.py"
    path.write_text(
        "import json, os, sys, time\n"
        "job = json.load(sys.stdin)\n"
        "def say(value): print(json.dumps(value), flush=True)\n"
        f"READY, QUESTION, STREAM, PREFILL, CHAT64 = {LINES!r}\n{body}\n"
    )
    return str(path)


def one_round(**changes: Any) -> dict[str, Any]:
    """What `measure_contender` finds when all goes well, in rates: stream 100, prefill 2,048, chat64 300, all by `speed`."""
    speed = changes.pop("speed", 1.0)
    found: dict[str, Any] = {
        "ready_s": 2.0 / speed,
        "versions": {"fake": "1.0"},
        "answer_is_right": True,
        "tasks": {
            "stream": {"first_token_s": [0.1], "seconds": [0.1 + 1 / speed], "output_tokens": [101]},
            "prefill": {"first_token_s": [0.5 / speed], "seconds": [0.5 / speed], "output_tokens": [1]},
            "chat64": {"seconds": 2.0 / speed, "output_tokens": 600},
        },
    }
    found["tasks"] |= changes.pop("tasks", {})
    return {**found, **changes}


def described(engine: str, weights: str, bits: int, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "engine": engine,
        "weights": weights,
        "bits": bits,
        "how": "somehow",
        "tasks": ["stream", "prefill", "chat64"],
        "model_bytes": 90_000_000,
        "prepared_s": None,
        "rounds": rounds,
    }


def load(tokens: float = 250.0, **fields: Any) -> dict[str, Any]:
    """Results of `octavo bench serve`, as far as they are shown."""
    times = {"mean": 0.2, "median": 0.1, "p90": 0.3, "p99": 0.4}
    return {"output_tokens_per_s": tokens, "ttft_s": times, "tpot_s": {name: value / 10 for name, value in times.items()}, **fields}


def results() -> dict[str, Any]:
    """Those of a run in which all went well: Octavo is three times as fast as the best peer of its kind."""
    machine = {"read_bytes_s": 50e9, "int8_ops_s": 800e9, "bf16_ops_s": 400e9}
    limits = {key: {"stream": 400.0, "prefill": 8000.0, "chat64": 1200.0, "weights_bytes": 1} for key in ("octavo-4", "octavo-16")}
    sweeps = {
        "clients": [load(100.0, clients=1, rate=None), load(200.0, clients=64, rate=None)],
        "rates": [load(50.0, clients=0, rate=1.0), load(90.0, clients=0, rate=8.0)],
    }
    server = {"ready_s": 1.0, "first_token_s": 1.2, "load": load()}
    return {
        "format": 1,
        "command": "python benchmarks/compare.py",
        "time": "2026-11-30T10:00:00+00:00",
        "quick": False,
        "octavo": "0.1.0",
        "threads": 2,
        "machine": {"processor": "A processor", "cores": 2, "memory_bytes": 24 << 30, "system": "Linux 6", "python": "3.11.7"},
        "limits": [{"machine": machine, "models": limits}] * 2,
        "contenders": {
            "octavo-4": described("Octavo", "Q4", 4, [one_round(speed=3.0), one_round(speed=3.0)]),
            "fast-4": described("Fast", "int4", 4, [one_round(speed=0.9), one_round(speed=1.1)]),
            "slow-8": described("Slow", "int8", 8, [one_round(speed=0.5), one_round(speed=0.5)]),
            "octavo-16": described("Octavo", "bf16", 16, [one_round(speed=1.5), one_round(speed=1.5)]),
            "wide": described("Wide", "bf16", 16, [one_round(speed=0.5), one_round(speed=0.5)]),
        },
        "servers": {"octavo-4": {"contender": "octavo-4", "rounds": [dict(server), {**server, **sweeps}]}},
        "kernels": {
            "settings": {"outputs": 1536, "inner": 576},
            "results": {
                "products": [
                    {"isa": isa, "layout": "int4", "rows": rows, "read_bytes_per_s": 4e9, "ops_per_s": 3e11, "share_of_isa_limit": 0.5}
                    for isa in ("avx512_vnni", "avx2")
                    for rows in (1, 64)
                ]
            },
        },
    }
