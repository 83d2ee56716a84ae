"""A recorder that remembers what it was told."""

from __future__ import annotations

from octavo.protocol.outputs import RequestMetrics
from octavo.protocol.wire import EngineStats


class SpyRecorder:
    """`tokens` are counts as they came, `firsts` how many of them were a sample's first, `finished` the ends' arguments."""

    def __init__(self) -> None:
        self.steps: list[EngineStats] = []
        self.tokens: list[int] = []
        self.firsts = 0
        self.finished: list[tuple[str, int, int, RequestMetrics, int, int | None]] = []

    def on_step(self, stats: EngineStats) -> None:
        self.steps.append(stats)

    def on_tokens(self, metrics: RequestMetrics, count: int, now: float, previous: float | None) -> None:
        assert metrics.arrival_time <= now
        assert previous is None or previous <= now
        self.firsts += previous is None
        self.tokens.append(count)

    def on_finished(
        self,
        finish_reason: str,
        num_prompt_tokens: int,
        num_generation_tokens: int,
        metrics: RequestMetrics,
        params_n: int,
        max_tokens: int | None,
    ) -> None:
        self.finished.append((finish_reason, num_prompt_tokens, num_generation_tokens, metrics, params_n, max_tokens))

    @property
    def reasons(self) -> list[str]:
        return [entry[0] for entry in self.finished]

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]
