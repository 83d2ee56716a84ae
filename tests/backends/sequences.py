"""Sequences of random queries, keys and values, run through a one-layer program in any order of chunks and batches, and the same by the
definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.backends.base import StepInputs
from octavo.backends.reference.kv_cache import FORMATS
from octavo.backends.reference.program import ReferenceProgram
from octavo.graph.graph import CacheLayer, Graph

Array = np.ndarray[Any, Any]
GARBAGE = np.array([np.nan, np.inf, -np.inf, 3e38], np.float32)


@dataclass(frozen=True)
class Shape:
    """An attention layer."""

    kv_heads: int
    group: int
    head_dim: int
    window: int | None = None

    @property
    def width(self) -> int:
        return self.kv_heads * self.group * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


@dataclass
class Sequence:
    """`[tokens, …]` of one sequence, and the blocks it lies in."""

    query: Array
    key: Array
    value: Array
    blocks: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.query)


def random_sequence(seed: int, length: int, shape: Shape) -> Sequence:
    made = np.random.default_rng([seed, 77])
    query, key, value = (
        made.standard_normal((length, width)).astype(np.float32) for width in (shape.width, shape.kv_width, shape.kv_width)
    )
    return Sequence(query * 2, key, value)


def as_stored(sequence: Sequence, shape: Shape, kv_cache_dtype: str) -> Sequence:
    """The same with keys and values as a cache of this type gives them back."""
    kind = FORMATS[kv_cache_dtype]
    key, value = (
        kind.decode(*kind.encode(x.reshape(len(x), shape.kv_heads, shape.head_dim))).reshape(x.shape)
        for x in (sequence.key, sequence.value)
    )
    return Sequence(sequence.query, key, value, sequence.blocks)


def dense(sequence: Sequence, shape: Shape) -> Array:
    """Causal softmax attention in float64, straight from its definition: `[tokens, heads · head_dim]`."""
    length = len(sequence)
    query = sequence.query.astype(np.float64).reshape(length, shape.kv_heads, shape.group, shape.head_dim)
    key = sequence.key.astype(np.float64).reshape(length, shape.kv_heads, shape.head_dim)
    value = sequence.value.astype(np.float64).reshape(length, shape.kv_heads, shape.head_dim)
    result = np.zeros_like(query)
    for position in range(length):
        first = 0 if shape.window is None else max(0, position - shape.window + 1)
        for head in range(shape.kv_heads):
            keys, values = key[first : position + 1, head], value[first : position + 1, head]
            for member in range(shape.group):
                scores = keys @ query[position, head, member] * shape.scale
                weights = np.exp(scores - scores.max())
                result[position, head, member] = weights @ values / math.fsum(weights)
    return result.reshape(length, shape.width)


class Runner:
    """A program whose only operations are the inputs' look-up and one attention layer.

    The model's tables hold each sequence's rows, so token ids say which row a token takes: the query, key and value of a token are rows
    of three embeddings, and the logits are the attention's output times the identity.
    """

    def __init__(
        self,
        sequences: list[Sequence],
        shape: Shape,
        block_size: int,
        num_blocks: int,
        *,
        threads: int = 1,
        tile: int | None = None,
        kv_cache_dtype: str = "float32",
    ) -> None:
        self._block_size = block_size
        self._starts = np.cumsum([0, *map(len, sequences)])
        self._sequences = sequences
        rows = int(self._starts[-1])
        graph = Graph(rows)
        query, key, value = graph.embed("query", shape.width), graph.embed("key", shape.kv_width), graph.embed("value", shape.kv_width)
        layer = CacheLayer(shape.kv_heads, shape.head_dim, shape.window)
        graph.paged_attention(query, key, value, layer, shape.scale)
        weights = {name: np.concatenate([getattr(sequence, name) for sequence in sequences]) for name in ("query", "key", "value")}
        self.program = ReferenceProgram(graph, weights, threads, kv_cache_dtype)
        self.program.allocate_kv_cache(num_blocks, block_size)
        if tile is not None:
            # Only what this machine's BLAS can keep the bits of.
            self.program._tile = min(tile, self.program.tile)

    def spoil(self, seed: int) -> None:
        """Fills the whole cache with what must never be read."""
        made = np.random.default_rng(seed)
        for array in self.arrays:
            garbage = GARBAGE if array.dtype.kind == "f" else np.arange(256)
            with np.errstate(over="ignore"):
                array[...] = made.choice(garbage, array.shape).astype(array.dtype)

    @property
    def arrays(self) -> list[Array]:
        """All that the cache holds, `[blocks, block_size, …]` each."""
        return list(self.program._arrays())

    def step(self, chunks: list[tuple[int, int, int]], unwritten: Callable[[int], bool] = lambda token: False) -> list[Array]:
        """Computes tokens `first … last` of sequence `index` for each (index, first, last), all in one step. Keys and values of rows that
        are `unwritten` stay out of the cache."""
        size = self._block_size
        positions = [np.arange(first, last) for _, first, last in chunks]
        tokens, slots = [], []
        for (index, _, _), place in zip(chunks, positions, strict=True):
            tokens.append(self._starts[index] + place)
            slots.append(np.array(self._sequences[index].blocks)[place // size] * size + place % size)
        counts = [-(-last // size) for _, _, last in chunks]
        tables = np.full((len(chunks), max(counts)), -1, np.int32)
        for row, (index, *_), count in zip(tables, chunks, counts, strict=True):
            row[:count] = self._sequences[index].blocks[:count]
        starts = np.cumsum([0, *map(len, positions)])
        step = StepInputs(
            token_ids=np.concatenate(tokens).astype(np.int32),
            positions=np.concatenate(positions).astype(np.int32),
            slot_mapping=np.array([-1 if unwritten(row) else slot for row, slot in enumerate(np.concatenate(slots))], np.int64),
            query_starts=starts.astype(np.int32),
            sequence_lengths=np.array([last for *_, last in chunks], np.int32),
            block_tables=tables,
            logit_rows=np.zeros(0, np.int32),
        )
        output = self.program.run(step)
        return [output[first:last] for first, last in itertools.pairwise(starts)]

    def close(self) -> None:
        self.program.close()
