"""`octavo serve` in a process of its own, on a loopback port that the system chooses."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from patience import patient
from processes import children, is_alive

READY = re.compile(r"^Octavo \S+ serves .* at http://127\.0\.0\.1:(\d+)\b.*$", re.MULTILINE)
START_SECONDS = 60.0
STOP_SECONDS = 15.0


# For tests that act while a request runs: on the native backend hundreds of tokens of a small model take milliseconds.
UNHURRIED = ("--backend", "reference")


class LiveServer:
    """Started when `with` is entered, and by then answering unless `ready` is false; gone with its engine when it is left.

    `arguments` follow `octavo serve MODEL`, unless there is a whole `command`. Its
    temporary files lie in a folder of its own, and `left_behind` names those still there.
    `http` is a client of it, for any number of threads.
    """

    def __init__(
        self, model: str | Path, *arguments: str, ready: bool = True, command: Sequence[str] = (), cwd: Path | None = None
    ) -> None:
        self.model = str(model)
        self._command = [sys.executable, "-m", "octavo", "serve", str(model), *arguments]
        if "--port" not in arguments:
            self._command += ["--port", "0"]
        if command:
            self._command = list(command)
        self._cwd = cwd
        self._ready = ready
        self._out, self._err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self._said = ("", "")
        self._folder = Path(tempfile.mkdtemp(prefix="serve-"))
        self.pids: set[int] = set()
        self.port = 0

    def __enter__(self) -> LiveServer:
        # A session of its own keeps a Ctrl-C at the tests' terminal from it.
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env={**os.environ, "TMPDIR": str(self._folder)},
            cwd=self._cwd,
            start_new_session=True,
        )
        self.pids.add(self.process.pid)
        try:
            if self._ready:
                self._wait_ready()
        except BaseException:
            print(self.output())
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            print(self.output())
        for pid in self.pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)
        self._said = (self.stdout, self.stderr)
        shutil.rmtree(self._folder)
        if self.port:
            self.http.close()
        self._out.close()
        self._err.close()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while (found := READY.search(self.stdout)) is None:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.output()}"
            assert time.monotonic() < deadline, f"the server is not ready:\n{self.output()}"
            time.sleep(0.02)
        self.port = int(found[1])
        self.pids.add(self.engine_pid)
        self.http = self.client()
        assert self.http.get("/health").status_code == 200

    @property
    def left_behind(self) -> list[str]:
        return [path.name for path in self._folder.iterdir()]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine_pid(self) -> int:
        (pid,) = children(self.process.pid)
        assert "octavo.engine.process" in Path(f"/proc/{pid}/cmdline").read_text()
        return pid

    @property
    def stdout(self) -> str:
        return self._said[0] if self._out.closed else _read(self._out)

    @property
    def stderr(self) -> str:
        return self._said[1] if self._err.closed else _read(self._err)

    def client(self) -> httpx.Client:
        """Another client of it. It reads no certificates, which would take longer than most requests."""
        return httpx.Client(base_url=self.url, timeout=patient(30), verify=False, trust_env=False)

    def output(self) -> str:
        """Everything it has said so far."""
        return f"--- stdout of octavo serve\n{self.stdout}\n--- stderr of octavo serve\n{self.stderr}\n---"

    def stop(self, number: int = signal.SIGTERM, seconds: float = STOP_SECONDS) -> int:
        """Sends a signal; the exit code."""
        self.process.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """The exit code, which must come within `seconds`."""
        try:
            return self.process.wait(patient(seconds))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server did not end within {patient(seconds):g} s:\n{self.output()}") from None

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics; a series that is labelled further than by model and engine has these labels in its name."""
        found = {}
        for line in self.http.get("/metrics").text.splitlines():
            if not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                found[re.sub(r'(model_name|engine)="[^"]*",?', "", series).replace("{}", "").replace(",}", "}")] = float(value)
        return found


def _read(file: Any) -> str:
    text: str = os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")
    return text
