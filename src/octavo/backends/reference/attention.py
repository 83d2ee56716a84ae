"""Attention that reads keys and values from the paged cache only.

A query's bits must not depend on the chunk that it came in, on the sequences beside it, or on threads. So queries are cut into tiles of a
fixed number of rows, keys into partitions of a fixed number of tokens that start at position 0, each product has one shape, and partial
results are merged in the order of the partitions with the online softmax (Milakov and Gimelshein, 2018). A partition that a row may not
see adds exactly nothing: its weights are zero and its correction is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.backends.base import StepInputs
from octavo.backends.reference import operations
from octavo.backends.reference.kv_cache import Side
from octavo.backends.reference.products import Threads
from octavo.graph.graph import CacheLayer

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

KEYS_A_PARTITION = 128


@dataclass(frozen=True, slots=True)
class QueryTiles:
    """Where each tile's rows come from. A row is one query head of one token; the heads that share a KV head share tiles.

    `rows` `[tiles, tile]` index the flat `[tokens · group]` queries of a KV head; padding repeats row 0 and is never stored back.
    `positions` `[tiles, tile]`, −1 for padding; `sequences` `[tiles]`; `partitions` `[tiles]` is how many partitions the tile must read.
    """

    rows: Integers
    positions: Integers
    sequences: Integers
    partitions: Integers


def partition_size(block_size: int) -> int:
    """Tokens in a partition: whole blocks, at least KEYS_A_PARTITION."""
    return max(KEYS_A_PARTITION, block_size)


def cut_queries(step: StepInputs, group: int, tile: int, block_size: int) -> QueryTiles:
    """Cuts each sequence's `tokens · group` query rows into tiles."""
    rows, positions, sequences = [], [], []
    token_positions = np.repeat(step.positions.astype(np.int64), group)
    starts = step.query_starts.astype(np.int64) * group
    for sequence in range(len(starts) - 1):
        first, last = starts[sequence], starts[sequence + 1]
        tiles = -(-(last - first) // tile)
        row = first + np.arange(tiles * tile)
        inside = row < last
        rows.append(np.where(inside, row, 0).reshape(tiles, tile))
        positions.append(np.where(inside, token_positions[np.minimum(row, last - 1)], -1).reshape(tiles, tile))
        sequences.append(np.full(tiles, sequence))
    position = np.concatenate(positions)
    return QueryTiles(np.concatenate(rows), position, np.concatenate(sequences), position.max(axis=1) // partition_size(block_size) + 1)


def gather(cache: Side, blocks: npt.NDArray[np.int32], used: npt.NDArray[np.bool_]) -> Floats:
    """Keys or values of a partition: block ids `[tiles, n]` → `[tiles, kv_heads, keys, head_dim]`; keys that the sequence does not hold are
    zero, whatever lies in memory there."""
    taken = cache.take(np.maximum(blocks, 0))
    tiles, _, _, kv_heads, head_dim = taken.shape
    flat = taken.reshape(tiles, -1, kv_heads, head_dim)
    flat[~used] = 0
    return np.ascontiguousarray(flat.transpose(0, 2, 1, 3))


def weigh(weights: Floats, values: Floats, seen: npt.NDArray[np.bool_]) -> Floats:
    """weights `[tiles, kv_heads, tile, keys]` times values `[tiles, kv_heads, keys, head_dim]`. A row depends on the values that it sees,
    `seen` `[tiles, tile, keys]`, and on no others: a weight of 0 does not keep a number that is none out of a sum."""
    result: Floats = weights @ values
    for tile, head, row in np.argwhere(~np.isfinite(result).all(axis=-1)):
        # The product keeps its shape, and with it the bits.
        own = np.where(seen[tile, row, :, None], values[tile, head], np.float32(0))
        result[tile, head, row] = (weights[tile, head] @ own)[row]
    return result


def attend_tiles(
    query: Floats,
    keys: Side,
    values: Side,
    step: StepInputs,
    tiles: QueryTiles,
    chosen: Integers,
    layer: CacheLayer,
    scale: float,
    softcap: float | None,
) -> Floats:
    """Attention of the chosen tiles: query `[kv_heads, tokens · group, head_dim]` → `[chosen, kv_heads, tile, head_dim]`."""
    block_size = keys.block_size
    size = partition_size(block_size)
    blocks_a_partition = size // block_size
    rows, positions = tiles.rows[chosen], tiles.positions[chosen]
    sequences, partitions = tiles.sequences[chosen], tiles.partitions[chosen]
    q = np.ascontiguousarray(query[:, rows].transpose(1, 0, 2, 3))
    maximum = np.full(q.shape[:3], -np.inf, np.float32)
    total = np.zeros(q.shape[:3], np.float32)
    result = np.zeros(q.shape, np.float32)
    width = int(partitions.max()) * blocks_a_partition
    tables = np.zeros((len(step.block_tables), width), np.int32)
    shared = min(width, step.block_tables.shape[1])
    tables[:, :shared] = step.block_tables[:, :shared]
    for partition in range(int(partitions.max())):
        active = np.flatnonzero(partitions > partition)
        position = np.arange(partition * size, (partition + 1) * size)
        used = position < step.sequence_lengths[sequences[active], None]
        blocks = tables[sequences[active], partition * blocks_a_partition : (partition + 1) * blocks_a_partition]
        # What a window has passed may be given back, and hold anything.
        used &= np.repeat(blocks >= 0, block_size, axis=1)
        seen = (position <= positions[active][:, :, None]) & used[:, None, :]
        if layer.window is not None:
            seen &= position > positions[active][:, :, None] - layer.window
        scores = q[active] @ gather(keys, blocks, used).swapaxes(2, 3)
        scores = scores * np.float32(scale)
        if softcap is not None:
            scores = operations.softcap(scores, softcap)
        scores = np.where(seen[:, None], scores, np.float32(-np.inf))
        highest = np.maximum(maximum[active], scores.max(axis=-1))
        anchor = np.where(np.isneginf(highest), np.float32(0), highest)
        correction = np.exp(maximum[active] - anchor)
        weights = np.exp(scores - anchor[..., None])
        total[active] = total[active] * correction + weights.sum(axis=-1)
        result[active] = result[active] * correction[..., None] + weigh(weights, gather(values, blocks, used), seen)
        maximum[active] = highest
    averaged: Floats = np.divide(result, np.where(total == 0, np.float32(1), total)[..., None])
    return averaged


def paged_attention(
    query: Floats,
    keys: Side,
    values: Side,
    step: StepInputs,
    tiles: QueryTiles,
    layer: CacheLayer,
    scale: float,
    threads: Threads,
    softcap: float | None = None,
) -> Floats:
    """query `[tokens, heads · head_dim]` → `[tokens, heads · head_dim]`."""
    tokens = len(query)
    group = query.shape[1] // (layer.num_kv_heads * layer.head_dim)
    shape = (tokens, layer.num_kv_heads, group, layer.head_dim)
    flat = np.ascontiguousarray(query.reshape(shape).transpose(1, 0, 2, 3)).reshape(layer.num_kv_heads, tokens * group, layer.head_dim)
    output = np.empty_like(flat)

    def work(chosen: Integers) -> None:
        attended = attend_tiles(flat, keys, values, step, tiles, chosen, layer, scale, softcap).transpose(1, 0, 2, 3)
        inside = tiles.positions[chosen] >= 0
        output[:, tiles.rows[chosen][inside]] = attended[:, inside]

    count = len(tiles.sequences)
    threads.run(work, (part for part in np.array_split(np.arange(count), min(threads.count, count)) if len(part)))
    return output.reshape(layer.num_kv_heads, tokens, group, layer.head_dim).transpose(1, 0, 2, 3).reshape(tokens, -1)
