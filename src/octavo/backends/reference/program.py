"""Runs a graph operation by operation, in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from octavo.backends.base import StepInputs
from octavo.backends.reference import operations
from octavo.backends.reference.attention import QueryTiles, cut_queries, paged_attention, partition_size
from octavo.backends.reference.kv_cache import FORMATS, Side, bytes_per_token
from octavo.backends.reference.products import ProductShape, Threads, invariant_tile, linear, product_shapes
from octavo.graph.graph import CacheLayer, Graph, Operation, RopeSpec

Floats = npt.NDArray[np.float32]


class ReferenceProgram:
    """A graph with float32 weights, and its KV cache: a Side for keys and one for values of each layer, in the type `kv_cache_dtype`."""

    def __init__(self, graph: Graph, weights: dict[str, Floats], threads: int, kv_cache_dtype: str = "float32") -> None:
        self._graph = graph
        self._weights = weights
        self._threads = Threads(threads)
        self._blas = ThreadpoolController()
        self.kv_cache_dtype = kv_cache_dtype
        self._format = FORMATS[kv_cache_dtype]
        self._keys: list[Side] = []
        self._values: list[Side] = []
        self._tile = 1
        self._block_size = 0
        self._num_blocks = self._num_window_blocks = 0
        self._hidden = np.empty((0, 0), np.float32)

    @property
    def notes(self) -> list[str]:
        """Nothing: every weight is held as float32."""
        return []

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights; one that serves twice counts once."""
        return sum(weight.nbytes for weight in self._weights.values())

    @property
    def tile(self) -> int:
        """Rows of a tile in every product (`products.invariant_tile`)."""
        return self._tile

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of keys and values of one block, all layers together."""
        return self._bytes_of(self._graph.cache_layers) * block_size

    def kv_bytes_per_window_block(self, block_size: int) -> int:
        """Bytes of those that belong to layers which see a window, where others see everything; else 0."""
        if not self._graph.mixes_windows:
            return 0
        return self._bytes_of(layer for layer in self._graph.cache_layers if layer.window is not None) * block_size

    def _bytes_of(self, layers: Iterable[CacheLayer]) -> int:
        return sum(bytes_per_token(self._format, layer.num_kv_heads, layer.head_dim) for layer in layers)

    def allocate_kv_cache(self, num_blocks: int, block_size: int, num_window_blocks: int = 0) -> None:
        """Makes the KV tensors, in memory that the system commits as it is first written, and settles the height of tiles."""
        self._block_size, self._num_blocks, self._num_window_blocks = block_size, num_blocks, num_window_blocks
        for layer in self._graph.cache_layers:
            blocks = num_window_blocks if self._is_apart(layer) else num_blocks
            for sides in (self._keys, self._values):
                sides.append(Side(self._format, blocks, block_size, layer.num_kv_heads, layer.head_dim))
        shapes: set[ProductShape] = set()
        for operation in self._graph.operations:
            if operation.name in ("linear", "logits"):
                shapes |= product_shapes(*operation.weights[0].shape)
        size = partition_size(block_size)
        for layer in self._graph.cache_layers:
            # Queries times keys, then weights times values (attention.attend_tiles).
            shapes |= {ProductShape(layer.head_dim, size, transposed=True), ProductShape(size, layer.head_dim, transposed=False)}
        with self._blas.limit(limits=1, user_api="blas"):
            self._tile = invariant_tile(shapes)

    def copy_blocks(self, copies: list[tuple[int, int, int]]) -> None:
        """Copies the first `num_tokens` slots for each (source, destination, num_tokens), in order, and clears the destination's others."""
        for source, destination, num_tokens in copies:
            sides, first = self._sides_of(source)
            for side in sides:
                side.copy(source - first, destination - first, num_tokens)

    def read_block(self, block_id: int) -> bytes:
        """Keys and values of one block, all layers together that it is of."""
        return b"".join(part.tobytes() for part in self._parts(block_id))

    def write_block(self, block_id: int, content: bytes) -> None:
        """Puts back what `read_block` gave, of this block or another of its kind. Raises ValueError for bytes of another number."""
        size = sum(part.nbytes for part in self._parts(block_id))
        if len(content) != size:
            raise ValueError(f"a block has {size} bytes, not {len(content)}")
        first = 0
        for target in self._parts(block_id):
            target[...] = np.frombuffer(content, target.dtype, target.size, first).reshape(target.shape)
            first += target.nbytes

    def _arrays(self) -> Iterator[npt.NDArray[Any]]:
        return (array for side in (*self._keys, *self._values) for array in side.arrays)

    def _is_apart(self, layer: CacheLayer) -> bool:
        """Whether the layer has blocks of the second kind."""
        return self._num_window_blocks > 0 and layer.window is not None

    def _sides_of(self, block_id: int) -> tuple[list[Side], int]:
        """The keys and values of the layers that a block is of, and the first id of its kind."""
        apart = self._num_window_blocks > 0 and block_id >= self._num_blocks
        chosen = [index for index, layer in enumerate(self._graph.cache_layers) if self._is_apart(layer) is apart]
        return [sides[index] for sides in (self._keys, self._values) for index in chosen], self._num_blocks if apart else 0

    def _parts(self, block_id: int) -> Iterator[npt.NDArray[Any]]:
        """What the arrays have of a block."""
        sides, first = self._sides_of(block_id)
        return (array[block_id - first] for side in sides for array in side.arrays)

    @property
    def kv_layout(self) -> str:
        """The keys of each layer, then the values of each, as `[block_size, kv_heads, head_dim]`, each with its scales behind it where
        the type has some."""
        return "reference-arrays"

    def run(self, step: StepInputs) -> Floats:
        """Computes one step; logits `[samples, vocab_size]`."""
        # A thread of the BLAS's own would split products at places that depend on how many there are.
        # Numbers that overflow end up in the logits, where the sampler fails the one request that they belong to.
        with self._blas.limit(limits=1, user_api="blas"), np.errstate(all="ignore"):
            return _Step(self, step).run()

    def hidden_states(self) -> Floats:
        """The hidden states that the last step wanted, `[pooled, hidden size]`."""
        return self._hidden

    def close(self) -> None:
        """Frees memory and threads."""
        self._threads.close()
        self._keys, self._values, self._weights = [], [], {}


class _Step:
    """One run of the graph: the values made so far, and what several operations share."""

    def __init__(self, program: ReferenceProgram, step: StepInputs) -> None:
        self._program = program
        self._step = step
        self._values: dict[int, Floats] = {}
        self._last_use = {value.index: place for place, op in enumerate(program._graph.operations) for value in op.inputs}
        self._rotations: dict[RopeSpec, tuple[Floats, Floats]] = {}
        self._tiles: dict[int, QueryTiles] = {}
        self._window_step = step if step.window_tables is None else self._in_window_blocks(step, step.window_tables)

    def run(self) -> Floats:
        table: dict[str, Callable[[Operation, list[Floats], list[Floats]], Floats]] = {
            "embed": lambda op, x, w: operations.embed(w[0], self._step.token_ids, **op.attributes),
            "rms_norm": lambda op, x, w: operations.rms_norm(x[0], w[0], **op.attributes),
            "head_norm": lambda op, x, w: operations.head_norm(x[0], w[0], **op.attributes),
            "linear": lambda op, x, w: self._linear(x[0], w[0], w[1] if len(w) > 1 else None),
            "rope": lambda op, x, w: self._rope(x[0], op.attributes["spec"]),
            "paged_attention": lambda op, x, w: self._attention(op, x),
            "silu_mul": lambda op, x, w: operations.silu_mul(x[0], x[1]),
            "gelu_mul": lambda op, x, w: operations.gelu_mul(x[0], x[1]),
            "add": lambda op, x, w: operations.add(x[0], x[1]),
            "logits": lambda op, x, w: self._logits(x[0], w[0], **op.attributes),
        }
        result = np.empty((0, self._program._graph.vocab_size), np.float32)
        for place, operation in enumerate(self._program._graph.operations):
            inputs = [self._values[value.index] for value in operation.inputs]
            result = table[operation.name](operation, inputs, [self._program._weights[weight.name] for weight in operation.weights])
            self._values[operation.output.index] = result
            for value in operation.inputs:
                if self._last_use[value.index] == place:
                    self._values.pop(value.index, None)
        return result

    def _logits(self, states: Floats, weight: Floats, softcap: float | None) -> Floats:
        self._program._hidden = states[self._step.hidden_rows]
        logits = self._linear(states[self._step.logit_rows], weight, None)
        return logits if softcap is None else operations.softcap(logits, softcap)

    @property
    def _linear(self) -> Callable[[Floats, Floats, Floats | None], Floats]:
        return partial(linear, tile=self._program._tile, threads=self._program._threads)

    def _rope(self, x: Floats, spec: RopeSpec) -> Floats:
        if spec not in self._rotations:
            self._rotations[spec] = operations.rotations(self._step.positions, spec)
        return operations.rope(x, *self._rotations[spec], spec.head_dim)

    def _attention(self, operation: Operation, inputs: list[Floats]) -> Floats:
        query, key, value = inputs
        program, layer = self._program, operation.attributes["layer"]
        cache: CacheLayer = operation.attributes["cache"]
        step = self._window_step if program._is_apart(cache) else self._step
        keys, values = program._keys[layer], program._values[layer]
        written = step.slot_mapping >= 0
        slots = step.slot_mapping[written]
        keys.write(slots, key[written])
        values.write(slots, value[written])
        group = query.shape[1] // (cache.num_kv_heads * cache.head_dim)
        if group not in self._tiles:
            self._tiles[group] = cut_queries(self._step, group, program._tile, program._block_size)
        tiles, scale, softcap = self._tiles[group], operation.attributes["scale"], operation.attributes["softcap"]
        return paged_attention(query, keys, values, step, tiles, cache, scale, program._threads, softcap)

    def _in_window_blocks(self, step: StepInputs, tables: npt.NDArray[np.int32]) -> StepInputs:
        """The step as the layers have it whose blocks are in `tables`."""
        size = self._program._block_size
        sequence = np.repeat(np.arange(len(tables)), np.diff(step.query_starts))
        slots = tables[sequence, step.positions // size].astype(np.int64) * size + step.positions % size
        return replace(step, block_tables=tables, slot_mapping=np.where(step.slot_mapping < 0, step.slot_mapping, slots))
