"""What is measured: each contender once a round, servers, kernels, the machine's limits. A failure is recorded, and the rest goes on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from comparison.artifacts import ArtifactError
from comparison.contenders import Contender, Server
from comparison.environments import EnvironmentSetupError
from comparison.processes import RunError, json_lines, run
from comparison.servers import QUICK_LOAD, WARMUP, LoadSpec, put_under_load, running, sweep
from comparison.tasks import ANSWER, FULL, QUICK, Scale, job
from octavo.protocol.errors import OctavoError

RUNNERS = Path(__file__).resolve().parents[1] / "runners"
PROJECT = Path(__file__).resolve().parents[2]
LIMITS_SECONDS, KERNELS_SECONDS = 120.0, 600.0
CLIENTS, RATES = (1, 2, 4, 8, 16, 32, 64), (1.0, 2.0, 4.0, 6.0, 8.0)
FAILURES = (RunError, ArtifactError, EnvironmentSetupError, OctavoError)

Log = Callable[[str], None]


class Models(Protocol):
    """Where the forms of the model lie: artifacts.Artifacts."""

    def path(self, name: str) -> Path:
        """Makes it if need be."""
        ...


class Interpreters(Protocol):
    """Where the environments' interpreters lie: environments.Environments."""

    def python(self, name: str) -> Path:
        """Installs it if need be."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What all measurements share."""

    models: Models
    interpreters: Interpreters
    cache: Path
    threads: int
    quick: bool
    log: Log

    @property
    def scale(self) -> Scale:
        """How much is asked."""
        return QUICK if self.quick else FULL

    def python(self, environment: str) -> Path:
        """The interpreter of an environment; "" is Octavo's own."""
        return self.interpreters.python(environment) if environment else Path(sys.executable)

    def variables(self, of: Contender | Server) -> dict[str, str]:
        """Environment variables of its process: its own, and where Octavo's code lies, or for the others where caches go."""
        if not of.environment:
            return {"PYTHONPATH": str(PROJECT / "src"), **of.variables}
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: self.threads]))
        caches = {"XDG_CACHE_HOME": str(self.cache), "TORCHINDUCTOR_CACHE_DIR": str(self.cache / "torchinductor")}
        found = {"VLLM_CPU_OMP_THREADS_BIND": cores, **caches, **of.variables}
        libraries = libraries_at(self.python(of.environment), of.preload)
        return {**found, "LD_PRELOAD": ":".join(map(str, libraries))} if libraries else found


def libraries_at(python: Path, names: Sequence[str]) -> list[Path]:
    """Where the libraries `names` lie that an environment or else the system has."""
    folders = [python.parents[1] / "lib", *Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib64")]
    found = [next((folder / name for folder in folders if (folder / name).exists()), None) for name in names]
    return [path for path in found if path is not None]


def order(count: int, index: int) -> list[int]:
    """Who runs when in round `index`: each round begins with another, and every second one goes backwards, so that none always follows the
    same one."""
    step = -1 if index % 2 else 1
    return [(index + step * place) % count for place in range(count)]


def measure_round(setting: Setting, contenders: Sequence[Contender], index: int) -> dict[str, dict[str, Any]]:
    """One round: what each contender that takes part gave, by its key, in the order in which they ran."""
    found = {}
    present = [contender for contender in contenders if index < contender.most_rounds]
    for place in order(len(present), index):
        contender = present[place]
        setting.log(f"round {index + 1}: {contender.name}")
        found[contender.key] = measure_contender(setting, contender)
    return found


def measure_contender(setting: Setting, contender: Contender) -> dict[str, Any]:
    """`ready_s`, `versions` and `tasks`; `error` says what went wrong with the whole, and in `tasks` with one."""
    try:
        python = setting.python(contender.environment)
        model = setting.models.path(contender.model)
        asked = job(str(model), setting.threads, dict(contender.options), contender.tasks, setting.scale)
        command = [str(python), str(RUNNERS / contender.runner)]
        variables = setting.variables(contender)
        output = run(command, variables, contender.timeout, stdin=json.dumps(asked))
        return read_lines(json_lines(output), contender.tasks)
    except RunError as failure:
        # What it measured before still counts.
        found = read_lines(json_lines(failure.output), contender.tasks, missing=str(failure))
        return found if found["tasks"] else {**found, "error": str(failure)}
    except FAILURES as failure:
        return {"tasks": {}, "error": str(failure)}


def read_lines(lines: Sequence[dict[str, Any]], tasks: Sequence[str], *, missing: str = "its runner did not report it") -> dict[str, Any]:
    """A runner's lines as one object. A task without a line has the error `missing`, unless there is no line of any."""
    found: dict[str, Any] = {"tasks": {}}
    for line in lines:
        if "task" in line:
            found["tasks"][line["task"]] = {name: value for name, value in line.items() if name != "task"}
        elif "answer" in line:
            found["answer_is_right"] = line["answer"] == ANSWER
        else:
            found |= line
    if found["tasks"]:
        for name in tasks:
            found["tasks"].setdefault(name, {"error": missing})
    return found


def measure_limits(setting: Setting, contenders: Sequence[Contender]) -> dict[str, Any]:
    """What the machine allows Octavo's contenders (limits.py), or `error`."""
    ours = {each.key: each for each in contenders if each.ours}
    try:
        asked = {"models": {key: str(setting.models.path(each.model)) for key, each in ours.items()}, "threads": setting.threads}
        command = [sys.executable, "-m", "comparison.limits", json.dumps({**asked, "quick": setting.quick})]
        path = f"{PROJECT / 'src'}:{PROJECT / 'benchmarks'}"
        output = run(command, {"PYTHONPATH": path}, LIMITS_SECONDS)
        found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        return found
    except FAILURES as failure:
        return {"error": str(failure)}


def measure_server(setting: Setting, server: Server, model: str, *, sweeping: bool) -> dict[str, Any]:
    """`ready_s`, `first_token_s` and `load`, chat64 from 64 clients; with `sweeping` also `clients` and `rates`, one load for each.

    `error` says what went wrong.
    """
    found: dict[str, Any] = {}
    random = QUICK_LOAD if setting.quick else None
    try:
        python = setting.python(server.environment)
        variables = setting.variables(server)
        with running(server, python, setting.models.path(model), variables) as serving:
            found |= {"ready_s": serving.ready_s, "first_token_s": serving.first_token_s}
            put_under_load(serving.url, LoadSpec(random=QUICK_LOAD) if setting.quick else WARMUP)
            found["load"] = put_under_load(serving.url, LoadSpec(clients=64, random=random))
            if sweeping:
                clients, rates = (CLIENTS[:2], RATES[-1:]) if setting.quick else (CLIENTS, RATES)
                found["clients"] = sweep(serving.url, [LoadSpec(clients=each, random=random) for each in clients])
                found["rates"] = sweep(serving.url, [LoadSpec(rate=each, random=random) for each in rates])
    except FAILURES as failure:
        found["error"] = str(failure)
    return found


def measure_kernels(setting: Setting) -> dict[str, Any]:
    """The report of `octavo bench kernels`, or `error`."""
    command = [sys.executable, "-m", "octavo", "bench", "kernels", "--threads", str(setting.threads), "--json", "-"]
    if setting.quick:
        command += ["--rows", "1", "--rows", "64", "--num-iters", "1"]
    try:
        found: dict[str, Any] = json.loads(run(command, {"PYTHONPATH": str(PROJECT / "src")}, KERNELS_SECONDS))
        return found
    except RunError as failure:
        return {"error": str(failure)}
