"""One GGUF file as a Checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.loading.checkpoint import Checkpoint
from octavo.loading.gguf_header import read_header
from octavo.loading.mapping import map_file
from octavo.loading.wording import one_line
from octavo.protocol.errors import ModelLoadError, UnsupportedModelError
from octavo.quantization.tensor import CheckpointTensor

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_SAMPLING_PREFIX = "general.sampling."
# GGUF's names of sampling defaults that generation_config.json spells otherwise.
_SAMPLING_NAMES = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}


class GGUFCheckpoint(Checkpoint):
    """A GGUF file of version 2 or 3 that holds one whole model. Raises ModelLoadError naming the file for anything else."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        refuse_shard(str(path))
        self._bytes: npt.NDArray[np.uint8] | None = map_file(path)
        header = read_header(path, self._bytes)
        self._places = header.tensors
        self.metadata = header.metadata
        self.architecture = self._check_model()
        self.generation_config = _sampling_defaults(header.metadata)

    def _check_model(self) -> str:
        """Refuses what is not one whole model; returns its architecture."""
        architecture = self.metadata.get("general.architecture")
        if not isinstance(architecture, str) or not architecture or not architecture.isprintable():
            raise ModelLoadError(f"{self.path} has no general.architecture in its metadata")
        content = self.metadata.get("general.type", "model")
        if content != "model":
            raise UnsupportedModelError(f"{self.path} holds {one_line(repr(content))} (general.type), not a model")
        parts = self.metadata.get("split.count", 0)
        if isinstance(parts, int) and parts > 1:
            raise _split(str(self.path), f"one of {parts} parts")
        if not self._places:
            raise ModelLoadError(f"{self.path} holds no tensors")
        return architecture

    def tensor_names(self) -> list[str]:
        """Every tensor's name, in the order of the file."""
        return list(self._places)

    def tensor(self, name: str) -> CheckpointTensor:
        """The tensor `name` as a view of the file. Raises ModelLoadError that names file and tensor if there is none."""
        if self._bytes is None:
            raise ModelLoadError(f"{self.path} is closed, so tensor {name} can't be read")
        place = self._places.get(name)
        if place is None:
            raise ModelLoadError(f"{self.path} has no tensor {name}")
        rows = 1
        for dimension in place.shape[:-1]:
            rows *= dimension
        data = self._bytes[place.start : place.start + place.size].reshape(rows, -1)
        return CheckpointTensor(name, place.kind, place.shape, data)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(place.size for place in self._places.values())

    def close(self) -> None:
        """Lets go of the file. No tensor can be taken afterwards."""
        self._bytes = None


def refuse_shard(name: str) -> None:
    """Raises UnsupportedModelError if a file's name says that it is one part of several."""
    shard = _SHARD.search(name)
    if shard and int(shard[2]) > 1:
        raise _split(name, f"part {int(shard[1])} of {int(shard[2])}")


def _split(path: str, part: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{path} is {part} of a split GGUF, which isn't supported; join the parts with llama.cpp's `llama-gguf-split --merge`"
    )


def _sampling_defaults(metadata: dict[str, Any]) -> dict[str, Any]:
    """The `general.sampling.*` keys, by the names that generation_config.json uses."""
    defaults: dict[str, Any] = {}
    for key, value in metadata.items():
        if key.startswith(_SAMPLING_PREFIX):
            name = key.removeprefix(_SAMPLING_PREFIX)
            defaults[_SAMPLING_NAMES.get(name, name)] = value
    return defaults
