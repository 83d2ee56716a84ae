"""The seam between the engine and the workers that it drives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo.protocol.plan import StepPlan, StepResult
from octavo.protocol.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What is known once the weights are in memory and before the cache is: sizes in bytes, the model's own limit in tokens, how many
    `threads` compute and where, and what the user should be told. `digest` tells its keys and values from those of any other model, or of
    other arithmetic; it is empty where nobody asks. `window` is how many tokens back those of its layers see that see a window, None if
    there are none. `arithmetic` names what the last bits of a result depend on besides the model, and `kv_layout` the order of the bytes of
    a block. `hidden_size` is the width of what the logits are made from.

    Where some layers see a window and others everything, each kind has blocks of its own: those of the former take
    `kv_bytes_per_window_block` and those of the latter `kv_bytes_per_block` bytes; else the first is 0, and a block is of all layers."""

    architecture: str
    backend: str
    vocab_size: int
    max_model_len: int
    weights_bytes: int
    kv_bytes_per_block: int
    kv_cache_dtype: str
    digest: str = ""
    arithmetic: str = ""
    kv_layout: str = ""
    hidden_size: int = 0
    threads: str = ""
    window: int | None = None
    kv_bytes_per_window_block: int = 0
    notes: tuple[str, ...] = ()


class Executor(Protocol):
    """One step on N workers. `load`, then `allocate`, then `run` as often as needed, then `close`."""

    def load(self) -> LoadedModel:
        """Reads and packs the weights."""
        ...

    def allocate(self, num_blocks: int, num_swap_blocks: int = 0, num_window_blocks: int = 0) -> None:
        """Makes the KV cache, with `num_window_blocks` more for layers that see a window, and swap space in the host's memory."""
        ...

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Tells every worker the tokens as bytes, before the first request with a grammar."""
        ...

    def run(self, plan: StepPlan) -> StepResult:
        """Runs one step on every worker."""
        ...

    def read_block(self, block_id: int) -> bytes:
        """What a block of the KV cache holds: as many bytes as one of its kind has."""
        ...

    def write_block(self, block_id: int, content: bytes) -> None:
        """Puts what `read_block` gave, of the same model, arithmetic and layout, into a block."""
        ...

    def close(self) -> None:
        """Ends the workers and frees what they hold. May be called at any time, and twice."""
        ...
