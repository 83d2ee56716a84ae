"""The native CPU backend."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from octavo.backends.base import WeightSource, cache_type
from octavo.backends.cpu.lowering import Lowering
from octavo.backends.cpu.program import CpuProgram
from octavo.graph.graph import Graph
from octavo.protocol.errors import ConfigError
from octavo.utils.machine import usable_cores


class CpuBackend:
    """Packs the weights and runs whole steps in octavo._native. `isa` forces an instruction set, as OCTAVO_CPU_ISA does."""

    name = "cpu"

    def __init__(self, threads: int = 0, isa: str = "") -> None:
        self._threads = threads or usable_cores()
        self._isa = isa

    def compile(
        self, graph: Graph, weights: WeightSource, on_progress: Callable[[int], None], kv_cache_dtype: str = "auto"
    ) -> CpuProgram:
        """Packs the graph's weights, by all threads, and writes the fused operations. The cache is bfloat16 where nothing else is asked for.
        Raises ConfigError for an unknown OCTAVO_CPU_ISA, or more threads than the system gives."""
        _native = import_module("octavo._native")
        dtype = cache_type(kv_cache_dtype, "bfloat16")
        try:
            native = _native.Program(graph.vocab_size, self._threads, [], self._isa, dtype)
        except ValueError as error:
            raise ConfigError(str(error), param="OCTAVO_CPU_ISA") from None
        except RuntimeError as error:  # what C++ makes of a thread that the system refuses
            raise ConfigError(f"threads: {self._threads} could not be started: {error}", param="threads") from None
        lowering = Lowering(graph, native, weights, on_progress)
        lowering.run()
        return CpuProgram(native, dtype, [f"rounded at load: {count} of the tensors ({label})" for label, count in lowering.rounded.items()])
