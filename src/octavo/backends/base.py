"""The seam between a model and a machine: Backend, Program, and what one step hands to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from octavo.backends.sampling import SamplingInputs, SamplingOutputs
from octavo.config.engine import KV_CACHE_ALIASES
from octavo.graph.graph import Graph
from octavo.quantization.tensor import CheckpointTensor

WeightSource = Callable[[str], CheckpointTensor]

NO_ROWS: npt.NDArray[np.int32] = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step as plain arrays. Token rows of a sequence are adjacent and in order of position.

    `token_ids`, `positions`, `slot_mapping` `[tokens]` (slot = block · block_size + offset, where keys and values are written, or −1 for a
    token whose keys and values are in the cache already: it is computed, and nothing is written; such come first in their sequence);
    `query_starts` `[sequences + 1]` (rows of sequence s: `query_starts[s] … query_starts[s + 1]`);
    `sequence_lengths` `[sequences]` (tokens held after this step); `block_tables` `[sequences, most blocks]`, −1 beyond the end and
    for blocks at its beginning that no token of the step sees in any layer (they are not read); `logit_rows` `[samples]` (token rows whose
    logits are wanted); `hidden_rows` `[pooled]` (token rows whose hidden state is wanted instead).
    Where the cache has blocks of their own for the layers that see a window, all this is said of the others, and `window_tables`, of the
    shape of `block_tables`, has the blocks of these, by their number among their kind and below 0 for none; what is written where follows
    from it.
    A slot that a sequence writes is read by no other one of the same step.
    """

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slot_mapping: npt.NDArray[np.int64]
    query_starts: npt.NDArray[np.int32]
    sequence_lengths: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]
    logit_rows: npt.NDArray[np.int32]
    hidden_rows: npt.NDArray[np.int32] = field(default_factory=lambda: NO_ROWS)
    window_tables: npt.NDArray[np.int32] | None = None


class Program(Protocol):
    """A graph with its weights, ready to run on one device."""

    @property
    def weights_bytes(self) -> int:
        """Bytes that the packed weights take."""
        ...

    @property
    def notes(self) -> list[str]:
        """What a user should know of how the model runs: weights that were rounded, a slower backend than asked for."""
        ...

    @property
    def kv_cache_dtype(self) -> str:
        """The type that keys and values are held in: "float32", "bfloat16", "float16", "int8" or "fp8". What each of them makes of a number
        is defined by octavo.backends.reference.kv_cache."""
        ...

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of keys and values of one block, all layers together."""
        ...

    def kv_bytes_per_window_block(self, block_size: int) -> int:
        """Bytes of those that belong to layers which see a window, where others see everything; else 0."""
        ...

    def allocate_kv_cache(self, num_blocks: int, block_size: int, num_window_blocks: int = 0) -> None:
        """Makes the KV tensors. Called once, before the first `run`. With `num_window_blocks`, for a model of which some layers see a
        window and others everything, the former have as many blocks of their own; where blocks are copied, read and written, their ids
        begin at `num_blocks`."""
        ...

    def copy_blocks(self, copies: list[tuple[int, int, int]]) -> None:
        """For each (source, destination, num_tokens), in order and in every layer: copies the first `num_tokens` slots of block source to
        block destination, and clears the others there, so that nothing of another sequence is left in them."""
        ...

    @property
    def kv_layout(self) -> str:
        """A name for the order of the bytes in `read_block`: another one whenever that changes."""
        ...

    def read_block(self, block_id: int) -> bytes:
        """Keys and values of one block, all layers together that it is of: `kv_bytes_per_block` bytes, or of one kind of layers as many as
        that kind takes, in an order of the backend's own."""
        ...

    def write_block(self, block_id: int, content: bytes) -> None:
        """Puts back what `read_block` of this backend gave for a model and block size like these, into this block or another. Raises
        ValueError for bytes of another number."""
        ...

    def run(self, step: StepInputs) -> npt.NDArray[np.float32]:
        """Computes one step; logits `[samples, vocab_size]`."""
        ...

    def hidden_states(self) -> npt.NDArray[np.float32]:
        """What the last step's `hidden_rows` are after the model's last norm, before the logits: `[pooled, hidden size]`."""
        ...

    def close(self) -> None:
        """Frees memory and threads. A closed program can't run."""
        ...


@runtime_checkable
class SamplingProgram(Program, Protocol):
    """A program that can also sample. What is chosen is defined by octavo.worker.sampler, which samples for the others."""

    def expect_step(self) -> None:
        """Says that a step comes within some tens of microseconds, so that threads that sleep may wake up meanwhile."""
        ...

    def run_and_sample(self, step: StepInputs, sampling: SamplingInputs) -> SamplingOutputs:
        """Computes one step and chooses a token for each of its `logit_rows`."""
        ...

    def sample(self, logits: npt.NDArray[np.float32], sampling: SamplingInputs) -> SamplingOutputs:
        """Chooses a token for each row of `logits`, which the last `run` gave; `run` and this give what `run_and_sample` does."""
        ...


class Backend(Protocol):
    """A kind of device."""

    name: str

    def compile(self, graph: Graph, weights: WeightSource, on_progress: Callable[[int], None], kv_cache_dtype: str = "auto") -> Program:
        """Packs each weight of the graph and builds the program; `on_progress` is told the checkpoint bytes of each weight done.
        `kv_cache_dtype` is one of octavo.config.engine.KV_CACHE_DTYPES."""
        ...


def cache_type(asked: str, default: str) -> str:
    """The type of the cache that `asked` means, one of KV_CACHE_DTYPES, on a backend whose own choice is `default`."""
    return default if asked == "auto" else KV_CACHE_ALIASES.get(asked, asked)
