"""Which packed layout a checkpoint tensor becomes. The numbers are those of csrc/kernels/layout.hpp and csrc/pack/pack.hpp."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from octavo.quantization.decode import decode
from octavo.quantization.tensor import CheckpointTensor


class Layout(IntEnum):
    """How the products read a weight."""

    INT4 = 0
    INT8 = 1
    BF16 = 2

    @property
    def integer(self) -> bool:
        """Whether it multiplies 8-bit activations, and not bfloat16 ones."""
        return self is not Layout.BF16

    def rounding_of(self, kind: str) -> str:
        """What it rounds of a tensor of that kind, for people."""
        if self is Layout.BF16:
            return "to bfloat16"
        return "scales to float16" if LAYOUTS.get(kind) is Layout.INT4 else "to 8 bits"


class Storage(IntEnum):
    """How the bytes that are packed are stored."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q8_0 = 3
    Q5_0 = 4
    Q4_0 = 5
    Q4_1 = 6
    IQ4_NL = 7
    Q4_K = 8


# The layout that holds each kind without loss, or nearly: F16 and F32 are rounded to bfloat16, Q4_K's scales and minima to float16.
LAYOUTS = {
    "F32": Layout.BF16,
    "F16": Layout.BF16,
    "BF16": Layout.BF16,
    "Q8_0": Layout.INT8,
    "Q5_0": Layout.INT8,
    "Q4_0": Layout.INT4,
    "Q4_1": Layout.INT4,
    "IQ4_NL": Layout.INT8,
    "Q4_K": Layout.INT4,
}


@dataclass(frozen=True, slots=True)
class PackableTensor:
    """A matrix ready to be packed: `data` `[rows, bytes a row]`."""

    storage: Storage
    layout: Layout
    data: npt.NDArray[np.uint8]


def layout_of(kind: str) -> Layout:
    """The layout of a storage kind; kinds without one of their own become 8-bit, a scale for each group of 32."""
    return LAYOUTS.get(kind, Layout.INT8)


def packable(tensor: CheckpointTensor) -> PackableTensor:
    """A two-dimensional tensor in a storage that the native code packs; kinds that it does not know are decoded to float32 first.

    Raises UnsupportedModelError for a kind that nothing can decode.
    """
    layout = layout_of(tensor.kind)
    if tensor.kind in LAYOUTS:
        return PackableTensor(Storage[tensor.kind], layout, tensor.data)
    values = np.ascontiguousarray(decode(tensor), dtype=np.float32)
    return PackableTensor(Storage.F32, layout, values.view(np.uint8).reshape(len(values), -1))
