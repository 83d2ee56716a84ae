"""What a server takes of the machine's memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from serve_process import LiveServer

pytestmark = [pytest.mark.model, pytest.mark.skipif(sys.platform != "linux", reason="/proc tells")]
pytest.importorskip("octavo._native", reason="Octavo was installed without a C++ compiler")

MIB = 2**20
CACHE = 256 * MIB


def resident(pid: int) -> int:
    """Bytes of a process that lie in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def test_it_takes_its_weights_its_cache_and_little_else(smollm2_path: Path) -> None:
    """The packed weights come to the file's size, and of the cache only blocks that were used are in memory."""
    with LiveServer(smollm2_path, "--kv-cache-memory", str(CACHE)) as server:
        reply = server.http.post("/v1/completions", json={"prompt": [[7] * 200] * 4, "max_tokens": 20}, timeout=60)
        assert reply.status_code == 200
        engine, front = resident(server.engine_pid), resident(server.process.pid)
        used = 4 * 220 * 23_040
    print(f"engine {engine / MIB:.0f} MiB, server {front / MIB:.0f} MiB")
    weights = smollm2_path.stat().st_size
    assert engine < weights + used + 100 * MIB
    assert engine + front < weights + CACHE + 200 * MIB
