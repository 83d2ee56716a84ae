"""What this process may use of the machine it runs on, as the kernel and the cgroup allow."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

CGROUPS = "/sys/fs/cgroup"
CPUS = "/sys/devices/system/cpu"
UNLIMITED = 1 << 60


def usable_cores() -> int:
    """Physical cores that this process may compute on: those of its affinity, bounded by the cgroup's CPU quota (rounded up)."""
    return min([len(physical_cores()), *cpu_quotas()])


def physical_cores() -> dict[int, list[int]]:
    """The CPUs that this process may run on, by physical core, in ascending order.

    CPUs that share a core's arithmetic (simultaneous multithreading) stand together, and a core has the number of its first CPU, whether
    this process may run on that one or not. Where the system doesn't tell, every CPU is a core.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores: dict[int, list[int]] = {}
    for cpu in sorted(allowed):
        cores.setdefault(min([cpu, *_siblings(cpu)]), []).append(cpu)
    return dict(sorted(cores.items()))


def cpu_quotas() -> list[int]:
    """The cgroups' CPU quotas that hold for this process, in whole CPUs (rounded up, so at least 1)."""
    folders = [(f"{group}/cpu.max", "") for group in _groups()]
    folders += [(f"{group}/cpu.cfs_quota_us", f"{group}/cpu.cfs_period_us") for group in _groups("cpu")]
    found = [f"{_read(quota)} {_read(period) if period else ''}".split() for quota, period in folders]
    numbers = [(int(pair[0]), int(pair[1])) for pair in found if len(pair) == 2 and all(map(str.isdigit, pair))]
    return [-(-quota // period) for quota, period in numbers if quota > 0 and period > 0]


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


def _siblings(cpu: int) -> list[int]:
    """The CPUs of this one's physical core, as far as the system tells."""
    folder = f"{CPUS}/cpu{cpu}/topology"
    return parse_cpus(_read(f"{folder}/core_cpus_list") or _read(f"{folder}/thread_siblings_list"))


def parse_cpus(text: str) -> list[int]:
    """The kernel's list of CPUs ("0-3,8") as numbers; nothing for what is no such list."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            return []
        found += range(int(first), int(last or first) + 1)
    return found


def format_cpus(cpus: Iterable[int]) -> str:
    """Numbers as the kernel lists CPUs: "0-3,8"."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _groups(controller: str = "") -> list[str]:
    """Folders of the cgroups that hold this process, from its own to the root; each of them may set limits. They are those of version 2, or
    of version 1's hierarchy with `controller`."""
    own = "/"
    for line in _read("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            own = path
    folder = PurePosixPath(own)
    return [str(PurePosixPath(CGROUPS, controller, *each.parts[1:])) for each in (folder, *folder.parents)]


def _memory() -> list[tuple[int, int]]:
    """The memory limits that hold, each with what is used of it and could not be dropped at once, in bytes."""
    files = [(f"{group}/memory.max", f"{group}/memory.current", f"{group}/memory.stat", "") for group in _groups()]
    for group in _groups("memory"):
        files.append((f"{group}/memory.limit_in_bytes", f"{group}/memory.usage_in_bytes", f"{group}/memory.stat", "total_"))
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
