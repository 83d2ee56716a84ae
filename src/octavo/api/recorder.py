"""Who wants to know what happens to requests."""

from __future__ import annotations

import time
from typing import Protocol

from octavo.api.generation import Generation
from octavo.protocol.outputs import RequestMetrics
from octavo.protocol.wire import EngineOutput, EngineStats


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


def record_push(recorder: Recorder | None, generation: Generation, index: int, output: EngineOutput, now: float) -> bool:
    """Gives a generation what a step brought one of its samples, and tells of its tokens; what `Generation.push` returns."""
    known, previous = generation.num_generation_tokens, generation.samples[index].last_token_time
    cut = generation.push(index, output, now)
    # What the engine made beyond a stop string is not part of the answer.
    if recorder is not None and generation.num_generation_tokens > known:
        recorder.on_tokens(generation.metrics, generation.num_generation_tokens - known, now, previous)
    return cut


def record_end(recorder: Recorder | None, generation: Generation, *, failed: bool) -> None:
    """Tells that a generation is over, whatever way it ended."""
    generation.metrics.finished_time = generation.metrics.finished_time or time.monotonic()
    if recorder is not None:
        recorder.on_finished(
            "error" if failed else generation.finish_reason,
            len(generation.prompt_token_ids),
            generation.num_generation_tokens,
            generation.metrics,
            generation.n,
            generation.sampling.max_tokens,
        )
