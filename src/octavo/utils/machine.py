"""What this process may use of the machine it runs on, as the kernel and the cgroup allow."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

CGROUPS = "/sys/fs/cgroup"
UNLIMITED = 1 << 60


def usable_cores() -> int:
    """Cores that this process may run on: its affinity, bounded by the cgroup's CPU quota (rounded up)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(-(-quota // period) for quota, period in _quotas())]))


def total_memory() -> int:
    """Bytes of memory: the machine's, or the cgroup's limit where that is lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in _memory())])


def available_memory() -> int:
    """Bytes that can still be taken without pushing others out: the kernel's MemAvailable, within what the cgroup has left.

    Page cache counts as available, also in the cgroup, whose usage includes it.
    """
    available = total_memory()
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = min(available, int(line.split()[1]) * 1024)
    return min([available, *(max(0, limit - used) for limit, used in _memory())])


def _groups() -> list[str]:
    """Folders of the cgroups (version 2) that hold this process, from its own to the root; each of them may set limits."""
    own = next((line.removeprefix("0::") for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    path = PurePosixPath(own)
    return [str(PurePosixPath(CGROUPS, *folder.parts[1:])) for folder in (path, *path.parents)]


def _quotas() -> list[tuple[int, int]]:
    """The CPU quotas that hold, each with its period."""
    pairs = [_read(f"{group}/cpu.max").split() for group in _groups()]
    pairs.append([_read(f"{CGROUPS}/cpu/cpu.cfs_quota_us"), _read(f"{CGROUPS}/cpu/cpu.cfs_period_us")])
    numbers = [(int(pair[0]), int(pair[1])) for pair in pairs if len(pair) == 2 and all(map(str.isdigit, pair))]
    return [(quota, period) for quota, period in numbers if quota > 0 and period > 0]


def _memory() -> list[tuple[int, int]]:
    """The memory limits that hold, each with what is used of it and could not be dropped at once, in bytes."""
    files = [(f"{group}/memory.max", f"{group}/memory.current", f"{group}/memory.stat", "") for group in _groups()]
    old = f"{CGROUPS}/memory"
    files.append((f"{old}/memory.limit_in_bytes", f"{old}/memory.usage_in_bytes", f"{old}/memory.stat", "total_"))
    found = []
    for limit_file, used_file, stat_file, prefix in files:
        limit = _number(limit_file)
        if limit is not None and limit < UNLIMITED:
            found.append((limit, max(0, (_number(used_file) or 0) - _page_cache(stat_file, prefix))))
    return found


def _page_cache(path: str, prefix: str) -> int:
    """Bytes of files in memory, from a memory.stat. Files of a tmpfs are not among them: they can't be dropped."""
    wanted = (f"{prefix}active_file", f"{prefix}inactive_file")
    pairs = [line.split() for line in _read(path).splitlines()]
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in wanted)


def _number(path: str) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
