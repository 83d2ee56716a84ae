"""The machine that was measured, and what it can do at most."""

from __future__ import annotations

import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo.backends.cpu.isa import chosen_isa
from octavo.backends.cpu.native import load_native
from octavo.backends.select import has_native
from octavo.bench.report import Table, number
from octavo.utils.machine import total_memory, usable_cores

READ_BYTES = 512 << 20  # many times a last-level cache
READ_PASSES = 6
READ_NOW_BYTES, READ_NOW_PASSES = 128 << 20, 2


@dataclass(frozen=True, slots=True)
class Machine:
    """`threads` threads together read `read_bytes_s` bytes of memory a second and do `int8_ops_s` and `bf16_ops_s` operations a second (a
    multiplication and an addition are two) in registers, with the instructions of `isa`."""

    processor: str
    cores: int
    memory_bytes: int
    threads: int
    isa: str
    read_bytes_s: float
    int8_ops_s: float
    bf16_ops_s: float

    def seconds(self, *, read_bytes: float = 0.0, int8_ops: float = 0.0, bf16_ops: float = 0.0) -> float:
        """The least time for this much work: reading may hide behind arithmetic or the other way around (the roofline model of Williams,
        Waterman and Patterson, 2009)."""
        return max(read_bytes / self.read_bytes_s, int8_ops / self.int8_ops_s + bf16_ops / self.bf16_ops_s)

    def reads_now(self) -> float:
        """Bytes a second that the threads read at this moment: neighbours on the same memory leave now more and now less."""
        if not has_native():
            return _numpy_copy_rate(READ_NOW_BYTES, 1)
        return float(load_native().read_rate(self.threads, "", READ_NOW_BYTES, READ_NOW_PASSES))

    def describe(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)

    def table(self) -> Table:
        """For people."""
        return Table(
            "Machine",
            ["processor", "cores", "memory", "threads", "instructions", "reads GB/s", "int8 GOP/s", "bf16 GFLOP/s"],
            [
                [
                    self.processor,
                    str(self.cores),
                    f"{self.memory_bytes / 2**30:.1f} GiB",
                    str(self.threads),
                    self.isa,
                    number(self.read_bytes_s / 1e9),
                    number(self.int8_ops_s / 1e9, 0),
                    number(self.bf16_ops_s / 1e9, 0),
                ]
            ],
        )


def measure_machine(threads: int = 0, isa: str = "") -> Machine:
    """Measures for about a second, with `threads` threads (0: one for each usable core) and the instructions of `isa` (the backend's own
    by default). Without the native module numpy stands in: its copies, and its float32 products for both rates."""
    threads = threads or usable_cores()
    if has_native():
        _native = load_native()
        name = isa or chosen_isa()
        read = _native.read_rate(threads, name, READ_BYTES, READ_PASSES)
        int8, bf16 = (_native.arithmetic_rate(threads, name, kind) for kind in ("int8", "bf16"))
    else:
        name = "numpy"
        read, int8 = _numpy_copy_rate(), _numpy_product_rate()
        bf16 = int8
    return Machine(processor(), usable_cores(), total_memory(), threads, name, read, int8, bf16)


def processor() -> str:
    """The processor's name; with family and model on x86, since virtual machines often hide the rest of the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = fields.get("model name") or fields.get("Model") or platform.processor() or platform.machine() or "unknown"
    return f"{name} (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields and "model" in fields else name


def _numpy_copy_rate(size: int = READ_BYTES, passes: int = READ_PASSES) -> float:
    import numpy as np

    source = np.ones(size // 2, np.uint8)
    target = np.empty_like(source)
    # A copy reads and writes.
    return 2 * source.nbytes / _best(lambda: np.copyto(target, source), passes)


def _numpy_product_rate() -> float:
    import numpy as np

    a = np.ones((1024, 1024), np.float32)
    b = np.ones((1024, 1024), np.float32)
    return 2 * 1024**3 / _best(lambda: a @ b)


def _best(work: Any, passes: int = READ_PASSES) -> float:
    times = []
    for _ in range(passes):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
