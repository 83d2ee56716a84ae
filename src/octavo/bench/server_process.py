"""`octavo serve` as a child process: started, waited for, measured and surely ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from octavo.protocol.errors import EngineDeadError

READY = re.compile(r"^Octavo \S+ serves .* at (http://\S+)")
STOP_SECONDS = 15.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a process in bytes; `own` is what no file backs."""

    resident: int
    own: int


class ServerProcess:
    """A server of this Octavo, on a port of 127.0.0.1 that the system chooses, for as long as `with` lasts.

    `arguments` follow `octavo serve`. Raises EngineDeadError if it ends, or is not ready within `start_seconds`. It is told to end when
    this process dies, whichever way (on Linux).
    """

    def __init__(self, arguments: Sequence[str], *, start_seconds: float = 300.0) -> None:
        self._command = [sys.executable, "-m", "octavo", "serve", *arguments, "--host", "127.0.0.1", "--port", "0"]
        self._start_seconds = start_seconds
        self.url = ""
        self.started = 0.0  # time.perf_counter() when the process was asked for
        self.ready = 0.0  # and when it said that it serves

    def __enter__(self) -> ServerProcess:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        path = os.pathsep.join(part for part in (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")) if part)
        self.started = time.perf_counter()
        # A session of its own keeps a Ctrl-C at the terminal from it: it is this process that tells it to end.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        process = self._process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._reader.join()
        if process.stdout is not None:
            process.stdout.close()
        self._errors.close()

    @property
    def pid(self) -> int:
        """The HTTP server's process id."""
        return self._process.pid

    @property
    def engine_pid(self) -> int | None:
        """The engine's process id; None where the system does not tell."""
        try:
            words = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except OSError:
            return None
        return int(words[0]) if words else None

    def _wait_ready(self) -> None:
        told = threading.Event()

        def read() -> None:
            # Goes on to the end, so that the server never waits for a reader.
            for line in self._process.stdout or ():
                if found := READY.match(line):
                    self.ready = time.perf_counter()
                    self.url = found[1]
                    told.set()
            told.set()

        self._reader = threading.Thread(target=read, name="octavo-bench-reader", daemon=True)
        self._reader.start()
        if not told.wait(self._start_seconds):
            raise EngineDeadError(f"octavo serve did not start: it was not ready within {self._start_seconds:g} s")
        if not self.url:
            raise EngineDeadError(f"octavo serve did not start: {self._last_words()}")

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Its output has ended, so it is about to.
            self._process.wait(STOP_SECONDS)
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.poll()}"


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def memory_of(pid: int) -> Memory | None:
    """Memory of a process; None where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = dict(re.findall(r"^(VmRSS|RssAnon):\s*(\d+) kB", text, re.MULTILINE))
    return Memory(int(found["VmRSS"]) * 1024, int(found["RssAnon"]) * 1024) if len(found) == 2 else None


def cpu_seconds(pid: int) -> float | None:
    """Processor time that a process has used; None where the system does not tell."""
    try:
        # The name in parentheses may hold spaces.
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
