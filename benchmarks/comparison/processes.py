"""Child processes that are surely ended, with all that they started."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

STOP_SECONDS = 30.0
# For what it started to end by itself. Python's resource tracker is the one that frees shared memory, once all who used it have ended.
REST_SECONDS = 10.0
# Intel's OpenMP names shared memory by the process's id, and leaves it there when the process is killed, as vLLM kills its own.
SHARED_MEMORY = Path("/dev/shm")
OPENMP_MARK = "__KMP_REGISTERED_LIB_"
_LONGEST_SAID = 300
_PR_SET_PDEATHSIG = 1


class RunError(Exception):
    """A child that failed, in a sentence. `output` is what it had written to standard output."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class Child:
    """A process in a group of its own, for as long as `with` lasts. `pid` is also the group's number.

    It is told to end when this process dies, whichever way (on Linux). `said()` is all that it wrote to standard error.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], *, stdin: str = "", stdout: IO[str] | None = None) -> None:
        self._command, self._variables, self._stdin, self._stdout = command, variables, stdin, stdout

    def __enter__(self) -> Child:
        with contextlib.ExitStack() as stack:
            self._errors = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            given = stack.enter_context(tempfile.TemporaryFile("w+"))
            given.write(self._stdin)
            given.seek(0)
            self._marks_before = _openmp_marks()
            self.started = time.perf_counter()
            self.process = subprocess.Popen(
                self._command,
                stdin=given,
                stdout=self._stdout if self._stdout is not None else self._errors,
                stderr=self._errors,
                env={**os.environ, **self._variables},
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
            self._files = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        process = self.process
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        self._wait_for_the_rest()
        # Whoever of the group is left: the process itself if it did not listen, and its children. Trackers end with the last of the others.
        for pid in _members(process.pid):
            if b"resource_tracker" not in _command_of(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        self._wait_for_the_rest()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for mark in _openmp_marks() - self._marks_before:
            if not Path(f"/proc/{mark.name.removeprefix(OPENMP_MARK).partition('_')[0]}").exists():
                mark.unlink(missing_ok=True)
        self._files.close()

    def _wait_for_the_rest(self) -> None:
        end = time.perf_counter() + REST_SECONDS
        while time.perf_counter() < end:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.02)

    def said(self) -> str:
        """Standard error so far."""
        self._errors.seek(0)
        return self._errors.read()

    def last_words(self) -> str:
        """The last line of it."""
        lines = self.said().strip().splitlines()
        return lines[-1].strip()[:_LONGEST_SAID] if lines else "it says nothing"


def run(command: Sequence[str], variables: Mapping[str, str], timeout: float, *, stdin: str = "") -> str:
    """Runs a command to its end; what it wrote to standard output. Raises RunError if it ends badly, or not within `timeout` seconds."""
    with tempfile.TemporaryFile("w+", errors="replace") as stdout, _child(command, variables, stdin, stdout) as child:
        try:
            status = child.process.wait(timeout)
            problem = "" if status == 0 else f"{_ended(status)}: {child.last_words()}"
        except subprocess.TimeoutExpired:
            problem = f"not finished within {timeout:g} s"
        stdout.seek(0)
        output = stdout.read()
        if problem:
            raise RunError(problem, output)
        return output


@contextlib.contextmanager
def _child(command: Sequence[str], variables: Mapping[str, str], stdin: str, stdout: IO[str]) -> Iterator[Child]:
    try:
        with Child(command, variables, stdin=stdin, stdout=stdout) as child:
            yield child
    except OSError as error:
        raise RunError(f"{command[0]} can't be started: {error.strerror or error}") from None


def json_lines(text: str) -> list[dict[str, Any]]:
    """The JSON objects among the lines of `text`; a line that broke off is none."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


def _members(group: int) -> list[int]:
    """The processes of a group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[2]) == group:
                found.append(int(stat.parent.name))
    return found


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _openmp_marks() -> set[Path]:
    return set(SHARED_MEMORY.glob(f"{OPENMP_MARK}*"))


def _ended(status: int) -> str:
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"exit status {status}"


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
