"""Figures from the raw results: medians over rounds, with the least and the greatest, and the failures in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

PREFILL_TOKENS = 1024
MEASURES = ("stream", "prefill", "chat64", "ready")


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of `values`, one a round; `problem` says why there is none, or why a round lacks one."""

    values: tuple[float, ...] = ()
    problem: str = ""

    @property
    def median(self) -> float | None:
        """None where no round gave a value."""
        return median(self.values) if self.values else None

    @property
    def least(self) -> float | None:
        """See `median`."""
        return min(self.values, default=None)

    @property
    def greatest(self) -> float | None:
        """See `median`."""
        return max(self.values, default=None)


def tokens_per_second(name: str, task: dict[str, Any]) -> float:
    """Of one round's task: tokens after the first of one stream, prompt tokens to the first token, output tokens of chat64.

    Raises ValueError for times that give none.
    """
    if name == "chat64":
        return _rate(task["output_tokens"], task["seconds"])
    if name == "prefill":
        return median(_rate(PREFILL_TOKENS, seconds) for seconds in task["first_token_s"])
    times = zip(task["output_tokens"], task["seconds"], task["first_token_s"], strict=True)
    return median(_rate(tokens - 1, seconds - first) for tokens, seconds, first in times)


def _rate(tokens: int, seconds: float) -> float:
    if seconds <= 0:
        raise ValueError(f"{tokens} tokens in {seconds:.4f} s give no rate")
    return tokens / seconds


def contender_figure(rounds: Sequence[dict[str, Any]], measure: str) -> Figure:
    """`measure` of one contender, from what `measure_contender` found in each round; `measure` is one of MEASURES."""
    if measure == "ready":
        return _gathered(rounds, lambda found: float(found["ready_s"]))

    def value(found: dict[str, Any]) -> float:
        task = found["tasks"][measure]
        if "error" in task:
            raise ValueError(task["error"])
        return tokens_per_second(measure, task)

    return _gathered(rounds, value)


def server_figure(rounds: Sequence[dict[str, Any]], *names: str) -> Figure:
    """One figure of a server, from what `measure_server` found in each round; `names` lead to it."""

    def value(found: dict[str, Any]) -> float:
        inner: Any = found
        for name in names:
            inner = inner[name]
        return float(inner)

    return _gathered(rounds, value)


def limit_figure(limits: Sequence[dict[str, Any]], contender: str, measure: str) -> Figure:
    """What the machine allowed one of Octavo's contenders in each round, from what `measure_limits` found."""
    return _gathered(limits, lambda found: float(found["models"][contender][measure]))


def rate_figure(limits: Sequence[dict[str, Any]], name: str) -> Figure:
    """One rate of the machine, such as `read_bytes_s`."""
    return _gathered(limits, lambda found: float(found["machine"][name]))


def _gathered(rounds: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> Figure:
    values, problems = [], []
    for index, found in enumerate(rounds):
        try:
            values.append(value(found))
        except KeyError:
            problems.append((index, found.get("error", "not measured")))
        except ValueError as error:
            problems.append((index, str(error)))
    problem = ""
    if problems:
        index, words = problems[0]
        problem = words if len(problems) == len(rounds) else f"round {index + 1} of {len(rounds)}: {words}"
    return Figure(tuple(values), problem)


def ratio(one: Figure, other: Figure) -> float | None:
    """Of the medians."""
    return one.median / other.median if one.median is not None and other.median else None
