"""A plan's share of tokens as the arrays that a program takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.backends.base import StepInputs
from octavo.worker.request import WorkerRequest

# In place of a slot: keys and values are in the cache already.
NOT_WRITTEN = -1


def build_inputs(scheduled: Sequence[tuple[WorkerRequest, int, int]], block_size: int, first_window_block: int | None = None) -> StepInputs:
    """Lays out each request's next `count` tokens, in order, the first `cached` of which are not written; a request whose last known token
    is among them gets a row of logits, unless its hidden states are wanted, and so do tokens before one of a prompt whose logprobs are
    wanted. Blocks of layers that see a window begin at `first_window_block`, if these have blocks of their own."""
    # Lists, made one array at the end: a step of one token pays for every call of numpy, whose code has left the caches meanwhile.
    token_ids: list[int] = []
    hidden_rows: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts, lengths = [0], []
    tables: list[npt.NDArray[np.int32]] = []
    logit_rows: list[int] = []
    for request, count, cached in scheduled:
        first, last = request.num_computed, request.num_computed + count
        told = request.rows_told(count)
        logit_rows += range(len(token_ids), len(token_ids) + told)
        token_ids += request.token_ids.values(first, last)
        positions += range(first, last)
        if cached:
            slots += [NOT_WRITTEN] * cached
            first += cached
        for block_id in request.block_ids.values(first // block_size, (last - 1) // block_size + 1):
            offset = first % block_size
            size = min(block_size - offset, last - first)
            slot = block_id * block_size + offset
            slots += range(slot, slot + size)
            first += size
        if request.pool is not None:
            row = len(token_ids) - request.num_computed - count
            hidden_rows += [row + position for position in request.pool.wanted(request.num_computed, request.num_computed + count)]
        starts.append(len(token_ids))
        lengths.append(last)
        tables.append(request.block_ids.view)
        if last == len(request.token_ids) and request.pool is None:
            logit_rows.append(len(token_ids) - 1)
    numbers = np.array(token_ids + positions + starts + lengths + logit_rows + hidden_rows, np.int32)
    tokens, sequences = len(token_ids), len(lengths)
    after = 2 * tokens + 2 * sequences + 1
    window_tables = None
    if first_window_block is not None:
        # What is below 0, as none is, stays so.
        window_tables = _padded([request.window_block_ids.view for request, _, _ in scheduled]) - np.int32(first_window_block)
    return StepInputs(
        token_ids=numbers[:tokens],
        positions=numbers[tokens : 2 * tokens],
        slot_mapping=np.array(slots, np.int64),
        query_starts=numbers[2 * tokens : after - sequences],
        sequence_lengths=numbers[after - sequences : after],
        block_tables=_padded(tables),
        logit_rows=numbers[after : after + len(logit_rows)],
        hidden_rows=numbers[after + len(logit_rows) :],
        window_tables=window_tables,
    )


def _padded(tables: list[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """The tables as rows, with −1 beyond their ends."""
    if len(tables) == 1:
        return tables[0].reshape(1, -1)
    padded = np.full((len(tables), max(map(len, tables))), -1, np.int32)
    for row, table in enumerate(tables):
        padded[row, : len(table)] = table
    return padded
