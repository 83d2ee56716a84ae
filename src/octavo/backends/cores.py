"""Which cores an engine computes on: how many threads, on which CPUs, and who else is there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from itertools import chain, zip_longest

from octavo.protocol.errors import ConfigError
from octavo.utils.core_claims import Claim, claim_cores, server_of
from octavo.utils.machine import cpu_quotas, format_cpus, physical_cores, usable_cores


class EngineCores:
    """The cores of one engine, claimed until `close`: those that the fewest other engines compute on, the lowest first.

    `threads` is how many threads there are (0 asks for one for each usable core), `pinned` the CPU that each is pinned to, or nothing while
    they may run anywhere. `notes` say who else computes on these cores.
    """

    def __init__(self, threads: int = 0) -> None:
        self.threads = threads or usable_cores()
        self.pinned: list[int] = []
        self.notes: list[str] = []
        self._cpus: list[int] = []
        self._held = claim_cores(self._choose)

    def pin(self, wish: bool | None) -> list[int]:
        """Pins the threads, and returns where to; a thread has a core of its own as long as there are any.

        Without a wish they are pinned where each gets a CPU and no cgroup's quota holds: a quota is a share of time and not of cores, and
        containers that can't see one another would all choose the same. Raises ConfigError for a wish that can't be met.
        """
        enough = self.threads <= len(self._cpus)
        if wish and sys.platform != "linux":
            raise ConfigError("pin_threads: must not be asked for on this system, which pins no threads", param="pin_threads")
        if wish and not enough:
            raise ConfigError(
                f"pin_threads: can't be with {self.threads} threads on {len(self._cpus)} CPUs; ask for fewer threads", param="pin_threads"
            )
        if wish or (wish is None and sys.platform == "linux" and enough and not cpu_quotas()):
            self.pinned = self._cpus[: self.threads]
        return self.pinned

    def describe(self) -> str:
        """Like "2 threads pinned to CPUs 0-1"."""
        count = f"{self.threads} thread{_s(self.threads)}"
        return f"{count} pinned to CPU{_s(self.threads)} {format_cpus(self.pinned)}" if self.pinned else f"{count} not pinned"

    def close(self) -> None:
        """Gives the cores free. May be called twice."""
        self._held.close()

    def _choose(self, others: list[Claim]) -> list[int]:
        machine = physical_cores()
        sharers = {core: {claim for claim in others if claim.holds(core)} for core in machine}
        cores = sorted(sorted(machine, key=lambda core: len(sharers[core]))[: self.threads])
        self._cpus = _in_turn(machine[core] for core in cores)
        shared = [core for core in cores if sharers[core]]
        if shared:
            self.notes.append(_shared_note([machine[core][0] for core in shared], set().union(*(sharers[core] for core in shared))))
        return cores


def _in_turn(lists: Iterable[list[int]]) -> list[int]:
    """The first of each list, then the second of each, and so on."""
    return [item for item in chain.from_iterable(zip_longest(*lists)) if item is not None]


def _shared_note(cpus: list[int], claims: set[Claim]) -> str:
    here = sorted({server_of(claim.pid) for claim in claims if claim.is_here})
    names = ["another engine of this process" if pid in (os.getpid(), server_of(os.getpid())) else f"process {pid}" for pid in here]
    if any(not claim.is_here for claim in claims):
        names.append("an engine in another container")
    verb = "is" if len(cpus) == 1 else "are"
    return (
        f"CPU{_s(len(cpus))} {format_cpus(cpus)} {verb} also used by {' and '.join(names)}, and each slows the other down: "
        "give them fewer threads (--threads) or CPUs of their own (taskset -c)"
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"
