"""What tells one model's keys and values from another's."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from octavo.models.model import Model

# Of a large tensor so many pieces of so many bytes are read, evenly spread. Training changes nearly every number of a tensor.
PIECES, PIECE_BYTES = 16, 256


def model_digest(model: Model, arithmetic: str) -> str:
    """32 hexadecimal digits of the graph, of each weight's name, format, shape and a sample of its bytes, and of `arithmetic`, which names
    whatever else the last bits of a result depend on. The same in every process; takes milliseconds, not a pass over the weights."""
    state = blake2b(digest_size=16)
    for text in (arithmetic, repr(model.graph.operations)):
        state.update(f"{len(text)}:{text}".encode())
    for name in model.graph.weights:
        tensor = model.store.tensor(model.origins[name].name)
        header = f"{name} {tensor.kind} {tensor.shape} "
        state.update(header.encode())
        state.update(_sample(tensor.data.reshape(-1)).tobytes())
    return state.hexdigest()


def _sample(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    if len(data) <= PIECES * PIECE_BYTES:
        return data
    starts = np.linspace(0, len(data) - PIECE_BYTES, PIECES).astype(np.int64)
    pieces: npt.NDArray[np.uint8] = data[starts[:, None] + np.arange(PIECE_BYTES)]
    return pieces
