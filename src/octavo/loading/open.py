"""Opens a checkpoint by what lies at a path."""

from __future__ import annotations

from pathlib import Path

from octavo.loading.checkpoint import Checkpoint
from octavo.loading.gguf_checkpoint import GGUFCheckpoint
from octavo.loading.safetensors_checkpoint import SafetensorsCheckpoint
from octavo.protocol.errors import ModelLoadError


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a GGUF file, or a folder with config.json and safetensors files.

    Reads headers only; tensors stay on disk until they are used. Raises ModelLoadError, one sentence that names the file (and the tensor)
    at fault, for whatever can't be read, and its subclass UnsupportedModelError for what this version has no code for.
    """
    if path.is_dir():
        return SafetensorsCheckpoint(path)
    if path.suffix == ".safetensors":
        raise ModelLoadError(f"{path} is one safetensors file; give its folder, where config.json and the tokenizer are")
    return GGUFCheckpoint(path)
