"""Picking from one row of numbers: the highest, and a random one by weight.

Weights are whole numbers held in floats. Sums of whole numbers below 2**53 are exact in float64, whatever their order, so a cut at top_p
or a draw can be found in any convenient way (blocks, partial sorts) and still equals its plain definition to the last bit.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

BLOCK = 256


def weight_scale(size: int) -> np.float32:
    """The weight of the likeliest token: the largest power of two for which the sum of `size` such weights stays exact in float64.

    For 49,152 tokens it is 2**36: a token 7e-12 times as likely as the likeliest still has a chance.
    """
    return np.float32(2.0 ** (52 - (size - 1).bit_length()))


def highest(values: Floats, k: int) -> Ids:
    """Indices of the `k` highest of `values`, highest first, the lower index first where they are equal. No NaN."""
    size = len(values)
    blocks = size // BLOCK
    if k >= size:
        candidates = np.arange(size, dtype=np.int64)
    else:
        if k <= blocks // 2:
            # The k-th highest of the blocks' maxima can't be above the k-th highest value.
            maxima = values[: blocks * BLOCK].reshape(blocks, BLOCK).max(axis=1)
            floor = np.partition(maxima, blocks - k)[blocks - k]
        else:
            floor = np.partition(values, size - k)[size - k]
        candidates = np.flatnonzero(values >= floor)
    order = np.argsort(-values[candidates], kind="stable")
    return candidates[order[:k]]


def draw(weights: Floats, top_p: float, bits: int) -> int:
    """Index of a random weight, chosen in proportion to it.

    `weights` are whole numbers, at least one of them positive, whose sum is below 2**53. With `top_p` < 1 only the highest take part: the
    fewest that together hold at least `top_p` of the sum, the lower index first where they are equal (Holtzman et al. 2020,
    arXiv:1904.09751). `bits` are 64 random bits: with `total` the sum of those that take part, the result is the first index at which
    the running sum, by index, exceeds `bits * total >> 64`.
    """
    mass = weights.astype(np.float64)
    total = int(mass.sum())
    if top_p < 1.0:
        kept = _nucleus(weights, total, top_p)
        mass = mass[kept]
        total = int(mass.sum())
        return int(kept[_first_above(mass, bits * total >> 64)])
    return _first_above(mass, bits * total >> 64)


def _first_above(mass: npt.NDArray[np.float64], target: int) -> int:
    """The first index at which the running sum of `mass` exceeds `target`, which is below the whole sum."""
    # Two short running sums, over blocks and within one, in place of a long one.
    ends = np.cumsum(np.add.reduceat(mass, np.arange(0, len(mass), BLOCK)))
    block = int(np.searchsorted(ends, target, side="right"))
    if block:
        target -= int(ends[block - 1])
    start = block * BLOCK
    running = np.cumsum(mass[start : start + BLOCK])
    return start + int(np.searchsorted(running, target, side="right"))


def _nucleus(weights: Floats, total: int, top_p: float) -> Ids:
    """Indices, rising, of the fewest highest weights whose sum reaches `top_p * total`."""
    wanted = math.ceil(top_p * total)
    # Weights up to `tail` sum to at most what may be left out, so the cut is among those above it. The comparison is with `>=`
    # because `tail` is rounded to float32, perhaps up to the next weight.
    tail = max((total - wanted) // len(weights), 1)
    falling = np.sort(np.compress(weights >= np.float32(tail), weights))[::-1]
    last = _first_above(falling.astype(np.float64), wanted - 1)
    lowest = falling[last]
    kept = np.flatnonzero(weights >= lowest)
    spare = len(kept) - (last + 1)
    if spare:
        equal = np.flatnonzero(weights[kept] == lowest)
        kept = np.delete(kept, equal[len(equal) - spare :])
    return kept
