"""A plan's share of tokens as the arrays that a program takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from octavo.backends.base import StepInputs
from octavo.worker.request import WorkerRequest


def build_inputs(scheduled: Sequence[tuple[WorkerRequest, int]], block_size: int) -> StepInputs:
    """Lays out each request's next `count` tokens, in order; a request whose last known token is among them gets a row of logits."""
    tokens, positions, slots, tables, lengths, logit_rows = [], [], [], [], [], []
    starts = [0, *accumulate(count for _, count in scheduled)]
    for (request, count), end in zip(scheduled, starts[1:], strict=True):
        first, last = request.num_computed, request.num_computed + count
        position = np.arange(first, last, dtype=np.int32)
        table = request.block_ids.view
        tokens.append(request.token_ids.view[first:last])
        positions.append(position)
        slots.append(table[position // block_size].astype(np.int64) * block_size + position % block_size)
        tables.append(table)
        lengths.append(last)
        if last == len(request.token_ids):
            logit_rows.append(end - 1)
    block_tables = np.full((len(tables), max(map(len, tables))), -1, np.int32)
    for row, table in zip(block_tables, tables, strict=True):
        row[: len(table)] = table
    return StepInputs(
        token_ids=np.concatenate(tokens),
        positions=np.concatenate(positions),
        slot_mapping=np.concatenate(slots),
        query_starts=np.array(starts, np.int32),
        sequence_lengths=np.array(lengths, np.int32),
        block_tables=block_tables,
        logit_rows=np.array(logit_rows, np.int32),
    )
