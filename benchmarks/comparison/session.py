"""One run of the comparison, from the first round to the file of results."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from comparison.artifacts import size_of
from comparison.contenders import CONTENDERS, Contender, Server
from comparison.measuring import FAILURES, Setting, measure_kernels, measure_limits, measure_round, measure_server, order
from comparison.results import write_results
from octavo._version import __version__
from octavo.bench.machine import processor
from octavo.utils.machine import total_memory, usable_cores


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and in how many rounds."""

    contenders: Sequence[Contender]
    servers: Sequence[Server]
    kernels: bool
    rounds: int


class Made(Protocol):
    """How long the forms of the model took to make: artifacts.Artifacts."""

    def seconds(self, name: str) -> float | None:
        """None where nothing had to be made."""
        ...


def run_plan(setting: Setting, plan: Plan, about: dict[str, Any], target: Path, made: Made) -> dict[str, Any]:
    """Measures, and writes the results after every round, so that little is lost when it is interrupted."""
    results: dict[str, Any] = {**about, "octavo": __version__, "threads": setting.threads, "machine": describe_machine(), "limits": []}
    results["contenders"] = {each.key: describe(setting, each, made) for each in plan.contenders}
    results["servers"] = {each.key: {"contender": each.contender, "rounds": []} for each in plan.servers}
    if plan.kernels:
        setting.log("kernels")
        results["kernels"] = measure_kernels(setting)
    models = {each.key: each.model for each in CONTENDERS}
    for index in range(plan.rounds):
        if plan.contenders:
            results["limits"].append(measure_limits(setting, plan.contenders))
            for key, found in measure_round(setting, plan.contenders, index).items():
                results["contenders"][key]["rounds"].append(found)
        for place in order(len(plan.servers), index):
            server = plan.servers[place]
            setting.log(f"round {index + 1}: {server.key} over HTTP")
            found = measure_server(setting, server, models[server.contender], sweeping=index == plan.rounds - 1)
            results["servers"][server.key]["rounds"].append(found)
        write_results(target, results)
    return results


def describe_machine() -> dict[str, Any]:
    """The machine, for the record."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "memory_bytes": total_memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def describe(setting: Setting, contender: Contender, made: Made) -> dict[str, Any]:
    """A contender, for the record, with no rounds yet."""
    kept = ("engine", "weights", "bits", "how", "tasks")
    found: dict[str, Any] = {name: value for name, value in asdict(contender).items() if name in kept}
    found |= {"prepared_s": made.seconds(contender.model), "rounds": []}
    try:
        found["model_bytes"] = size_of(setting.models.path(contender.model))
    except FAILURES as failure:
        found["model_error"] = str(failure)
    return found
