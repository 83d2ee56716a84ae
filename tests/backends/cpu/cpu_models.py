"""Small random models in every weight format, and sequences that run through them in any chunks and batches."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.backends.base import StepInputs
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.program import CpuProgram
from octavo.graph.graph import CacheLayer, Graph, RopeSpec
from octavo.quantization.tensor import CheckpointTensor

Array = np.ndarray[Any, Any]
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q8_0": 34, "IQ4_NL": 18}


def halves(made: np.random.Generator, low: float, high: float, shape: tuple[int, ...]) -> Array:
    """Random float16 numbers as bytes."""
    return made.uniform(low, high, shape).astype(np.float16).view(np.uint8)


def random_tensor(name: str, kind: str, outputs: int, inner: int, made: np.random.Generator) -> CheckpointTensor:
    """Weights of about 1 / sqrt(inner), whatever their storage."""
    size = inner**-0.5
    match kind:
        case "F32" | "F16" | "BF16":
            values = (made.standard_normal((outputs, inner)) * size).astype(np.float32)
            stored = {"F32": values, "F16": values.astype(np.float16), "BF16": (values.view(np.uint32) >> 16).astype(np.uint16)}[kind]
            data = stored.view(np.uint8).reshape(outputs, -1)
        case "Q6_K":
            blocks = made.integers(0, 256, (outputs, inner // 256, 210), np.uint8)
            blocks[..., 192:208] = made.integers(-64, 64, (outputs, inner // 256, 16)).astype(np.int8).view(np.uint8)
            blocks[..., 208:] = halves(made, size / 1000, size / 500, (outputs, inner // 256, 1))
            data = blocks.reshape(outputs, -1)
        case "Q4_K":
            blocks = made.integers(0, 256, (outputs, inner // 256, 144), np.uint8)
            blocks[..., :2] = halves(made, size / 300, size / 150, (outputs, inner // 256, 1))
            blocks[..., 2:4] = halves(made, size / 40, size / 20, (outputs, inner // 256, 1))
            data = blocks.reshape(outputs, -1)
        case _:
            blocks = made.integers(0, 256, (outputs, inner // 32, BLOCK_BYTES[kind]), np.uint8)
            steps = {"Q8_0": 74, "Q5_0": 9, "IQ4_NL": 68}.get(kind, 4.6)  # the standard deviation of q
            blocks[..., :2] = halves(made, 0.5 * size / steps, 1.5 * size / steps, (outputs, inner // 32, 1))
            if kind == "Q4_1":
                blocks[..., 2:4] = halves(made, -11 * size / steps, -4 * size / steps, (outputs, inner // 32, 1))
            data = blocks.reshape(outputs, -1)
    return CheckpointTensor(name, kind, (outputs, inner), np.ascontiguousarray(data))


def vector(name: str, values: Array) -> CheckpointTensor:
    return CheckpointTensor(name, "F32", values.shape, values.astype(np.float32).view(np.uint8).reshape(1, -1))


@dataclass(frozen=True)
class Config:
    """A model of the Llama family, or with `gemma` one that has everything that the Gemmas have, whose layers in turn see the window or
    everything. `kinds` are the storage of the linears; those it does not name are stored as `kind`."""

    kind: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int = 67
    layers: int = 2
    window: int | None = None
    bias: bool = False
    gemma: bool = False
    kinds: dict[str, str] = field(default_factory=dict)


class Model:
    """A graph and its random weights."""

    def __init__(self, config: Config, seed: int = 0) -> None:
        self.config = config
        self.weights: dict[str, CheckpointTensor] = {}
        self._made = np.random.default_rng([seed, 5])
        self.graph = graph = Graph(config.vocabulary)
        offset = 1.0 if config.gemma else 0.0
        x = graph.embed(self._matrix("embed", config.vocabulary, config.hidden), config.hidden, config.hidden**0.5 if config.gemma else 1.0)
        frequencies = tuple(float(10000.0 ** (-i / (config.head_dim / 2))) for i in range(config.head_dim // 2))
        spec = RopeSpec(config.head_dim, frequencies)
        width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        for layer in range(config.layers):
            at = f"{layer}."
            y = graph.rms_norm(x, self._norm(f"{at}norm1"), 1e-5, offset)
            query, key, value = (
                graph.linear(y, self._matrix(at + part, size, config.hidden), size, self._bias(at + part, size))
                for part, size in (("q", width), ("k", kv_width), ("v", kv_width))
            )
            if config.gemma:
                query, key = (
                    graph.head_norm(each, self._norm(f"{at}{part}_norm", config.head_dim), config.head_dim, 1e-5, offset)
                    for each, part in ((query, "q"), (key, "k"))
                )
            cache = CacheLayer(config.kv_heads, config.head_dim, None if config.gemma and layer % 2 else config.window)
            query, key = graph.rope(query, spec), graph.rope(key, spec)
            y = graph.paged_attention(query, key, value, cache, config.head_dim**-0.5, 2.0 if config.gemma else None)
            y = graph.linear(y, self._matrix(f"{at}o", config.hidden, width), config.hidden, self._bias(f"{at}o", config.hidden))
            x = graph.add(x, graph.rms_norm(y, self._norm(f"{at}norm3"), 1e-5, offset) if config.gemma else y)
            y = graph.rms_norm(x, self._norm(f"{at}norm2"), 1e-5, offset)
            size = config.intermediate
            gate, up = (graph.linear(y, self._matrix(at + part, size, config.hidden), size) for part in ("gate", "up"))
            gated = graph.gelu_mul(gate, up) if config.gemma else graph.silu_mul(gate, up)
            y = graph.linear(gated, self._matrix(f"{at}down", config.hidden, size), config.hidden)
            x = graph.add(x, graph.rms_norm(y, self._norm(f"{at}norm4"), 1e-5, offset) if config.gemma else y)
        x = graph.rms_norm(x, self._norm("norm"), 1e-5, offset)
        graph.logits(x, self._matrix("head", config.vocabulary, config.hidden), 1.5 if config.gemma else None)

    def compile(self, isa: str, threads: int = 2, blocks: int = 64, block_size: int = 16, kv_cache_dtype: str = "auto") -> CpuProgram:
        program = CpuBackend(threads, isa).compile(self.graph, self.weights.__getitem__, lambda done: None, kv_cache_dtype)
        program.allocate_kv_cache(blocks, block_size)
        return program

    def _matrix(self, name: str, outputs: int, inner: int) -> str:
        kind = self.config.kinds.get(name.split(".")[-1], self.config.kind)
        self.weights[name] = random_tensor(name, kind, outputs, inner, self._made)
        return name

    def _norm(self, name: str, width: int = 0) -> str:
        mean = 0 if self.config.gemma else 1
        self.weights[name] = vector(name, mean + 0.2 * self._made.standard_normal(width or self.config.hidden))
        return name

    def _bias(self, name: str, width: int) -> str | None:
        if not self.config.bias:
            return None
        self.weights[f"{name}.bias"] = vector(f"{name}.bias", 0.3 * self._made.standard_normal(width))
        return f"{name}.bias"


@dataclass
class Sequence:
    """Tokens of one sequence and the blocks it lies in."""

    token_ids: Array
    blocks: list[int]
    done: int = 0


def step_of(chunks: list[tuple[Sequence, int]], block_size: int = 16) -> StepInputs:
    """The next `count` tokens of each sequence, with the logits of every row."""
    positions = [np.arange(sequence.done, sequence.done + count) for sequence, count in chunks]
    ends = [sequence.done + count for sequence, count in chunks]
    counts = [-(-end // block_size) for end in ends]
    tables = np.full((len(chunks), max(counts)), -1, np.int32)
    for row, (sequence, _), count in zip(tables, chunks, counts, strict=True):
        row[:count] = sequence.blocks[:count]
    slots = [
        np.array(sequence.blocks)[at // block_size] * block_size + at % block_size
        for (sequence, _), at in zip(chunks, positions, strict=True)
    ]
    starts = np.cumsum([0, *map(len, positions)])
    return StepInputs(
        token_ids=np.concatenate([sequence.token_ids[at] for (sequence, _), at in zip(chunks, positions, strict=True)]).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slot_mapping=np.concatenate(slots).astype(np.int64),
        query_starts=starts.astype(np.int32),
        sequence_lengths=np.array(ends, np.int32),
        block_tables=tables,
        logit_rows=np.arange(starts[-1], dtype=np.int32),
    )


def advance(program: CpuProgram, chunks: list[tuple[Sequence, int]], block_size: int = 16) -> list[Array]:
    """Runs one step; the logits of each chunk's rows."""
    logits = program.run(step_of(chunks, block_size)).copy()
    starts = np.cumsum([0, *(count for _, count in chunks)])
    for sequence, count in chunks:
        sequence.done += count
    return [logits[first:last] for first, last in itertools.pairwise(starts)]


def place(tokens: list[Array], made: random.Random, num_blocks: int, block_size: int = 16) -> list[Sequence]:
    """Scatters sequences over the blocks."""
    ids = list(range(num_blocks))
    made.shuffle(ids)
    return [Sequence(each, [ids.pop() for _ in range(-(-len(each) // block_size))]) for each in tokens]


def in_random_steps(program: CpuProgram, sequences: list[Sequence], made: random.Random, most: int, block_size: int = 16) -> list[Array]:
    """Runs all sequences to their end in random chunks of random batches; the logits of each."""
    parts: list[list[Array]] = [[] for _ in sequences]
    while True:
        left = [index for index, sequence in enumerate(sequences) if sequence.done < len(sequence.token_ids)]
        if not left:
            return [np.concatenate(part) for part in parts]
        made.shuffle(left)
        chosen = left[: made.randint(1, len(left))]
        counts = [min(made.randint(1, most), len(sequences[index].token_ids) - sequences[index].done) for index in chosen]
        outputs = advance(program, [(sequences[index], count) for index, count in zip(chosen, counts, strict=True)], block_size)
        for index, output in zip(chosen, outputs, strict=True):
            parts[index].append(output)


def random_tokens(lengths: list[int], vocabulary: int, seed: int = 0) -> list[Array]:
    made = np.random.default_rng([seed, 9])
    return [made.integers(0, vocabulary, length) for length in lengths]
