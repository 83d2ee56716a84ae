"""Where the time within the native call goes: each kind of operation, and waiting for other threads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from octavo.api.llm import LLM
from octavo.bench.report import Table, number, percent
from octavo.bench.session import Session
from octavo.bench.workload import random_asks


@dataclass(frozen=True, slots=True)
class NativeProfile:
    """Seconds that a thread spends in a step of `requests` requests, the mean over threads and steps: at work in each kind of operation,
    and waiting at barriers."""

    requests: int
    working: dict[str, float]
    waiting: float

    @property
    def total(self) -> float:
        """Of the whole native call, but for its start and end."""
        return sum(self.working.values()) + self.waiting

    def describe(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)


def has_profile(llm: LLM) -> bool:
    """Whether the backend's program can tell."""
    return hasattr(_program(llm), "profile")


def _program(llm: LLM) -> Any:
    executor: Any = llm._core._executor
    return executor._worker._stepper._program


def profile_steps(session: Session, requests: int, output_len: int, seed: int) -> NativeProfile:
    """Runs `requests` greedy requests of one prompt token, so that all steps but the first give each of them one token."""
    program = _program(session.llm)
    asks = random_asks(requests, 1, output_len, vocab_size=session.info.vocab_size, seed=seed).asks
    session.generate(asks)
    program.profile(True)
    try:
        session.generate(asks)
        lines = program.profiled()
    finally:
        program.profile(False)
    working = {name: seconds / output_len for name, seconds, _ in lines}
    return NativeProfile(requests, working, sum(waiting for _, _, waiting in lines) / output_len)


def profile_table(profiles: list[NativeProfile]) -> Table:
    """For people."""
    names = list(profiles[0].working)
    lines = [(name, [each.working[name] for each in profiles]) for name in names]
    lines.append(("waiting", [each.waiting for each in profiles]))
    lines.append(("native call", [each.total for each in profiles]))
    rows = [
        [name, *(cell for value, each in zip(values, profiles, strict=True) for cell in (number(value * 1e6), percent(value / each.total)))]
        for name, values in lines
    ]
    heads = ["µs of a thread"] + [head for each in profiles for head in (f"{each.requests} at once", "%")]
    return Table("The native call of a step, by operation", heads, rows, "waiting: at barriers, for the slowest thread")
