"""Who wants to know what happens to requests."""

from __future__ import annotations

from typing import Protocol

from octavo.protocol.outputs import RequestMetrics
from octavo.protocol.wire import EngineStats


class Recorder(Protocol):
    """Told of every step, every token and every end. Times are seconds of `time.monotonic()`; calls must be quick and not raise."""

    def on_step(self, stats: EngineStats) -> None:
        """After a step."""
        ...

    def on_tokens(self, metrics: RequestMetrics, count: int, now: float, previous: float | None) -> None:
        """`count` tokens came for one sample; `previous` is when its last ones did, None for its first."""
        ...

    def on_finished(
        self,
        finish_reason: str,
        num_prompt_tokens: int,
        num_generation_tokens: int,
        metrics: RequestMetrics,
        params_n: int,
        max_tokens: int | None,
    ) -> None:
        """A request is over: "stop", "length", "abort" or "error"."""
        ...
