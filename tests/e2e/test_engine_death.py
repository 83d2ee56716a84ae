"""kill -9 of the engine or of the server: everybody is told at once and nothing stays behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from patience import patient
from processes import is_alive, wait_until
from serve_process import UNHURRIED, LiveServer
from sse import connect, post_bytes, read_all

LONG = {"prompt": "The cat", "temperature": 0, "max_tokens": 8000, "ignore_eos": True}


@pytest.fixture
def doomed(long_llama: Path) -> Iterator[LiveServer]:
    with LiveServer(long_llama, *UNHURRIED, "--kv-cache-memory", "64MiB") as live:
        yield live
        wait_until(lambda: not any(map(is_alive, live.pids)), 5, "every process has ended")
        assert live.left_behind == []


def wait_for(server: LiveServer, running: int) -> None:
    wait_until(lambda: server.metrics()["vllm:num_requests_running"] == running, 30, f"{running} requests run")


def whole(server: LiveServer) -> tuple[int, Any, float]:
    """(status, body, when it came) of a request that is not streamed."""
    reply = server.http.post("/v1/completions", json=LONG)
    return reply.status_code, reply.json(), time.monotonic()


def streamed(server: LiveServer) -> tuple[int, list[str], float]:
    """(status, events, when the last one came) of a streamed request."""
    with server.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as reply:
        lines = [line for line in reply.iter_lines() if line]
        return reply.status_code, lines, time.monotonic()


def by_openai(server: LiveServer) -> tuple[type[Exception], float]:
    """The error that the openai package makes of it."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=server.client()) as client:
        stream: Any = client.chat.completions.create(
            model=server.model, messages=[{"role": "user", "content": "x"}], stream=True, extra_body={"ignore_eos": True}
        )
        try:
            for _ in stream:
                pass
        except openai.APIError as error:
            return type(error), time.monotonic()
    raise AssertionError("no error came")


def test_kill_of_the_engine(doomed: LiveServer) -> None:
    engine = doomed.engine_pid
    with ThreadPoolExecutor(12) as pool:
        wholes = [pool.submit(whole, doomed) for _ in range(4)]
        streams = [pool.submit(streamed, doomed) for _ in range(4)]
        openais = [pool.submit(by_openai, doomed) for _ in range(2)]
        wait_for(doomed, 10)
        os.kill(engine, signal.SIGKILL)
        killed = time.monotonic()
        for future in wholes:
            status, body, at = future.result(patient(10))
            assert status == 503
            assert body["error"]["type"] == "service_unavailable"
            assert "engine" in body["error"]["message"]
            assert at - killed < patient(2)
        for stream in streams:
            status, lines, at = stream.result(patient(10))
            assert status == 200
            assert lines[-1] == "data: [DONE]"
            assert '"error"' in lines[-2]
            assert "service_unavailable" in lines[-2]
            assert '"error"' not in "".join(lines[:-2])
            assert at - killed < patient(2)
        for future_error in openais:
            kind, at = future_error.result(patient(10))
            assert issubclass(kind, openai.APIError)
            assert at - killed < patient(2)
    try:
        health = doomed.http.get("/health").status_code
    except httpx.TransportError:
        health = 503  # already gone
    assert health == 503
    assert doomed.wait(patient(5) - (time.monotonic() - killed)) == 1
    assert "the engine" in doomed.stderr
    assert "Traceback" not in doomed.stderr


def test_health_and_new_requests_after_the_engines_death(long_llama: Path) -> None:
    """Probes that are there in the moment between see a 503. Here that is a long moment, for the sake of a busy machine."""
    code = "import octavo.server.run as run, sys; run.DEATH_SECONDS = 4.0; from octavo.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "serve", str(long_llama), *UNHURRIED, "--kv-cache-memory", "64MiB", "--port", "0"]
    with LiveServer(long_llama, command=command) as doomed, doomed.client() as client:
        assert client.get("/health").status_code == 200
        os.kill(doomed.engine_pid, signal.SIGKILL)
        wait_until(lambda: client.get("/health").status_code == 503, 1, "/health says so")
        reply = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        assert reply.status_code == 503
        assert reply.json()["error"]["type"] == "service_unavailable"
        errors = [line for line in client.get("/metrics").text.splitlines() if line.startswith("octavo:http_errors_total")]
        assert errors
        assert doomed.wait(9) == 1


def test_a_client_that_does_not_read_does_not_keep_a_dead_server_alive(doomed: LiveServer) -> None:
    connection = connect(doomed, receive_buffer=4096)
    connection.sendall(post_bytes("/v1/completions", {**LONG, "stream": True, "logprobs": 20}))
    connection.recv(16)
    time.sleep(1)
    os.kill(doomed.engine_pid, signal.SIGKILL)
    assert doomed.wait(8) == 1
    connection.close()


def test_a_stopped_engine_holds_up_no_probe(doomed: LiveServer) -> None:
    """HTTP is answered by a process of its own, whatever the engine is doing."""
    os.kill(doomed.engine_pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert doomed.http.get("/v1/models").status_code == 200
        assert doomed.http.post("/tokenize", json={"prompt": "The cat"}).json()["count"] == 3
        assert time.monotonic() - began < patient(2)
    finally:
        os.kill(doomed.engine_pid, signal.SIGCONT)
    assert doomed.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
    assert doomed.stop() == 0


def test_kill_of_the_server(doomed: LiveServer) -> None:
    engine = doomed.engine_pid
    connection = connect(doomed)
    connection.sendall(post_bytes("/v1/completions", {**LONG, "stream": True}))
    assert connection.recv(1)
    doomed.process.kill()
    assert doomed.wait(5) == -signal.SIGKILL
    wait_until(lambda: not is_alive(engine), 2, "the engine has ended")
    read_all(connection)
    connection.close()
