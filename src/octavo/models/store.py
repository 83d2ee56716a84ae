"""What a model family needs of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from octavo.quantization.tensor import CheckpointTensor


class TensorStore(Protocol):
    """A checkpoint: `metadata` is config.json's object, or GGUF's key-values."""

    @property
    def path(self) -> Path:
        """The file or folder."""
        ...

    @property
    def format(self) -> str:
        """ "gguf" or "safetensors"."""
        ...

    @property
    def architecture(self) -> str:
        """GGUF's `general.architecture`, or the first of config.json's `architectures`."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The checkpoint's own description."""
        ...

    def tensor_names(self) -> list[str]:
        """Names as the checkpoint spells them."""
        ...

    def tensor(self, name: str) -> CheckpointTensor:
        """One tensor; ModelLoadError names file and tensor if there is none."""
        ...
