"""A folder with config.json and safetensors files as a Checkpoint."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from octavo.loading.checkpoint import Checkpoint
from octavo.loading.mapping import refuse_pipe
from octavo.loading.safetensors_file import SafetensorsFile
from octavo.loading.wording import one_line
from octavo.protocol.errors import ModelLoadError, UnsupportedModelError
from octavo.quantization.tensor import CheckpointTensor

WHOLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class SafetensorsCheckpoint(Checkpoint):
    """A folder as the Hugging Face hub has them: config.json, and one safetensors file or several with an index.

    Raises ModelLoadError naming the file at fault, and UnsupportedModelError naming the method for a quantized checkpoint.
    """

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata = self._read_config()
        self.architecture = self._read_architecture()
        generation = path / "generation_config.json"
        self.generation_config = read_json(generation) if generation.exists() else {}
        self._files: dict[str, SafetensorsFile] = {}
        self._owner: dict[str, SafetensorsFile] = {}
        self._find_tensors()
        if not self._owner:
            raise ModelLoadError(f"{path} holds no tensors")

    def _read_config(self) -> dict[str, Any]:
        config = self.path / "config.json"
        if not config.exists() and (self.path / "adapter_config.json").exists():
            raise UnsupportedModelError(f"{self.path} holds a LoRA adapter (adapter_config.json), not a model")
        return read_json(config)

    def _read_architecture(self) -> str:
        config = self.path / "config.json"
        for key in ("quantization_config", "compression_config"):
            if self.metadata.get(key):
                fields = self.metadata[key]
                method = fields.get("quant_method") if isinstance(fields, dict) else None
                raise UnsupportedModelError(f"{config}: the quantization method {one_line(str(method or f'of {key}'))} is not supported")
        match self.metadata.get("architectures"):
            case [str(name), *_] if name and name.isprintable():
                return name
        raise ModelLoadError(f"{config} names no architecture (architectures)")

    def _find_tensors(self) -> None:
        names = sorted(file.name for file in self.path.glob("*.safetensors"))
        if WHOLE_FILE in names:
            self._add_whole(WHOLE_FILE)
        elif (self.path / INDEX_FILE).exists():
            self._add_shards(self._read_index())
        elif len(names) == 1:
            self._add_whole(names[0])
        elif names:
            raise ModelLoadError(f"{self.path} holds {len(names)} safetensors files but no {INDEX_FILE} that says what is in which")
        else:
            raise self._no_safetensors()

    def _no_safetensors(self) -> ModelLoadError:
        pickles = sorted(file.name for pattern in ("pytorch_model*.bin", "*.pt", "*.pth") for file in self.path.glob(pattern))
        if pickles:
            return UnsupportedModelError(
                f"{self.path} has its weights only as pickle ({pickles[0]}), which is never loaded, since it can run code; "
                "convert it to safetensors"
            )
        return ModelLoadError(f"{self.path} has no safetensors file")

    def _open(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            self._files[name] = SafetensorsFile(self.path / name)
        return self._files[name]

    def _add_whole(self, name: str) -> None:
        file = self._open(name)
        self._owner = dict.fromkeys(file.tensor_names(), file)

    def _read_index(self) -> dict[str, str]:
        """The index's map of tensor names to files, each checked to lie inside the folder."""
        index = self.path / INDEX_FILE
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict):
            raise ModelLoadError(f"{index} has no weight_map")
        for tensor, name in places.items():
            # Looked at as text, since the hub's cache itself has symbolic links out of the folder.
            if not isinstance(name, str) or not _is_inside(name):
                raise ModelLoadError(f"{index} puts tensor {one_line(tensor)} outside the folder, in {one_line(repr(name))}")
        return places

    def _add_shards(self, places: dict[str, str]) -> None:
        known: dict[str, set[str]] = {}
        for tensor, name in places.items():
            if name not in known:
                if not (self.path / name).exists():
                    raise ModelLoadError(f"{self.path / name} is missing, and {INDEX_FILE} puts tensor {one_line(tensor)} into it")
                known[name] = set(self._open(name).tensor_names())
            if tensor not in known[name]:
                raise ModelLoadError(f"{self.path / name} has no tensor {one_line(tensor)}, though {INDEX_FILE} puts it there")
            self._owner[tensor] = self._files[name]

    def tensor_names(self) -> list[str]:
        """Every tensor's name, in the order of the file or the index."""
        return list(self._owner)

    def tensor(self, name: str) -> CheckpointTensor:
        """The tensor `name` as a view of its file. Raises ModelLoadError that names folder and tensor if there is none."""
        file = self._owner.get(name)
        if file is None:
            raise ModelLoadError(f"{self.path} has no tensor {name}")
        return file.tensor(name)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(file.nbytes(name) for name, file in self._owner.items())

    def close(self) -> None:
        """Lets go of the files. No tensor can be taken afterwards."""
        for file in self._files.values():
            file.close()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelLoadError that names the file if it is missing, malformed or not an object."""
    try:
        refuse_pipe(path)
        value = json.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path} is missing") from None
    except OSError as error:
        raise ModelLoadError(f"{path} can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} is not a JSON object")
    return value


def _is_inside(name: str) -> bool:
    windows = PureWindowsPath(name)
    return (
        bool(name)
        and "\0" not in name
        and not windows.drive
        and not windows.root
        and ".." not in windows.parts
        and name == str(PurePosixPath(name))
    )
