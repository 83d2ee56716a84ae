"""A model ready to be compiled: its graph, its limits, and where each of its weights comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.graph.graph import Graph
from octavo.models.store import TensorStore
from octavo.protocol.errors import ModelLoadError
from octavo.quantization.tensor import CheckpointTensor


@dataclass(frozen=True, slots=True)
class WeightOrigin:
    """A canonical weight's name in the checkpoint, and what must be done to it on the way."""

    name: str
    transform: Callable[[CheckpointTensor], CheckpointTensor] | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """What a family makes of a checkpoint. `origins` maps each weight of the graph; `ignored` are tensors that the checkpoint may hold
    and the graph has no use for (buffers, tied copies)."""

    architecture: str
    graph: Graph
    max_model_len: int
    store: TensorStore
    origins: dict[str, WeightOrigin]
    ignored: frozenset[str] = frozenset()

    def check(self) -> int:
        """Compares names and shapes with the checkpoint before anything is decoded; the bytes that `weight` will hand out.

        Raises ModelLoadError that names the file and the first tensor that is missing, has another shape, or is not part of the model.
        """
        present = set(self.store.tensor_names())
        total = 0
        for name, weight in self.graph.weights.items():
            origin = self.origins[name]
            if origin.name not in present:
                raise ModelLoadError(f"{self.store.path}: tensor {origin.name} is missing")
            tensor = self.store.tensor(origin.name)
            if tensor.shape != weight.shape:
                raise ModelLoadError(
                    f"{self.store.path}: tensor {origin.name} has shape {list(tensor.shape)}, but the model's configuration needs "
                    f"{list(weight.shape)}"
                )
            total += tensor.nbytes
        unused = sorted(present - {origin.name for origin in self.origins.values()} - self.ignored)
        if unused:
            more = f" (and {len(unused) - 1} more)" if len(unused) > 1 else ""
            raise ModelLoadError(
                f"{self.store.path}: tensor {unused[0]}{more} is not part of a {self.architecture} model as Octavo knows it"
            )
        return total

    def weight(self, name: str) -> CheckpointTensor:
        """The tensor of a canonical weight."""
        origin = self.origins[name]
        tensor = self.store.tensor(origin.name)
        return origin.transform(tensor) if origin.transform is not None else tensor
