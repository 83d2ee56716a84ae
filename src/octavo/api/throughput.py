"""The progress bar of a batch."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class ThroughputBar:
    """A tqdm bar of finished requests with tokens a second of input and output, on standard error."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total = total
        self._shown = shown
        self._started = time.monotonic()
        self._input = self._output = 0
        self._bar: Any = None

    def __enter__(self) -> ThroughputBar:
        if self._shown:
            from tqdm import tqdm

            self._bar = tqdm(total=self._total, desc="Processed prompts", unit="prompt", file=sys.stderr, dynamic_ncols=True)
            self._started = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._tell()
            self._bar.close()

    def add_tokens(self, count: int) -> None:
        """Counts tokens generated."""
        self._output += count

    def finish_request(self, prompt_tokens: int) -> None:
        """One more request is done."""
        self._input += prompt_tokens
        if self._bar is not None:
            self._tell()
            self._bar.update(1)

    def _tell(self) -> None:
        seconds = max(time.monotonic() - self._started, 1e-9)
        self._bar.set_postfix_str(f"input {self._input / seconds:.1f} tok/s, output {self._output / seconds:.1f} tok/s", refresh=False)
