"""The native program behind the backend's seam."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.backends.base import StepInputs
from octavo.backends.sampling import SamplingInputs, SamplingOutputs
from octavo.protocol.errors import ConfigError

BLOCK_MULTIPLE = 16


class CpuProgram:
    """A packed model and its KV cache, of the type `kv_cache_dtype`."""

    def __init__(self, native: Any, kv_cache_dtype: str, notes: list[str], hidden_size: int) -> None:
        self._native = native
        self._hidden_size = hidden_size
        self.kv_cache_dtype = kv_cache_dtype
        self.notes = notes

    @property
    def weights_bytes(self) -> int:
        """Bytes of the packed weights; one that serves twice counts once."""
        return int(self._native.weights_bytes())

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of keys and values of one block, all layers together. Raises ConfigError for a block size that is no multiple of 16: the
        kernels read keys sixteen at a time."""
        if block_size % BLOCK_MULTIPLE:
            raise ConfigError(
                f"block_size: must be at least {BLOCK_MULTIPLE} on the cpu backend, not {block_size}; --backend reference takes less",
                param="block_size",
            )
        return int(self._native.cache_bytes_per_block(block_size))

    def kv_bytes_per_window_block(self, block_size: int) -> int:
        """Bytes of those that belong to layers which see a window, where others see everything; else 0."""
        return int(self._native.cache_bytes_per_window_block(block_size))

    def allocate_kv_cache(self, num_blocks: int, block_size: int, num_window_blocks: int = 0) -> None:
        """Makes the KV cache, in memory that the system commits as it is first written."""
        self._native.allocate_cache(num_blocks, block_size, num_window_blocks)

    def copy_blocks(self, copies: list[tuple[int, int, int]]) -> None:
        """Copies the first `num_tokens` slots for each (source, destination, num_tokens), in order, and clears the destination's others.
        Raises ValueError, with nothing copied, for a block or a number of tokens out of range."""
        self._native.copy_blocks(copies)

    @property
    def kv_layout(self) -> str:
        """Layer after layer, as the strips of csrc/kernels/cache.hpp."""
        return "cpu-strips"

    def read_block(self, block_id: int) -> bytes:
        """Keys and values of one block, all layers together that it is of. Raises ValueError for a block out of range."""
        return bytes(self._native.read_block(block_id))

    def write_block(self, block_id: int, content: bytes) -> None:
        """Puts back what `read_block` gave, of this block or another, with a program of the same model, type and block size, on any
        instruction set. Raises ValueError for a block out of range, or bytes of another number."""
        self._native.write_block(block_id, content)

    def expect_step(self) -> None:
        """Wakes threads that have gone to sleep since the last step."""
        self._native.expect_step()

    def run(self, step: StepInputs) -> npt.NDArray[np.float32]:
        """Computes one step without the GIL; logits `[samples, vocab_size]`, which the next run overwrites."""
        logits: npt.NDArray[np.float32] = self._native.run(
            step.token_ids,
            step.positions,
            step.slot_mapping,
            step.query_starts,
            step.sequence_lengths,
            step.block_tables,
            step.window_tables,
            _rows(step),
        )
        return logits

    def hidden_states(self) -> npt.NDArray[np.float32]:
        """The hidden states that the last step wanted, `[pooled, hidden size]`, after the last norm in float32."""
        return np.frombuffer(self._native.hidden(), np.float32).reshape(-1, self._hidden_size)

    def run_and_sample(self, step: StepInputs, sampling: SamplingInputs) -> SamplingOutputs:
        """Computes one step and samples from its logits, all in one call without the GIL. Exponentials may differ from numpy's in the last
        place, and with them a weight or a logprob in its last; everything else is as octavo.worker.sampler says."""
        return SamplingOutputs(
            *self._native.run_and_sample(
                step.token_ids,
                step.positions,
                step.slot_mapping,
                step.query_starts,
                step.sequence_lengths,
                step.block_tables,
                step.window_tables,
                _rows(step),
                *_arrays(sampling),
            )
        )

    def sample(self, logits: npt.NDArray[np.float32], sampling: SamplingInputs) -> SamplingOutputs:
        """Samples from what `run` gave, with the same result as `run_and_sample`."""
        return SamplingOutputs(*self._native.sample(logits, *_arrays(sampling)))

    def profile(self, on: bool) -> None:
        """Counts what steps spend in which operations, from zero; or no longer. Reading the clock costs a step about a percent."""
        self._native.profile(on)

    def profiled(self) -> list[tuple[str, float, float]]:
        """Each kind of operation with the seconds that a thread, on average, worked in it and waited for others, since `profile(True)`."""
        return [tuple(line) for line in self._native.profiled()]

    def close(self) -> None:
        """Frees memory and threads."""
        self._native = None


def _arrays(sampling: SamplingInputs) -> tuple[npt.NDArray[Any], ...]:
    return (
        sampling.rows.view(np.uint8),
        sampling.changed_ids,
        sampling.changed_counts,
        sampling.biased_ids,
        sampling.biases,
        sampling.masks,
    )


def _rows(step: StepInputs) -> npt.NDArray[np.int32]:
    """Rows as the native program takes them: ~row, at the end, for one whose hidden state is wanted and no logits."""
    return np.concatenate([step.logit_rows, ~step.hidden_rows]) if len(step.hidden_rows) else step.logit_rows
