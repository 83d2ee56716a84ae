"""What this process may use of the machine it runs on, as the kernel and the cgroup allow."""

from __future__ import annotations

import os
from pathlib import Path

UNLIMITED = 1 << 60


def usable_cores() -> int:
    """Cores that this process may run on: its affinity, bounded by the cgroup's CPU quota (rounded up)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = _quota()
    return max(1, min(cores, -(-quota // period))) if quota > 0 else cores


def _quota() -> tuple[int, int]:
    words = _read("/sys/fs/cgroup/cpu.max").split()
    if len(words) == 2 and words[0].isdigit():
        return int(words[0]), int(words[1])
    quota, period = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return (int(quota), int(period)) if quota.isdigit() and period.isdigit() else (0, 1)


def total_memory() -> int:
    """Bytes of memory: the machine's, or the cgroup's limit where that is lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    return min([machine, *(limit for limit in limits if limit is not None and limit < UNLIMITED)])


def available_memory() -> int:
    """Bytes that can still be taken without pushing others out: the kernel's MemAvailable, within what the cgroup has left.

    Page cache counts as available, also in the cgroup, whose `current` includes it.
    """
    available = total_memory()
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = min(available, int(line.split()[1]) * 1024)
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None and limit < UNLIMITED:
        cached = sum(int(line.split()[1]) for line in _read("/sys/fs/cgroup/memory.stat").splitlines() if line.startswith("file "))
        available = min(available, max(0, limit - used + cached))
    return available


def _number(path: str) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
