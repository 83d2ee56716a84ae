"""Where the threads of real servers run, and what a second server says of the first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from serve_process import LiveServer

from octavo.utils.core_claims import claims
from octavo.utils.machine import cpu_quotas, format_cpus, physical_cores

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins threads"),
    pytest.mark.skipif(bool(cpu_quotas()), reason="under a quota threads are not pinned"),
]
pytest.importorskip("octavo._native", reason="Octavo was installed without a C++ compiler")

SMALL = ("--kv-cache-memory", "64MiB")


def affinities(server: LiveServer) -> dict[str, set[int]]:
    """The CPUs on which each thread of the server's engine may run, by the thread's name; "main" is the main thread."""
    found = {}
    for folder in Path(f"/proc/{server.engine_pid}/task").iterdir():
        name = "main" if int(folder.name) == server.engine_pid else (folder / "comm").read_text().strip()
        found[name] = os.sched_getaffinity(int(folder.name))
    return found


def shared_notes(server: LiveServer) -> list[str]:
    return [line for line in server.stderr.splitlines() if " also used by " in line]


def test_threads_are_pinned_and_the_main_thread_is_free_between_steps(tiny_llama: Path) -> None:
    everywhere = os.sched_getaffinity(0)
    with LiveServer(tiny_llama, *SMALL) as server:
        assert server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
        cpus = [core[0] for core in physical_cores().values()]
        where = affinities(server)
        assert where["main"] == everywhere
        assert [where[f"octavo-{index}"] for index in range(1, len(cpus))] == [{cpu} for cpu in cpus[1:]]
        assert f"{len(cpus)} thread{'s' if len(cpus) > 1 else ''} pinned to CPU" in server.stderr
        assert server.stop() == 0


def test_threads_that_are_not_pinned(tiny_llama: Path) -> None:
    with LiveServer(tiny_llama, *SMALL, "--no-pin-threads", "--threads", "2") as server:
        assert affinities(server)["octavo-1"] == os.sched_getaffinity(0)
        assert "2 threads not pinned" in server.stderr


def test_a_wish_that_cannot_be_met(tiny_llama: Path) -> None:
    with LiveServer(tiny_llama, *SMALL, "--pin-threads", "--threads", "4000", ready=False) as server:
        assert server.wait() == 1
        cpus = len(os.sched_getaffinity(0))
        assert server.stderr == f"octavo: --pin-threads can't be with 4000 threads on {cpus} CPUs; ask for fewer threads\n"


def test_a_second_server_on_the_same_cores_says_so(tiny_llama: Path) -> None:
    cpus = [core[0] for core in physical_cores().values()]
    with LiveServer(tiny_llama, *SMALL) as first, LiveServer(tiny_llama, *SMALL) as second:
        assert not any(str(second.process.pid) in note for note in shared_notes(first))
        (note,) = shared_notes(second)
        assert note.startswith(f"CPU{'s' if len(cpus) > 1 else ''} {format_cpus(cpus)} ")
        assert f"process {first.process.pid}" in note
        assert note.endswith("give them fewer threads (--threads) or CPUs of their own (taskset -c)")
        # A server that was killed is not there any more.
        first.process.kill()
        first.wait()
    with LiveServer(tiny_llama, *SMALL) as third:
        assert not any(str(first.process.pid) in note for note in shared_notes(third))


@pytest.mark.skipif(len(physical_cores()) < 2, reason="needs two cores")
def test_servers_with_a_thread_each_do_not_meet(tiny_llama: Path) -> None:
    with LiveServer(tiny_llama, *SMALL, "--threads", "1") as first, LiveServer(tiny_llama, *SMALL, "--threads", "1") as second:
        if any(claim.pid not in first.pids | second.pids for claim in claims()):
            pytest.skip("other engines run on this machine, and may have taken the other cores")
        assert not any(f"process {first.process.pid}" in note for note in shared_notes(second))
