"""Where a step's time goes: native call, scheduling, inputs, sampling, results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from octavo.api.llm import LLM
from octavo.backends.base import StepInputs
from octavo.backends.sampling import SamplingInputs, SamplingOutputs
from octavo.bench.statistics import median
from octavo.executors.in_process import InProcessExecutor
from octavo.worker.stepping import InNumpy

PARTS = {
    "model": "the program: every layer and the logits",
    "sampling": "logits to tokens",
    "scheduling": "which requests, which blocks",
    "inputs": "the step as arrays, the worker's records",
    "results": "tokens to requests, detokenizing, stop strings",
    "other": "between these",
}


@dataclass(slots=True)
class StepTimes:
    """Seconds of one step: of the whole and of each part, and how many tokens it computed."""

    total: float
    parts: dict[str, float]
    tokens: int


class StepClock:
    """Times steps of an LLM in this process by standing in for methods of its objects; the LLM is untouched before and after.

    A program that samples by itself does so within its one call, whose time is "model". With `split` model and sampling are two calls,
    which shows the time of each.
    """

    def __init__(self, *, split: bool = False) -> None:
        self.steps: list[StepTimes] = []
        self.sampling_is_native = False
        self._split = split
        self._spent: dict[str, float] = {}

    @contextmanager
    def watching(self, llm: LLM) -> Iterator[None]:
        """Collects the steps that `llm` runs meanwhile."""
        executor: Any = llm._core._executor
        if not isinstance(executor, InProcessExecutor) or executor._worker is None:
            raise TypeError("only steps of an open LLM in this process can be timed")
        stepper: Any = executor._worker._stepper
        program = stepper._program
        self.sampling_is_native = not isinstance(stepper, InNumpy)
        stand_ins: list[tuple[Any, str, Callable[..., Any]]] = [
            (owner, method, self._timed(getattr(owner, method), name))
            for owner, method, name in (
                (executor, "run", "executor"),
                (llm._core._scheduler, "schedule", "schedule"),
                (llm._core._scheduler, "update", "update"),
                (llm._core, "step", "core"),
            )
        ]
        if self.sampling_is_native:
            both = self._separately(program) if self._split else self._timed(program.run_and_sample, "program")
            stand_ins.append((program, "run_and_sample", both))
        else:
            stand_ins.append((program, "run", self._timed(program.run, "program")))
            stand_ins.append((stepper._sampler, "sample", self._timed(stepper._sampler.sample, "sampler")))
        stand_ins.append((llm, "_step", self._whole(llm)))
        try:
            for owner, method, stand_in in stand_ins:
                setattr(owner, method, stand_in)
            yield
        finally:
            for owner, method, _ in stand_ins:
                vars(owner).pop(method, None)

    def _timed(self, inner: Callable[..., Any], name: str) -> Callable[..., Any]:
        spent, clock = self._spent, time.perf_counter

        def timed(*args: Any) -> Any:
            start = clock()
            try:
                return inner(*args)
            finally:
                spent[name] = spent.get(name, 0.0) + clock() - start

        return timed

    def _separately(self, program: Any) -> Callable[[StepInputs, SamplingInputs], SamplingOutputs]:
        run = self._timed(program.run, "program")
        sample = self._timed(program.sample, "sampler")

        def run_and_sample(step: StepInputs, sampling: SamplingInputs) -> SamplingOutputs:
            outputs: SamplingOutputs = sample(run(step), sampling)
            return outputs

        return run_and_sample

    def _whole(self, llm: LLM) -> Callable[..., None]:
        spent, clock, inner = self._spent, time.perf_counter, llm._step

        def step(*args: Any) -> None:
            spent.clear()
            start = clock()
            inner(*args)
            total = clock() - start
            self.steps.append(StepTimes(total, parts_of(spent, total), llm._core.stats().step_tokens))

        return step


def parts_of(spent: dict[str, float], total: float) -> dict[str, float]:
    """The parts of one step, which sum up to `total`, from the time spent in each watched method, calls that it made included."""

    def of(name: str) -> float:
        return spent.get(name, 0.0)

    parts = {
        "model": of("program"),
        "sampling": of("sampler"),
        "scheduling": of("schedule"),
        "inputs": of("executor") - of("program") - of("sampler"),
        "results": of("update") + total - of("core"),
    }
    parts["other"] = total - sum(parts.values())
    return parts


@dataclass(slots=True)
class Breakdown:
    """Median seconds of a step and of its parts over `steps` steps of `requests` requests."""

    requests: int
    sampling: str
    steps: int
    total: float
    parts: dict[str, float]
    sampling_is_native: bool

    @property
    def outside(self) -> float:
        """Seconds of the step outside native code."""
        return self.total - self.parts["model"] - (self.parts["sampling"] if self.sampling_is_native else 0.0)


def breakdown(clock: StepClock, split: StepClock, requests: int, sampling: str) -> Breakdown:
    """Of those steps of `clock` in which each of `requests` requests got a token: the median step, and its parts as shares of the sum of
    their medians, so that they add up. `split` tells the share of sampling within a native call."""
    full = _full(clock, requests)
    total = median([step.total for step in full])
    parts = {name: median([step.parts[name] for step in full]) for name in PARTS}
    if clock.sampling_is_native:
        parts["sampling"] = min(parts["model"], median([step.parts["sampling"] for step in _full(split, requests)]))
        parts["model"] -= parts["sampling"]
    scale = total / sum(parts.values())
    scaled = {name: value * scale for name, value in parts.items()}
    return Breakdown(requests, sampling, len(full), total, scaled, clock.sampling_is_native)


def _full(clock: StepClock, requests: int) -> list[StepTimes]:
    full = [step for step in clock.steps if step.tokens == requests]
    if not full:
        raise RuntimeError(f"no step of {requests} requests was seen")
    return full
