"""What every runner does: read a task, load, answer a question, warm up, measure, report.

The task is one JSON object on standard input (or in the file named as the first argument):

    model          file or folder
    threads        how many to use
    max_model_len  tokens of the longest request
    options        what this contender wants beyond that
    question       {"prompt": token ids, "output_len": n}: its answer shows that the model computes what it should
    tasks          [{"name", "together", "warmup": requests, "requests": [[token ids, output_len], ...]}, ...]

Standard output gets one JSON object a line: {"ready_s", "versions"} once the model is loaded, {"answer"} of the question, and for each task
{"task", "seconds", ...} or {"task", "error"}. Requests of a task that is not `together` run alone, one after another, each also with one
token only, so that reading the prompt and generating can be told apart. All else that the library prints goes to standard error.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

Request = tuple[list[int], int]


class Engine(Protocol):
    """A loaded model."""

    def generate(self, requests: Sequence[Request]) -> list[list[int]]:
        """The tokens of each request: greedy, exactly as many as asked for, the end of text ignored."""
        ...


Load = Callable[[dict[str, Any]], Engine]


def main(load: Load, packages: Sequence[str]) -> None:
    """Runs the task with the engine that `load(task)` makes; `packages` are those whose versions matter."""
    report = _Reporter()
    task = json.loads(Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else sys.stdin.read())
    engine = load(task)
    report({"ready_s": seconds_since_start(), "versions": {name: importlib.metadata.version(name) for name in packages}})
    question = task["question"]
    report({"answer": engine.generate([(question["prompt"], question["output_len"])])[0]})
    for each in task["tasks"]:
        try:
            report({"task": each["name"], **run_task(engine, each)})
        except Exception as error:
            report({"task": each["name"], "error": f"{type(error).__name__}: {error}"})
    if close := getattr(engine, "close", None):
        close()


def run_task(engine: Engine, task: dict[str, Any]) -> dict[str, Any]:
    """Warms up, then measures."""
    requests = [(list(prompt), int(count)) for prompt, count in task["requests"]]
    warmup = [(list(prompt), int(count)) for prompt, count in task["warmup"]]
    if task["together"]:
        timed(engine, warmup)
        return {"seconds": timed(engine, requests), "output_tokens": sum(count for _, count in requests)}
    for request in warmup:
        timed(engine, [request])
    firsts, totals = [], []
    for prompt, count in requests:
        firsts.append(timed(engine, [(prompt, 1)]))
        totals.append(timed(engine, [(prompt, count)]) if count > 1 else firsts[-1])
    return {"first_token_s": firsts, "seconds": totals, "output_tokens": [count for _, count in requests]}


def timed(engine: Engine, requests: Sequence[Request]) -> float:
    """Seconds that `requests` take. Raises RuntimeError if one gets another number of tokens than it asked for."""
    start = time.perf_counter()
    outputs = engine.generate(requests)
    seconds = time.perf_counter() - start
    for (_, count), output in zip(requests, outputs, strict=True):
        if len(output) != count:
            raise RuntimeError(f"a request for {count} tokens got {len(output)}")
    return seconds


def seconds_since_start() -> float:
    """Since the start of this process, the interpreter's own with it."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


class _Reporter:
    """Keeps standard output for itself."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def __call__(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value) + "\n")
        self._file.flush()
