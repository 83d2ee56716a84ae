"""One safetensors file.

Format: https://github.com/huggingface/safetensors#format: the header's length in 8 bytes, a JSON header of names to dtype, shape and byte
range, then the tensors' bytes without gaps. The package's numpy interface has no bfloat16, and this needs only views of the file.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.loading.mapping import map_file
from octavo.loading.wording import one_line
from octavo.protocol.errors import ModelLoadError
from octavo.quantization.kinds import KINDS
from octavo.quantization.tensor import CheckpointTensor

# The limit of the safetensors library itself.
MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 32


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    kind: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile:
    """A memory-mapped safetensors file. Raises ModelLoadError that names the file for anything that breaks the format."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes: npt.NDArray[np.uint8] | None = map_file(path)
        header, data_start = self._read_header(self._bytes)
        self._entries: dict[str, _Entry] = {}
        for name, fields in header.items():
            if name != "__metadata__":
                self._entries[name] = self._read_entry(name, fields, data_start)
        self._check_ranges(data_start, len(self._bytes))

    def _fault(self, problem: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path} is not a sound safetensors file: {one_line(problem)}")

    def _read_header(self, data: npt.NDArray[np.uint8]) -> tuple[dict[str, Any], int]:
        """The parsed header and the position where the tensors' bytes begin."""
        length = int.from_bytes(data[:8].tobytes(), "little")
        if len(data) < 8 or length > min(len(data) - 8, MAX_HEADER_BYTES):
            raise self._fault(f"its header of {length} bytes does not fit into the file's {len(data)}")
        try:
            header = json.loads(data[8 : 8 + length].tobytes().decode("utf-8"), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self._fault(f"its header is not valid JSON ({error})") from error
        if not isinstance(header, dict):
            raise self._fault("its header is not a JSON object")
        return header, 8 + length

    def _read_entry(self, name: str, fields: Any, data_start: int) -> _Entry:
        # Names and dtypes go into messages and logs.
        if not name or not name.isprintable():
            raise self._fault(f"a tensor has the name {name!r}")
        match fields:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]} if dtype.isprintable():
                pass
            case _:
                raise self._fault(f"tensor {name} lacks dtype, shape or data_offsets")
        numbers = [*shape, begin, end]
        if len(shape) > MAX_DIMENSIONS or not all(type(number) is int and 0 <= number < 2**63 for number in numbers) or begin > end:
            raise self._fault(f"tensor {name} has an impossible shape or byte range")
        kind = KINDS.get(dtype)
        if kind is not None and (kind.values_per_block != 1 or math.prod(shape) * kind.bytes_per_block != end - begin):
            raise self._fault(f"tensor {name} ({dtype}, shape {shape}) can't take {end - begin} bytes")
        return _Entry(name, dtype, tuple(shape), data_start + begin, data_start + end)

    def _check_ranges(self, data_start: int, size: int) -> None:
        """The format allows neither gaps nor overlaps, so that a file cut short or grown never goes unseen."""
        position = data_start
        for entry in sorted(self._entries.values(), key=lambda entry: (entry.start, entry.end)):
            if entry.end > size:
                raise self._fault(f"tensor {entry.name} ends at byte {entry.end}, beyond the file's {size}; the download may be incomplete")
            if entry.start != position:
                raise self._fault(f"tensor {entry.name} begins at byte {entry.start} instead of {position}")
            position = entry.end
        if position != size:
            raise self._fault(f"{size - position} bytes after the last tensor belong to none")

    def tensor_names(self) -> list[str]:
        """Every tensor's name, in the order of the header."""
        return list(self._entries)

    def nbytes(self, name: str) -> int:
        """Bytes of the tensor `name`, which must exist."""
        return self._entries[name].end - self._entries[name].start

    def tensor(self, name: str) -> CheckpointTensor:
        """The tensor `name` as a view of the file. Raises ModelLoadError that names file and tensor if there is none."""
        if self._bytes is None:
            raise ModelLoadError(f"{self.path} is closed, so tensor {name} can't be read")
        entry = self._entries.get(name)
        if entry is None:
            raise ModelLoadError(f"{self.path} has no tensor {name}")
        data = self._bytes[entry.start : entry.end]
        rows, width = math.prod(entry.shape[:-1]), entry.shape[-1] if entry.shape else 1
        if entry.kind in KINDS:
            return CheckpointTensor(name, entry.kind, entry.shape, data.reshape(rows, width * KINDS[entry.kind].bytes_per_block))
        # How an unknown dtype lies in rows isn't known either.
        return CheckpointTensor(name, entry.kind, entry.shape, data.reshape(1, -1))

    def close(self) -> None:
        """Lets go of the file. No tensor can be taken afterwards."""
        self._bytes = None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} appears twice")
    return table
