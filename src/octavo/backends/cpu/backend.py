"""The native CPU backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.backends.base import WeightSource, cache_type
from octavo.backends.cpu.isa import chosen_isa
from octavo.backends.cpu.lowering import Lowering
from octavo.backends.cpu.native import load_native
from octavo.backends.cpu.program import CpuProgram
from octavo.graph.graph import Graph
from octavo.protocol.errors import ConfigError
from octavo.utils.machine import usable_cores


class CpuBackend:
    """Packs the weights and runs whole steps in octavo._native. `isa` forces an instruction set, as OCTAVO_CPU_ISA does; `cpus` has the CPU
    that each thread is pinned to while it computes, or nothing."""

    name = "cpu"

    def __init__(self, threads: int = 0, isa: str = "", cpus: Sequence[int] = ()) -> None:
        self._threads = threads or usable_cores()
        self._isa = isa
        self._cpus = list(cpus)

    def compile(self, graph: Graph, weights: WeightSource, on_progress: Callable[[int], None], kv_cache_dtype: str = "auto") -> CpuProgram:
        """Packs the graph's weights, by all threads, and writes the fused operations. The cache is bfloat16 where nothing else is asked
        for. Raises ConfigError for an unknown OCTAVO_CPU_ISA, or threads that the system refuses."""
        _native = load_native()
        isa, dtype = self._isa or chosen_isa(), cache_type(kv_cache_dtype, "bfloat16")
        try:
            native = _native.Program(graph.vocab_size, self._threads, self._cpus, isa, dtype)
        except (RuntimeError, ValueError) as error:  # a thread that the system does not start, or a CPU that has gone since it was chosen
            raise ConfigError(f"threads: {self._threads} could not be started: {error}", param="threads") from None
        lowering = Lowering(graph, native, weights, on_progress)
        lowering.run()
        return CpuProgram(native, dtype, lowering.notes, graph.hidden_size)
