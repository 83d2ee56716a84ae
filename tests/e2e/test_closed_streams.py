"""`octavo serve` as a service manager may start it: with standard streams closed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_it_serves_and_stops(tiny_llama: Path, tmp_path: Path, closed: str) -> None:
    port = free_port()
    command = [sys.executable, "-m", "octavo", "serve", str(tiny_llama), "--port", str(port)]
    said = tmp_path / "said"
    with said.open("wb") as log:
        process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            start_new_session=True,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, verify=False, trust_env=False) as client:
            deadline = time.monotonic() + 60
            while True:
                assert process.poll() is None, said.read_text()
                assert time.monotonic() < deadline, said.read_text()
                try:
                    assert client.get("/health").status_code == 200
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            reply = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
            assert reply.json()["usage"]["completion_tokens"] == 2
        process.terminate()
        assert process.wait(20) == 0, said.read_text()
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in said.read_text()
