"""Bits hold under other kernels of the BLAS than this machine's own, such as OpenBLAS's for Haswell, which breaks tiles of 16 rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

SCRIPT = """
import json, random, sys
import numpy as np
from sequences import Runner, Shape, random_sequence
from threadpoolctl import ThreadpoolController
from octavo.backends.reference.products import Threads, invariant_tile, linear, product_shapes

controller = ThreadpoolController()
made = np.random.default_rng(1)
tiles, same = [], True
with controller.limit(limits=1, user_api="blas"):
    for inner, outputs in ((64, 512), (576, 192), (100, 33), (7, 700), (256, 1)):
        x, weight = (made.standard_normal(shape).astype(np.float32) for shape in ((50, inner), (outputs, inner)))
        tile = invariant_tile(product_shapes(outputs, inner))
        tiles.append(tile)
        whole = linear(x, weight, None, tile, Threads(1)).tobytes()
        parts = [linear(x[first : first + 3], weight, None, tile, Threads(1)) for first in range(0, 50, 3)]
        same &= np.concatenate(parts).tobytes() == whole
for head_dim in (16, 20, 64):
    shape = Shape(kv_heads=2, group=3, head_dim=head_dim)
    sequence = random_sequence(3, 260, shape)
    sequence.blocks = random.Random(1).sample(range(40), 17)
    runner = Runner([sequence], shape, 16, 40)
    tiles.append(runner.program.tile)
    whole = runner.step([(0, 0, 260)])[0].tobytes()
    parts = [runner.step([(0, first, min(first + 7, 260))])[0] for first in range(0, 260, 7)]
    same &= np.concatenate(parts).tobytes() == whole
print(json.dumps({"kernel": controller.info()[0]["architecture"], "same": bool(same), "tiles": tiles}))
"""

# A name and the instructions that its kernels need.
KERNELS = {"Prescott": "sse3", "Sandybridge": "avx", "Haswell": "avx2", "SkylakeX": "avx512f"}


@pytest.mark.parametrize("kernel", list(KERNELS))
def test_bits_hold_under_every_kernel(kernel: str) -> None:
    assert np.ones(1).dot(np.ones(1)) == 1  # its BLAS is loaded
    if not any(library["internal_api"] == "openblas" for library in threadpool_info()):
        pytest.skip("numpy's BLAS is not OpenBLAS, whose kernels can be chosen")
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    if {"sse3": "pni"}.get(KERNELS[kernel], KERNELS[kernel]) not in flags:
        pytest.skip(f"this machine has no {KERNELS[kernel]}")
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OPENBLAS_CORETYPE": kernel, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["same"], found
    # A name that this build doesn't know would silently mean the machine's own kernels.
    assert kernel == "Prescott" or found["kernel"] == kernel, found
