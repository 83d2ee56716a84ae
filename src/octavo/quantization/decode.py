"""Checkpoint bytes to float32.

The kinds that most checkpoints hold are decoded here, each in a few array operations; the other GGUF block types by the numpy reference
of the `gguf` package, which is imported when first needed.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from octavo.protocol.errors import ModelLoadError, UnsupportedModelError
from octavo.quantization.kinds import KINDS
from octavo.quantization.tensor import CheckpointTensor, Decoder

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def decode(tensor: CheckpointTensor) -> Floats:
    """The values of `tensor` as float32, of shape `tensor.shape`.

    F32 that is stored aligned comes back as a read-only view of the file; everything else is a new array. F64 is rounded to float32.
    A kind without a decoder raises UnsupportedModelError, and data whose size does not fit the shape raises ModelLoadError; both name
    the tensor.
    """
    rows, width = _matrix(tensor.shape)
    kind = KINDS.get(tensor.kind)
    decoder = _DECODERS.get(tensor.kind) or _reference_decoder(tensor.kind)
    if kind is None or decoder is None:
        raise UnsupportedModelError(f"tensor {tensor.name} is stored as {tensor.kind}, which this version can't decode")
    expected = (rows, kind.row_bytes(width))
    if tensor.data.shape != expected:
        raise ModelLoadError(
            f"tensor {tensor.name} ({tensor.kind}, shape {list(tensor.shape)}) holds {list(tensor.data.shape)} bytes, not {list(expected)}"
        )
    # Scales of a damaged file may be infinite; what comes of them is not a reason to warn.
    with np.errstate(all="ignore"):
        return decoder(np.ascontiguousarray(tensor.data), width).reshape(tensor.shape)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def _f32(data: Bytes, width: int) -> Floats:
    values = data.reshape(-1).view("<f4")
    return values if values.flags.aligned else values.copy()


def _f16(data: Bytes, width: int) -> Floats:
    return data.reshape(-1).view("<f2").astype(np.float32)


def _f64(data: Bytes, width: int) -> Floats:
    return data.reshape(-1).view("<f8").astype(np.float32)


def _bf16(data: Bytes, width: int) -> Floats:
    """The upper half of a float32."""
    bits = data.reshape(-1).view("<u2").astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _scales(blocks: Bytes, count: int) -> Floats:
    """The float16 numbers that a block begins with: `[blocks, count]`."""
    return np.ascontiguousarray(blocks[:, : 2 * count]).view("<f2").astype(np.float32)


def _q8_0(data: Bytes, width: int) -> Floats:
    """Blocks of a float16 scale `d` and 32 int8: `d · q`."""
    blocks = data.reshape(-1, 34)
    return blocks[:, 2:].view(np.int8) * _scales(blocks, 1)


def _q4_0(data: Bytes, width: int) -> Floats:
    """Blocks of a float16 scale `d` and 32 nibbles: `d · (q - 8)`; low nibbles are the first 16 values."""
    blocks = data.reshape(-1, 18)
    scale = _scales(blocks, 1)
    values = np.empty((len(blocks), 2, 16), np.float32)
    for half, nibbles in enumerate((blocks[:, 2:] & 15, blocks[:, 2:] >> 4)):
        np.multiply(nibbles.view(np.int8) - np.int8(8), scale, out=values[:, half])
    return values


def _q4_1(data: Bytes, width: int) -> Floats:
    """Blocks of a float16 scale `d`, a float16 minimum `m` and 32 nibbles: `d · q + m`; low nibbles are the first 16 values."""
    blocks = data.reshape(-1, 20)
    scales = _scales(blocks, 2)
    values = np.empty((len(blocks), 2, 16), np.float32)
    np.multiply(blocks[:, 4:] & 15, scales[:, :1], out=values[:, 0])
    np.multiply(blocks[:, 4:] >> 4, scales[:, :1], out=values[:, 1])
    values += scales[:, 1:, None]
    return values


_DECODERS: dict[str, Decoder] = {"F32": _f32, "F16": _f16, "F64": _f64, "BF16": _bf16, "Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1}


@cache
def _reference_decoder(name: str) -> Decoder | None:
    """gguf's own dequantization of a block type, or None where it has none."""
    if name not in KINDS or KINDS[name].values_per_block == 1:
        return None
    from gguf import GGMLQuantizationType, quants

    try:
        qtype = GGMLQuantizationType[name]
        # An empty run finds out whether this release of gguf decodes the type at all.
        quants.dequantize(np.zeros((1, KINDS[name].bytes_per_block), np.uint8), qtype)
    except (KeyError, NotImplementedError):
        return None

    def reference(data: Bytes, width: int) -> Floats:
        values: Floats = quants.dequantize(data, qtype)
        return values

    return reference
