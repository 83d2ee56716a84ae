"""A tensor as its checkpoint holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """One tensor, undecoded.

    `kind` is the storage format: "F32", "F16", "BF16", or a GGUF block type such as "Q8_0" or "Q4_1".
    `shape` is the logical shape, outermost first (a linear's is `[out_features, in_features]`).
    `data` is a view of the file, `[rows, bytes a row]` of uint8 where `rows` is the product of all dimensions but the last; block types
    never straddle rows.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes in the checkpoint."""
        return int(self.data.nbytes)

    def take_rows(self, order: npt.NDArray[np.intp]) -> CheckpointTensor:
        """The same tensor with its rows in another order (a copy), whatever its storage format."""
        return replace(self, data=self.data[order])


Decoder = Callable[[npt.NDArray[np.uint8], int], npt.NDArray[np.float32]]
