"""Compares Octavo with its peers on this machine, in one go: `python benchmarks/compare.py`, from the environment that Octavo is in.

README.md in this folder says what is compared and how. Results go to docs/benchmarks/results.json, and what is shown of them to
docs/benchmarks.md and the plots beside the results.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from comparison.artifacts import Artifacts
from comparison.contenders import CONTENDERS, SERVERS, Contender
from comparison.environments import SPECS, Environments, EnvironmentSetupError
from comparison.measuring import FAILURES, Setting
from comparison.page import write_page
from comparison.results import ResultsError, read_results
from comparison.session import Plan, run_plan
from octavo.utils.machine import usable_cores

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
PARTS = ("offline", "servers", "kernels")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/compare.py", description="Compare Octavo with its peers on this machine.")
    parser.add_argument("--envs", type=Path, default=HERE / ".envs", help="folder of the peers' environments (default: benchmarks/.envs)")
    parser.add_argument("--work", type=Path, default=HERE / ".work", help="folder of models and caches (default: benchmarks/.work)")
    parser.add_argument("--out", type=Path, help="folder that gets benchmarks.md (default: docs, or the work folder with --quick)")
    parser.add_argument("--only", metavar="KEY", nargs="+", default=[], help="these contenders only: see --list")
    parser.add_argument("--parts", metavar="PART", nargs="+", default=list(PARTS), choices=PARTS, help="of offline, servers, kernels")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender runs (default: 3)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="for every contender (default: one for each usable core)")
    parser.add_argument("--quick", action="store_true", help="a few short requests, to see that everything runs; no figures to quote")
    parser.add_argument("--install", action="store_true", help="make the environments and models, and end")
    parser.add_argument("--render", type=Path, metavar="RESULTS", help="write the page from such a file, without measuring")
    parser.add_argument("--list", action="store_true", help="list the contenders, and end")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.only) - {each.key for each in CONTENDERS})
    if unknown:
        parser.error(f"--only: no contender is named {unknown[0]}; see --list")
    if options.rounds < 1:
        parser.error(f"--rounds: must be at least 1, not {options.rounds}")
    if not 1 <= options.threads <= usable_cores():
        parser.error(f"--threads: must be from 1 to {usable_cores()}, the usable cores, not {options.threads}")
    return options


def main(arguments: list[str]) -> int:
    """Runs; the exit status is 1 if something could not be measured."""
    options = parse(arguments)
    environments = Environments(options.envs.resolve(), say)
    out = options.out or (options.work / "quick" if options.quick else PROJECT / "docs")
    if options.list:
        print("\n".join(f"{each.key:28}{each.name}: {each.how}" for each in CONTENDERS))
        return 0
    if options.render:
        try:
            return publish(read_results(options.render), out, environments)
        except ResultsError as failure:
            print(f"compare.py: {failure}", file=sys.stderr)
            return 2
    # So that every `with` ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    artifacts = Artifacts(options.work.resolve(), environments, options.threads, say)
    setting = Setting(artifacts, environments, options.work.resolve() / "cache", options.threads, options.quick, say)
    contenders = [each for each in CONTENDERS if not options.only or each.key in options.only]
    servers = [each for each in SERVERS if not options.only or each.key in options.only]
    problems = prepare(setting, contenders, environments)
    if options.install:
        return 1 if problems else 0
    plan = Plan(
        contenders if "offline" in options.parts else [],
        servers if "servers" in options.parts else [],
        "kernels" in options.parts,
        options.rounds,
    )
    command = shlex.join(["python", "benchmarks/compare.py", *arguments])
    about: dict[str, Any] = {"command": command, "time": datetime.now(UTC).isoformat(timespec="seconds"), "quick": options.quick}
    results = run_plan(setting, plan, about, out / "benchmarks" / "results.json", artifacts)
    return publish(results, out, environments)


def prepare(setting: Setting, contenders: list[Contender], environments: Environments) -> list[str]:
    """Makes environments and models before anything is measured; what failed, in sentences. A contender that needs it will say so again."""
    problems = []
    # In the order of SPECS, where what takes longest comes first.
    for name in [name for name in SPECS if name in {each.environment for each in contenders}]:
        try:
            environments.python(name)
        except EnvironmentSetupError as failure:
            problems.append(str(failure))
    for model in dict.fromkeys(each.model for each in contenders):
        try:
            setting.models.path(model)
        except FAILURES as failure:
            problems.append(str(failure))
    for problem in problems:
        say(problem)
    return problems


def publish(results: dict[str, Any], out: Path, environments: Environments) -> int:
    """Writes the page, and the README's part of it to standard output; 1 if the results lack something."""
    problems = write_page(results, out, environments, PROJECT / "README.md", say)
    return 1 if problems else 0


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
