"""What every checkpoint offers, whatever its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from octavo.quantization.tensor import CheckpointTensor


class Checkpoint(ABC):
    """Named tensors and metadata of one model, memory-mapped. Names are the checkpoint's own; it knows nothing of models.

    `path` is the file or folder it was opened from and `format` is "gguf" or "safetensors". `architecture` is GGUF's
    `general.architecture` (such as "llama") or the first of config.json's `architectures` (such as "LlamaForCausalLM"). `metadata` holds
    GGUF's key-values as plain Python values, or config.json. `generation_config` is generation_config.json; for GGUF it holds the
    `general.sampling.*` keys under their Hugging Face names where there is one. It is empty where the checkpoint has none.

    Usable as a context manager. Tensors taken before `close` stay valid: the file stays mapped until the last is gone.
    """

    path: Path
    format: str
    architecture: str
    metadata: Mapping[str, Any]
    generation_config: dict[str, Any]

    @abstractmethod
    def tensor_names(self) -> list[str]:
        """Every tensor's name, in the order of the checkpoint."""

    @abstractmethod
    def tensor(self, name: str) -> CheckpointTensor:
        """The tensor `name` as a view of the file. Raises ModelLoadError that names file and tensor if there is none."""

    @property
    @abstractmethod
    def total_bytes(self) -> int:
        """Bytes of all tensors as they are stored."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of the files. No tensor can be taken afterwards; closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
