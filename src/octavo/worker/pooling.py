"""Hidden states of a prompt's tokens in, one vector out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.worker.request import WorkerRequest

NOT_FINITE = "the model's hidden states are not finite numbers"


def pool_states(scheduled: Sequence[tuple[WorkerRequest, int, int]], states: npt.NDArray[np.float32]) -> dict[str, bytes | None]:
    """Gives each pooling request its rows of a step's hidden states `[pooled, hidden size]`, which lie in the order of the step. What ends
    with the step is in the result: float32 values, or None where they are not finite."""
    ended: dict[str, bytes | None] = {}
    row = 0
    for request, count, _ in scheduled:
        pool = request.pool
        if pool is None:
            continue
        last = request.num_computed + count
        wanted = len(pool.wanted(request.num_computed, last))
        pool.add(states[row : row + wanted])
        row += wanted
        if last == pool.num_tokens:
            vector = pool.result()
            ended[request.request_id] = vector.tobytes() if np.isfinite(vector).all() else None
    return ended
