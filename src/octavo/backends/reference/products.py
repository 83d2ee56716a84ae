"""Matrix products whose rows do not depend on the batch.

A BLAS promises nothing about which kernel computes which row: the bits of a row may change with the number of rows beside it, with its
place among them, and with the number of threads. So rows are cut into tiles of one fixed height (padded with zeros), outputs into fixed
ranges, every tile and range is one product of one shape on one BLAS thread, and threads of our own share out those products. What is
left is a row's place in its tile; `invariant_tile` measures on this machine which height makes that harmless. A height of one row always
does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.utils.machine import usable_cores

Floats = npt.NDArray[np.float32]

TILE_HEIGHTS = (16, 8, 4)
OUTPUTS_A_PRODUCT = 512
TILES_A_TASK = 8


@dataclass(frozen=True, slots=True)
class ProductShape:
    """`[tile, inner] · [inner, outputs]`, where the right side is a transposed view of `[outputs, inner]` or lies in memory as it is.
    The BLAS has kernels of their own for each layout."""

    inner: int
    outputs: int
    transposed: bool


class Threads:
    """A fixed team. `run` calls `function` for each item; the order of work never shows in the numbers."""

    def __init__(self, count: int) -> None:
        self.count = count or usable_cores()
        # Numbers that overflow are the business of whoever reads the result, not a warning; numpy keeps that setting for each thread.
        quiet = partial(np.seterr, all="ignore")
        self._pool = ThreadPoolExecutor(self.count, "octavo-reference", initializer=quiet) if self.count > 1 else None

    def run(self, function: Callable[[Any], None], items: Iterable[Any]) -> None:
        """Calls `function` on every item and returns when all are done; the first error is raised."""
        work = list(items)
        if self._pool is None or len(work) < 2:
            for item in work:
                function(item)
            return
        for _ in self._pool.map(function, work):
            pass

    def close(self) -> None:
        """Ends the team."""
        if self._pool is not None:
            self._pool.shutdown()


def output_ranges(out_features: int) -> list[tuple[int, int]]:
    """The fixed ranges of outputs, each one product."""
    return [(start, min(start + OUTPUTS_A_PRODUCT, out_features)) for start in range(0, out_features, OUTPUTS_A_PRODUCT)]


def rows_keep_their_bits(tile: int, shape: ProductShape) -> bool:
    """Whether the product gives a row the same bits in every place of the tile and beside any other rows."""
    random = np.random.default_rng(shape.inner * 1_000_003 + shape.outputs)
    stored = (shape.outputs, shape.inner) if shape.transposed else (shape.inner, shape.outputs)
    right = random.standard_normal(stored, dtype=np.float32)
    right = right.T if shape.transposed else right
    x = random.standard_normal((tile, shape.inner), dtype=np.float32)
    expected = np.matmul(x, right)
    for shift in range(1, tile):
        if np.matmul(np.roll(x, shift, axis=0), right).tobytes() != np.roll(expected, shift, axis=0).tobytes():
            return False
    alone = np.zeros_like(x)
    alone[0] = x[0]
    return bool(np.matmul(alone, right)[0].tobytes() == expected[0].tobytes())


def invariant_tile(shapes: Iterable[ProductShape]) -> int:
    """The tallest tile that keeps the bits of rows for all these products on this machine's BLAS."""
    wanted = set(shapes)
    for tile in TILE_HEIGHTS:
        if all(rows_keep_their_bits(tile, shape) for shape in wanted):
            return tile
    return 1


def product_shapes(out_features: int, in_features: int) -> set[ProductShape]:
    """What `linear` calls the BLAS with."""
    return {ProductShape(in_features, stop - start, transposed=True) for start, stop in output_ranges(out_features)}


def pad_rows(x: Floats, tile: int) -> Floats:
    """`x` with rows of zeros up to a multiple of `tile`, contiguous."""
    rows = -(-len(x) // tile) * tile
    if rows == len(x):
        return np.ascontiguousarray(x)
    padded = np.zeros((rows, x.shape[1]), np.float32)
    padded[: len(x)] = x
    return padded


def linear(x: Floats, weight: Floats, bias: Floats | None, tile: int, threads: Threads) -> Floats:
    """`x · weightᵀ + bias`: `[rows, in]`, `[out, in]`, `[out]` → `[rows, out]`."""
    padded = pad_rows(x, tile)
    y = np.empty((len(padded), len(weight)), np.float32)
    step = tile * TILES_A_TASK

    def product(task: tuple[int, int, int]) -> None:
        first, start, stop = task
        columns = weight[start:stop].T
        for row in range(first, min(first + step, len(padded)), tile):
            np.matmul(padded[row : row + tile], columns, out=y[row : row + tile, start:stop])

    ranges = output_ranges(len(weight))
    threads.run(product, ((first, start, stop) for first in range(0, len(padded), step) for start, stop in ranges))
    result = y[: len(x)]
    if bias is not None:
        result += bias
    return result
