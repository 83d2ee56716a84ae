"""What the machine and its cgroups allow, from files as Linux writes them."""

from __future__ import annotations

import os

import pytest

from octavo.utils import machine

GIB = 1 << 30
ROOT = "/sys/fs/cgroup"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The only files there are. The machine has 64 GiB and eight cores."""
    contents: dict[str, str] = {}
    monkeypatch.setattr(machine, "_read", lambda path: contents.get(path, ""))
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 4096}[name])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return contents


def test_without_any_files(files: dict[str, str]) -> None:
    assert machine.usable_cores() == 8
    assert machine.total_memory() == 64 * GIB
    assert machine.available_memory() == 64 * GIB


def test_meminfo(files: dict[str, str]) -> None:
    files["/proc/meminfo"] = "MemTotal:       67108864 kB\nMemFree:         1000 kB\nMemAvailable:   41943040 kB\nBuffers: 5 kB"
    assert machine.available_memory() == 40 * GIB
    assert machine.total_memory() == 64 * GIB


def test_affinity_is_missing_on_some_systems(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert machine.usable_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.usable_cores() == 1


def test_siblings_of_a_core_count_once(files: dict[str, str]) -> None:
    for cpu in range(8):
        files[f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"] = f"{cpu % 4},{cpu % 4 + 4}"
    assert machine.usable_cores() == 4
    assert machine.physical_cores() == {0: [0, 4], 1: [1, 5], 2: [2, 6], 3: [3, 7]}


def test_siblings_as_older_kernels_tell_them(files: dict[str, str]) -> None:
    for cpu in range(8):
        files[f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu & ~1}-{cpu | 1}"
    assert machine.physical_cores() == {0: [0, 1], 2: [2, 3], 4: [4, 5], 6: [6, 7]}


def test_a_core_keeps_its_number_where_only_some_of_its_cpus_may_be_used(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu in range(8):
        files[f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"] = f"{cpu % 4},{cpu % 4 + 4}"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 1, 4, 5})
    assert machine.physical_cores() == {0: [4], 1: [1, 5], 3: [7]}
    assert machine.usable_cores() == 3
    files[f"{ROOT}/cpu.max"] = "200000 100000"
    assert machine.usable_cores() == 2


@pytest.mark.parametrize("text", ["", "garbage", "0-", "-3", "1,,2", "x-3"])
def test_what_is_no_list_of_cpus(files: dict[str, str], text: str) -> None:
    files["/sys/devices/system/cpu/cpu1/topology/core_cpus_list"] = text
    assert machine.parse_cpus(text) == []
    assert machine.physical_cores()[1] == [1]


@pytest.mark.parametrize(("text", "cpus"), [("0", [0]), ("0-3,8", [0, 1, 2, 3, 8]), ("1,3,5-6,63", [1, 3, 5, 6, 63])])
def test_lists_of_cpus(text: str, cpus: list[int]) -> None:
    assert machine.parse_cpus(text) == cpus
    assert machine.format_cpus(reversed(cpus)) == text


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("1600000 100000", 8),
        ("", 8),
        ("garbage", 8),
        ("0 100000", 8),
        ("100000 0", 8),
    ],
)
def test_cpu_quota_of_version_2(files: dict[str, str], quota: str, cores: int) -> None:
    files[f"{ROOT}/cpu.max"] = quota
    assert machine.usable_cores() == cores


@pytest.mark.parametrize(("quota", "period", "cores"), [("-1", "100000", 8), ("250000", "100000", 3), ("250000", "", 8), ("", "100000", 8)])
def test_cpu_quota_of_version_1(files: dict[str, str], quota: str, period: str, cores: int) -> None:
    files[f"{ROOT}/cpu/cpu.cfs_quota_us"] = quota
    files[f"{ROOT}/cpu/cpu.cfs_period_us"] = period
    assert machine.usable_cores() == cores


def test_memory_of_version_2(files: dict[str, str]) -> None:
    files[f"{ROOT}/memory.max"] = str(8 * GIB)
    assert machine.total_memory() == 8 * GIB
    assert machine.available_memory() == 8 * GIB  # nothing is known to be used
    files[f"{ROOT}/memory.current"] = str(6 * GIB)
    assert machine.available_memory() == 2 * GIB
    # Page cache can be dropped; files of a tmpfs, which "file" includes, can't.
    files[f"{ROOT}/memory.stat"] = f"anon 5\nfile {4 * GIB}\nshmem {GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\nslab 7"
    assert machine.available_memory() == 5 * GIB
    files["/proc/meminfo"] = f"MemAvailable: {GIB // 1024} kB"
    assert machine.available_memory() == GIB


def test_memory_without_a_limit(files: dict[str, str]) -> None:
    files[f"{ROOT}/memory.max"] = "max"
    files[f"{ROOT}/memory.current"] = str(60 * GIB)
    files[f"{ROOT}/memory/memory.limit_in_bytes"] = "9223372036854771712"
    files[f"{ROOT}/memory/memory.usage_in_bytes"] = str(60 * GIB)
    assert machine.total_memory() == 64 * GIB
    assert machine.available_memory() == 64 * GIB


def test_a_limit_beyond_the_machine(files: dict[str, str]) -> None:
    files[f"{ROOT}/memory.max"] = str(100 * GIB)
    assert machine.total_memory() == 64 * GIB


def test_more_used_than_the_limit_allows(files: dict[str, str]) -> None:
    files[f"{ROOT}/memory.max"] = str(GIB)
    files[f"{ROOT}/memory.current"] = str(2 * GIB)
    assert machine.available_memory() == 0


def test_memory_of_version_1(files: dict[str, str]) -> None:
    files[f"{ROOT}/memory/memory.limit_in_bytes"] = str(4 * GIB)
    files[f"{ROOT}/memory/memory.usage_in_bytes"] = str(3 * GIB)
    files[f"{ROOT}/memory/memory.stat"] = f"inactive_file 1\nactive_file 1\ntotal_inactive_file {GIB}\ntotal_active_file 0"
    assert machine.total_memory() == 4 * GIB
    assert machine.available_memory() == 2 * GIB


def test_limits_of_the_cgroups_around_it(files: dict[str, str]) -> None:
    """A service outside any container: its limits lie in folders of its own and of its parents."""
    files["/proc/self/cgroup"] = "1:name=systemd:/other\n0::/system.slice/octavo.service"
    files[f"{ROOT}/system.slice/octavo.service/memory.max"] = str(16 * GIB)
    files[f"{ROOT}/system.slice/octavo.service/memory.current"] = str(GIB)
    files[f"{ROOT}/system.slice/memory.max"] = str(12 * GIB)
    files[f"{ROOT}/system.slice/memory.current"] = str(10 * GIB)
    files[f"{ROOT}/system.slice/octavo.service/cpu.max"] = "max 100000"
    files[f"{ROOT}/system.slice/cpu.max"] = "300000 100000"
    files["/other/memory.max"] = files[f"{ROOT}/other/memory.max"] = "1"
    assert machine.total_memory() == 12 * GIB
    assert machine.available_memory() == 2 * GIB
    assert machine.usable_cores() == 3


def test_limits_of_version_1_around_it(files: dict[str, str]) -> None:
    files["/proc/self/cgroup"] = "9:memory:/box/inner\n8:cpu,cpuacct:/jobs/one\n1:name=systemd:/other\n0::/"
    files[f"{ROOT}/cpu/jobs/one/cpu.cfs_quota_us"] = "-1"
    files[f"{ROOT}/cpu/jobs/one/cpu.cfs_period_us"] = "100000"
    files[f"{ROOT}/cpu/jobs/cpu.cfs_quota_us"] = "450000"
    files[f"{ROOT}/cpu/jobs/cpu.cfs_period_us"] = "100000"
    files[f"{ROOT}/memory/box/memory.limit_in_bytes"] = str(4 * GIB)
    files[f"{ROOT}/memory/box/memory.usage_in_bytes"] = str(GIB)
    assert machine.usable_cores() == 5
    assert machine.cpu_quotas() == [5]
    assert machine.total_memory() == 4 * GIB
    assert machine.available_memory() == 3 * GIB


def test_this_machine() -> None:
    assert 1 <= machine.usable_cores() <= (os.cpu_count() or 1)
    cpus = [cpu for core in machine.physical_cores().values() for cpu in core]
    assert sorted(cpus) == sorted(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))
    assert 0 < machine.available_memory() <= machine.total_memory()


def test_a_file_that_is_not_there() -> None:
    assert machine._read("/nowhere/at/all") == ""
    assert machine._read("/") == ""
