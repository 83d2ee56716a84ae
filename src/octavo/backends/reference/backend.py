"""The numpy backend."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.backends.base import WeightSource, cache_type
from octavo.backends.reference.program import ReferenceProgram
from octavo.graph.graph import Graph
from octavo.quantization.decode import decode


class ReferenceBackend:
    """Decodes every weight into float32 and runs the graph in numpy."""

    name = "reference"

    def __init__(self, threads: int = 0) -> None:
        self._threads = threads

    def compile(
        self, graph: Graph, weights: WeightSource, on_progress: Callable[[int], None], kv_cache_dtype: str = "auto"
    ) -> ReferenceProgram:
        """Decodes the graph's weights one by one. The cache is float32 where nothing else is asked for."""
        decoded = {}
        for name in graph.weights:
            tensor = weights(name)
            values = np.ascontiguousarray(decode(tensor), dtype=np.float32)
            # What is still a view of the file must outlive it.
            decoded[name] = values if values.flags.writeable else values.copy()
            on_progress(tensor.nbytes)
        return ReferenceProgram(graph, decoded, self._threads, cache_type(kv_cache_dtype, "float32"))
