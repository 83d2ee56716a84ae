"""A program on a pseudo-terminal, driven as a person would."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

FAKE = Path(__file__).with_name("fake_async_llm.py")


class Terminal:
    """`python fake_async_llm.py ARGS` with its stdin, stdout and stderr on one terminal of its own."""

    def __init__(self, *args: str, seconds: float = 30) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(FAKE), *args], stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment
        )
        os.close(slave)
        self._deadline = time.monotonic() + seconds
        self._seen = 0
        self.text = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def expect(self, wanted: str) -> str:
        """Reads until `wanted` shows up after what earlier calls found; returns the text up to it."""
        while (at := self.text.find(wanted, self._seen)) < 0:
            if not self._read():
                raise AssertionError(f"{wanted!r} did not appear; the terminal shows {self.text!r}")
        found = self.text[self._seen : at]
        self._seen = at + len(wanted)
        return found

    def press(self, keys: str, wanted: str) -> None:
        """Types `keys` until `wanted` shows up: a signal just before the program waits for input is seen only at the next key."""
        while self.text.find(wanted, self._seen) < 0 and time.monotonic() < self._deadline:
            self.type(keys)
            if select.select([self._master], [], [], 0.5)[0]:
                self._read()
        self.expect(wanted)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait(self) -> int:
        """The exit code, once the program has ended."""
        while self._read():
            pass
        return self.process.wait(timeout=max(1, self._deadline - time.monotonic()))

    def _read(self) -> bool:
        left = self._deadline - time.monotonic()
        if left <= 0 or not select.select([self._master], [], [], left)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side has closed
            return False
        self.text += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)
