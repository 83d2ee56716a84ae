"""`octavo bench kernels`: packed products alone, for each layout and instruction set, against the machine's limits."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.backends.cpu.native import load_native
from octavo.backends.cpu.packing import Layout, Storage
from octavo.backends.select import has_native
from octavo.bench.cost import VALUE_BYTES
from octavo.bench.machine import Machine, measure_machine
from octavo.bench.report import Report, Table, number, percent
from octavo.bench.statistics import median
from octavo.protocol.errors import ConfigError
from octavo.utils.machine import usable_cores

# What each layout is packed from; the bytes of a group of 32 values.
_STORED = {Layout.INT4: (Storage.Q4_1, 20), Layout.INT8: (Storage.Q8_0, 34), Layout.BF16: (Storage.BF16, 64)}
_GROUP = 32
_BLOCK_SIZE = 16
# Products of few rows are passes over memory: their weights together must be larger than any cache. Products of many rows take long.
FEW_ROWS = 16
FEW_ROWS_BYTES, MANY_ROWS_OPS = 128 << 20, 2_000_000_000


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """Products of `rows` rows with `outputs × inner` weights. Empty `isas` and `layouts` mean all; `threads` 0 one for each usable core."""

    rows: tuple[int, ...] = (1, 4, 16, 64, 512)
    outputs: int = 1536
    inner: int = 576
    isas: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    threads: int = 0
    iterations: int = 5
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ProductTime:
    """Median seconds of one product."""

    isa: str
    layout: Layout
    rows: int
    seconds: float
    weights_bytes: float
    ops: float

    def share(self, machine: Machine) -> float:
        """How near to the limit of `machine`: reading the weights once, or the arithmetic, whichever takes longer."""
        kind = "int8_ops" if self.layout.integer else "bf16_ops"
        return machine.seconds(read_bytes=self.weights_bytes, **{kind: self.ops}) / self.seconds


def run_kernels(options: KernelOptions) -> Report:
    """Measures. Raises ConfigError for an instruction set or a layout that isn't there, or without the native module."""
    if not has_native():
        raise ConfigError("backend: this installation has no native code, so there are no kernels to measure", param="backend")
    _native = load_native()
    available = list(reversed(_native.available_isas()))
    isas = _chosen("isa", options.isas, available)
    layouts = [Layout[name.upper()] for name in _chosen("layout", options.layouts, [layout.name.lower() for layout in Layout])]
    if options.inner % _GROUP:
        raise ConfigError(f"inner: must be a multiple of {_GROUP}, not {options.inner}", param="inner")
    threads = options.threads or usable_cores()
    machines = {isa: measure_machine(threads, isa) for isa in isas}
    best = machines[isas[0]]
    found: list[ProductTime] = []
    for isa in isas:
        for layout in layouts:
            for rows in options.rows:
                found.append(time_product(isa, layout, rows, options, threads))
    results = [
        {
            "isa": each.isa,
            "layout": each.layout.name.lower(),
            "rows": each.rows,
            "seconds": each.seconds,
            "read_bytes_per_s": each.weights_bytes / each.seconds,
            "ops_per_s": each.ops / each.seconds,
            "share_of_isa_limit": each.share(machines[each.isa]),
            "share_of_limit": each.share(best),
        }
        for each in found
    ]
    settings = {**asdict(options), "threads": threads, "isas": isas, "layouts": [layout.name.lower() for layout in layouts]}
    data = {"products": results, "limits": {isa: machine.describe() for isa, machine in machines.items()}}
    return Report("kernels", best.describe(), settings, data, [_limits(machines), *(_table(isa, results) for isa in isas)])


def _chosen(param: str, wanted: tuple[str, ...], available: list[str]) -> list[str]:
    for name in wanted:
        if name not in available:
            raise ConfigError(f"{param}: must be one of {', '.join(available)} on this machine, not {name!r}", param=param)
    return [name for name in available if not wanted or name in wanted]


class Products:
    """A native program that is nothing but `count` products of the same shape, each with weights of its own."""

    def __init__(self, isa: str, layout: Layout, outputs: int, inner: int, count: int, threads: int, seed: int) -> None:
        _native = load_native()
        source = np.random.default_rng(seed)
        program = _native.Program(outputs, threads, [], isa)
        none = np.empty(0, np.float32)
        weights = [program.add_linear(layout, outputs, inner, none) for _ in range(count)]
        storage, _ = _STORED[layout]
        data = random_weights(source, layout, outputs, inner)
        for index in weights:
            program.fill(index, storage, data, np.empty(0, np.int64))
        embedded = program.add_floats(inner, False)
        program.embed(weights[0], embedded)
        activations = program.add_activations(inner, layout.integer, False)
        program.convert(embedded, activations)
        target = program.add_floats(outputs, False)
        for index in weights:
            program.product(activations, target, [(index, 0)], False)
        # A step ends in logits; those of one row are all that is asked for.
        self._program = program
        self._outputs = outputs
        gathered = program.add_floats(inner, True)
        program.gather(embedded, gathered)
        last = program.add_activations(inner, layout.integer, True)
        program.convert(gathered, last)
        program.product(last, program.add_floats(outputs, True), [(weights[0], 0)], False)
        self._source = source

    def step(self, rows: int) -> tuple[npt.NDArray[Any] | None, ...]:
        """The arrays of a step of one sequence of `rows` tokens, without a window."""
        blocks = -(-rows // _BLOCK_SIZE)
        self._program.allocate_cache(blocks, _BLOCK_SIZE)
        positions = np.arange(rows, dtype=np.int32)
        return (
            self._source.integers(0, self._outputs, rows, dtype=np.int32),
            positions,
            positions.astype(np.int64),
            np.array([0, rows], np.int32),
            np.array([rows], np.int32),
            np.arange(blocks, dtype=np.int32)[None],
            None,
            np.array([rows - 1], np.int32),
        )

    def run(self, step: tuple[npt.NDArray[Any] | None, ...]) -> float:
        """Seconds of one step."""
        start = time.perf_counter()
        self._program.run(*step)
        return time.perf_counter() - start


def time_product(isa: str, layout: Layout, rows: int, options: KernelOptions, threads: int) -> ProductTime:
    """One product of `rows` rows: of a step of many, the part of one."""
    weights = options.outputs * options.inner
    ops = 2.0 * weights * rows
    count = products_in_step(rows, ops, weights * VALUE_BYTES[layout])
    products = Products(isa, layout, options.outputs, options.inner, count, threads, options.seed)
    step = products.step(rows)
    products.run(step)
    seconds = median([products.run(step) for _ in range(options.iterations)]) / count
    return ProductTime(isa, layout, rows, seconds, weights * VALUE_BYTES[layout], ops)


def products_in_step(rows: int, ops: float, weights_bytes: float) -> int:
    """How many products, each with weights of its own, are timed as one."""
    if rows <= FEW_ROWS:
        return max(1, round(FEW_ROWS_BYTES / weights_bytes))
    return max(1, round(MANY_ROWS_OPS / ops))


def random_weights(source: np.random.Generator, layout: Layout, outputs: int, inner: int) -> npt.NDArray[np.uint8]:
    """Rows as a checkpoint stores them, `[outputs, bytes a row]`, with small scales."""
    groups = inner // _GROUP
    if layout is Layout.BF16:
        values = source.standard_normal((outputs, inner), np.float32) * np.float32(0.02)
        return np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8).reshape(outputs, -1)
    _, size = _STORED[layout]
    blocks = source.integers(0, 256, (outputs, groups, size), dtype=np.uint8)
    scales = np.full((outputs, groups, (size - (16 if layout is Layout.INT4 else 32)) // 2), 0.01, np.float16)
    blocks[..., : scales.shape[-1] * 2] = scales.view(np.uint8)
    return blocks.reshape(outputs, -1)


def _limits(machines: dict[str, Machine]) -> Table:
    rows = [
        [isa, str(each.threads), number(each.read_bytes_s / 1e9), number(each.int8_ops_s / 1e9, 0), number(each.bf16_ops_s / 1e9, 0)]
        for isa, each in machines.items()
    ]
    first = next(iter(machines.values()))
    heads = ["instructions", "threads", "reads GB/s", "int8 GOP/s", "bf16 GFLOP/s"]
    return Table(f"Limits of {first.processor}, {first.cores} cores", heads, rows)


def _table(isa: str, results: list[dict[str, Any]]) -> Table:
    rows = [
        [
            each["layout"],
            str(each["rows"]),
            number(each["seconds"] * 1e6),
            number(each["read_bytes_per_s"] / 1e9),
            number(each["ops_per_s"] / 1e9),
            percent(each["share_of_isa_limit"]),
            percent(each["share_of_limit"]),
        ]
        for each in results
        if each["isa"] == isa
    ]
    heads = ["layout", "rows", "µs", "GB/s", "GOP/s", f"of {isa}'s limit", "of the machine's"]
    return Table(f"Products with {isa}", heads, rows, "limit: the weights read once, or the multiplications, whichever takes longer")
