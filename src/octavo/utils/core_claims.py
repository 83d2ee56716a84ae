"""Which engines of this machine compute on which cores.

Every engine holds a socket without a file (an abstract one, which Linux alone has) whose name tells its cores, and finds the others' in
/proc/net/unix. So nothing is left behind however a process ends, no file system has to be writable, and engines of other users are seen
too. Containers with a network of their own don't see each other. Where there are no such sockets, nobody is found.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX = "octavo-cores"
# Cores that one socket's name tells of; a name has at most 107 bytes.
CORES_A_NAME = 128
# How long an engine waits while another one chooses its cores.
CHOOSING_SECONDS = 0.5
_NAME = re.compile(
    rf"@{PREFIX}/(?P<space>\d{{1,19}})/(?P<pid>\d{{1,9}})\.\d+/(?P<first>\d{{1,9}})/(?P<mask>[0-9a-f]{{1,{CORES_A_NAME // 4}}})$",
    re.MULTILINE,
)
_serials = itertools.count()


@dataclass(frozen=True, slots=True)
class Claim:
    """Cores of an engine: core `first` + i where bit i of `mask` is set. `pid` is its process's number in the pid namespace `space`."""

    space: int
    pid: int
    first: int
    mask: int

    def holds(self, core: int) -> bool:
        """Whether that core is among them."""
        return core >= self.first and bool(self.mask >> (core - self.first) & 1)

    @property
    def is_here(self) -> bool:
        """Whether its process has the same number for this one."""
        return self.space == _pid_space()


class HeldClaim:
    """A claim of this process, until `close` or the process's end."""

    def __init__(self, cores: Iterable[int]) -> None:
        self._descriptors: list[int] = []
        masks: dict[int, int] = {}
        for core in cores:
            first = core - core % CORES_A_NAME
            masks[first] = masks.get(first, 0) | 1 << core - first
        stem = f"{PREFIX}/{_pid_space()}/{os.getpid()}.{next(_serials)}"
        for first, mask in masks.items():
            # A system that refuses such a socket runs engines all the same.
            with contextlib.suppress(OSError):
                self._descriptors.append(_bound(f"{stem}/{first}/{mask:x}"))

    def close(self) -> None:
        """Gives the cores free. May be called twice."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    __del__ = close


def claim_cores(choose: Callable[[list[Claim]], Iterable[int]]) -> HeldClaim:
    """Claims the cores that `choose` picks, which is told what others have claimed. Engines that start at once choose one after another."""
    if sys.platform != "linux":
        choose([])
        return HeldClaim(())
    with _turn_to_choose():
        return HeldClaim(choose(claims()))


def claims() -> list[Claim]:
    """The claims of all engines that can be seen, this process's among them."""
    try:
        text = Path("/proc/net/unix").read_text(errors="replace")
    except OSError:
        return []
    found = [Claim(int(name["space"]), int(name["pid"]), int(name["first"]), int(name["mask"], 16)) for name in _NAME.finditer(text)]
    # A process that was forked off goes on holding its parent's sockets.
    return [claim for claim in found if not claim.is_here or _lives(claim.pid)]


def server_of(pid: int) -> int:
    """The process to which a user knows this engine to belong: a server's engine is its child."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return pid
    parent = re.search(r"^PPid:\s*(\d+)$", status, re.MULTILINE)
    return int(parent[1]) if b"octavo.engine.process" in command and parent and parent[1] not in ("0", "1") else pid


@contextlib.contextmanager
def _turn_to_choose() -> Iterator[None]:
    """Holds a name that only one process can hold. Goes on without it if somebody never gives it free."""
    until = time.monotonic() + CHOOSING_SECONDS
    descriptor = None
    while descriptor is None and time.monotonic() < until:
        try:
            descriptor = _bound(f"{PREFIX}-choosing")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                break
            time.sleep(0.005)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _bound(name: str) -> int:
    """The descriptor of an abstract socket of that name. Raises OSError if there can't be one, or the name is held."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(f"\0{name}")
        return made.detach()


def _pid_space() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
