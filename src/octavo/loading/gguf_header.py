"""The header of a GGUF file: metadata and where each tensor lies.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The `gguf` package's reader makes
several objects for each token of the vocabulary and takes seconds where this takes a tenth of one; this one also trusts nothing: every
count, length and offset is checked against the file's size before it is used.
"""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.loading.wording import one_line
from octavo.protocol.errors import ModelLoadError, UnsupportedModelError
from octavo.quantization.kinds import KINDS

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
# The smallest that one entry can be: an empty name and its length, a type and one byte; or a name, a count, one dimension, type and offset.
_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

_SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_LENGTH = struct.Struct("<Q")

# ggml's type numbers (ggml.h); gaps are types that it has removed.
TENSOR_KINDS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies: `size` bytes from byte `start` of the file. `shape` is outermost first."""

    name: str
    kind: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """All that a GGUF file says before its tensors' data."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorPlace]


def read_header(path: Path, data: npt.NDArray[np.uint8]) -> GGUFHeader:
    """Parses the header of the mapped file `data`, `[size]` of uint8.

    Raises ModelLoadError naming `path` (and key or tensor) for anything that breaks the format, and UnsupportedModelError for versions,
    byte orders and tensor types that are not read.
    """
    cursor = _Cursor(path, data)
    tensor_count, pair_count = _read_preamble(cursor)
    metadata = _read_metadata(cursor, pair_count)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or isinstance(alignment, bool) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.fault(f"general.alignment must be a power of two, not {alignment!r}")
    entries = [_read_tensor_entry(cursor) for _ in range(tensor_count)]
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorPlace] = {}
    for name, type_number, shape, offset in entries:
        if name in tensors:
            raise cursor.fault(f"tensor {name} appears twice")
        if offset % alignment:
            raise cursor.fault(f"tensor {name} begins at byte {offset} of the data, which is not aligned to {alignment}")
        tensors[name] = _place(cursor, name, type_number, shape, start + offset)
    _check_overlap(cursor, tensors)
    return GGUFHeader(metadata, tensors)


class _Cursor:
    """A position in the file, and reads that never pass its end. `reading` says what is being read, for errors."""

    def __init__(self, path: Path, data: npt.NDArray[np.uint8]) -> None:
        self.path = path
        self.buffer = data.data
        self.size = len(data)
        self.position = 0
        self.reading = "the header"

    def fault(self, problem: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path} is not a sound GGUF file: {one_line(problem)}")

    def truncated(self) -> ModelLoadError:
        return self.fault(f"it ends inside {self.reading}")

    def take(self, size: int) -> memoryview:
        start, end = self.position, self.position + size
        if end > self.size:
            raise self.truncated()
        self.position = end
        return self.buffer[start:end]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        """`count` strings. One loop with local names, since a vocabulary has a hundred thousand of them."""
        if count > (self.size - self.position) // _LENGTH.size:
            raise self.truncated()
        buffer, size, position, unpack = self.buffer, self.size, self.position, _LENGTH.unpack_from
        values: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(buffer, position)[0]
                if position > size:
                    raise self.truncated()
                values.append(str(buffer[start:position], "utf-8"))
        except struct.error:
            raise self.truncated() from None
        except UnicodeDecodeError:
            raise self.fault(f"{self.reading} is not valid UTF-8") from None
        self.position = position
        return values


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    """Checks magic and version; returns how many tensors and how many metadata pairs follow."""
    if bytes(cursor.buffer[:4]) != MAGIC:
        raise ModelLoadError(f"{cursor.path} is not a GGUF file: it begins with {bytes(cursor.buffer[:4])!r}, not {MAGIC!r}")
    cursor.position = 4
    version = cursor.number("<I")
    if version in (1 << 24, 2 << 24, 3 << 24):
        raise UnsupportedModelError(f"{cursor.path} is a big-endian GGUF file; only little-endian ones are read")
    if version not in (2, 3):
        raise UnsupportedModelError(f"{cursor.path} is of GGUF version {version}; versions 2 and 3 are read")
    tensor_count, pair_count = cursor.number("<Q"), cursor.number("<Q")
    if tensor_count * _MIN_TENSOR_BYTES + pair_count * _MIN_PAIR_BYTES > cursor.size - cursor.position:
        raise cursor.fault(f"it is too small for the {tensor_count} tensors and {pair_count} metadata entries that it announces")
    return tensor_count, pair_count


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        cursor.reading = f"the name of metadata entry {index}"
        key = cursor.string()
        if key in metadata:
            raise cursor.fault(f"metadata {key} appears twice")
        cursor.reading = f"metadata {key}"
        metadata[key] = _read_value(cursor, cursor.number("<I"))
    return metadata


def _read_value(cursor: _Cursor, type_number: int) -> Any:
    if type_number in _FORMATS:
        value = cursor.number(_FORMATS[type_number])
        return bool(value) if type_number == _BOOL else value
    if type_number == _STRING:
        return cursor.string()
    if type_number != _ARRAY:
        raise cursor.fault(f"{cursor.reading} has unknown type {type_number}")
    item_type, count = cursor.number("<I"), cursor.number("<Q")
    if item_type == _STRING:
        return cursor.strings(count)
    if item_type == _ARRAY:
        raise cursor.fault(f"{cursor.reading} is an array of arrays, which no model has")
    if item_type not in _SCALARS:
        raise cursor.fault(f"{cursor.reading} is an array of unknown type {item_type}")
    dtype = np.dtype(_SCALARS[item_type])
    return np.frombuffer(cursor.take(count * dtype.itemsize), dtype).tolist()


def _read_tensor_entry(cursor: _Cursor) -> tuple[str, int, tuple[int, ...], int]:
    cursor.reading = "the list of tensors"
    name = cursor.string()
    # Names go into messages and logs.
    if not name or not name.isprintable():
        raise cursor.fault(f"a tensor has the name {name!r}")
    cursor.reading = f"the entry of tensor {name}"
    rank = cursor.number("<I")
    if not 1 <= rank <= MAX_DIMENSIONS:
        raise cursor.fault(f"tensor {name} has {rank} dimensions, not 1 to {MAX_DIMENSIONS}")
    shape = struct.unpack(f"<{rank}Q", cursor.take(8 * rank))[::-1]
    if not all(shape):
        raise cursor.fault(f"tensor {name} has a dimension of zero: {list(shape)}")
    return name, cursor.number("<I"), shape, cursor.number("<Q")


def _place(cursor: _Cursor, name: str, type_number: int, shape: tuple[int, ...], start: int) -> TensorPlace:
    if type_number not in TENSOR_KINDS:
        raise UnsupportedModelError(f"{cursor.path}: tensor {name} is of ggml type {type_number}, which this version doesn't know")
    kind = KINDS[TENSOR_KINDS[type_number]]
    row = kind.row_bytes(shape[-1])
    if row is None:
        raise cursor.fault(f"tensor {name} has rows of {shape[-1]} values, which {kind.name} can't hold")
    size = math.prod(shape[:-1]) * row
    if start + size > cursor.size:
        raise cursor.fault(f"tensor {name} ends at byte {start + size}, beyond the file's {cursor.size}; the download may be incomplete")
    return TensorPlace(name, kind.name, shape, start, size)


def _check_overlap(cursor: _Cursor, tensors: dict[str, TensorPlace]) -> None:
    """Tensors that share bytes could make a small file decode to any size."""
    ordered = sorted(tensors.values(), key=lambda place: place.start)
    for before, after in itertools.pairwise(ordered):
        if before.start + before.size > after.start:
            raise cursor.fault(f"tensors {before.name} and {after.name} overlap")
