"""The models and backends that the promise is kept on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workload import PROMPTS

from octavo import LLM

Bits = list[tuple[object, ...]]


@dataclass(frozen=True)
class Setup:
    """A model file of the fixtures, and the backend that runs it."""

    model: str
    backend: str
    kv_cache_dtype: str = "auto"

    @property
    def requests(self) -> int:
        """How many of the workload's requests it is given: the reference backend takes twenty times as long for each. The first sixteen
        have from 2 to 265 tokens."""
        return 16 if self.backend == "reference" else PROMPTS

    def start(self, **options: Any) -> LLM:
        return LLM(self.model, backend=self.backend, kv_cache_dtype=self.kv_cache_dtype, quiet=True, **options)


# One model for each way of multiplying: float32, bfloat16, 4-bit and 8-bit weights. And the types of cache that round; the C++ tests of
# attention compare the bits of all of them, alone and in tiles.
SETUPS = [
    Setup("tiny-llama", "reference"),
    Setup("tiny-llama", "cpu"),
    Setup("gguf-tiny-llama/tiny-llama-Q4_1.gguf", "cpu"),
    Setup("gguf-tiny-llama/tiny-llama-Q8_0.gguf", "cpu"),
    Setup("tiny-llama", "reference", "int8"),
    Setup("tiny-llama", "cpu", "int8"),
    Setup("tiny-llama", "cpu", "fp8"),
]
