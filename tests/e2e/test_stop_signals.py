"""How a server ends on purpose, and how it does not start."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from patience import patient
from processes import is_alive, wait_until
from serve_process import UNHURRIED, LiveServer
from sse import connect, events, post_bytes

Start = Callable[..., LiveServer]


@pytest.fixture
def start(long_llama: Path) -> Iterator[Start]:
    """Starts servers, of which nothing may be left in the end."""
    with ExitStack() as stack:
        started: list[LiveServer] = []

        def make(*arguments: str) -> LiveServer:
            started.append(stack.enter_context(LiveServer(long_llama, *UNHURRIED, "--kv-cache-memory", "64MiB", *arguments)))
            return started[-1]

        yield make
        for live in started:
            wait_until(lambda live=live: not any(map(is_alive, live.pids)), 5, "every process has ended")  # type: ignore[misc]
            assert "Traceback" not in live.stderr
            assert live.left_behind == []


def stream(server: LiveServer, tokens: int) -> list[dict[str, Any]]:
    """The events of a streamed completion, which must be whole."""
    body = {"prompt": "The cat", "temperature": 0, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.status_code == 200
        return list(events(reply.iter_lines()))


def refuses(server: LiveServer) -> bool:
    """Whether a new request is told that the server stops, and so is who asks for its health."""
    with server.client() as client:
        replies = [client.post("/tokenize", json={"prompt": "x"}), client.get("/health")]
    if any(reply.status_code != 503 for reply in replies):
        return False
    assert all(reply.headers["retry-after"] == "1" and reply.json()["error"]["code"] == "shutting_down" for reply in replies)
    return True


@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(os.kill, signal.SIGTERM, id="SIGTERM"),
        # Ctrl-C at a terminal reaches a whole group of processes; it is the server that tells the engine when to stop.
        pytest.param(os.killpg, signal.SIGINT, id="Ctrl-C"),
    ],
)
def test_running_streams_finish_and_new_ones_are_refused(start: Start, send: Callable[[int, int], None], number: signal.Signals) -> None:
    server = start()
    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(stream, server, 300) for _ in range(4)]
        wait_until(lambda: server.metrics()["vllm:num_requests_running"] == 4, 30)
        # So that none of them ends before it was looked at.
        os.kill(server.engine_pid, signal.SIGSTOP)
        send(server.process.pid, number)
        wait_until(lambda: refuses(server), 2, "new requests are refused")
        assert not any(future.done() for future in streams)
        assert server.metrics()["vllm:num_requests_running"] == 4
        os.kill(server.engine_pid, signal.SIGCONT)
        found = [future.result(30) for future in streams]
    assert [choices[-1]["choices"][0]["finish_reason"] for choices in found] == ["length"] * 4
    assert server.wait() == 0


def test_the_time_to_finish_is_bounded(start: Start) -> None:
    server = start("--shutdown-timeout", "0.5")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream, server, 8000)
        wait_until(lambda: server.metrics()["vllm:num_requests_running"] == 1, 30)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < patient(6)
        *_, last = running.result(5)
    assert last["error"]["type"] == "service_unavailable"
    assert "shutting down" in last["error"]["message"]


def test_a_second_signal_does_not_wait(start: Start) -> None:
    server = start()
    connection = connect(server)
    connection.sendall(post_bytes("/v1/completions", {"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}))
    assert connection.recv(1)
    server.process.send_signal(signal.SIGINT)
    wait_until(lambda: refuses(server), 2, "new requests are refused")
    assert server.process.poll() is None
    began = time.monotonic()
    assert server.stop(signal.SIGINT) == 0
    assert time.monotonic() - began < patient(6)
    connection.close()


@pytest.mark.parametrize("delay", [0.0, 0.2, 0.7])
def test_a_signal_while_it_starts(long_llama: Path, delay: float) -> None:
    """In whatever stage, from the command's first moment on, which the interpreter may take a while to come to."""
    code = (
        "import octavo.cli.main as entry, sys\n"
        "begin = entry.open_closed_streams\n"
        "entry.open_closed_streams = lambda: (print('up', flush=True), begin())\n"
        "entry.main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "serve", str(long_llama), *UNHURRIED, "--port", "0"]
    with LiveServer(long_llama, command=command, ready=False) as server:
        wait_until(lambda: server.stdout.startswith("up\n"), 30, "it has begun")
        time.sleep(delay)
        os.killpg(server.process.pid, signal.SIGINT)
        assert server.wait(10) in (0, 130)
        assert "Traceback" not in server.stderr
        assert server.left_behind == []


def test_a_port_that_is_taken(start: Start, tmp_path: Path) -> None:
    """Seen before any model is looked for. Its idle owner stops at once, a connection that is kept open or not."""
    first = start()
    began = time.monotonic()
    with LiveServer(tmp_path / "no-such-model", "--port", str(first.port), ready=False) as second:
        assert second.wait(10) == 1
        assert time.monotonic() - began < patient(5)
        assert second.stderr.splitlines() == [f"octavo: can't listen on 127.0.0.1 port {first.port}: Address already in use"]
        assert second.stdout == ""
    with first.client() as kept_open:
        assert kept_open.get("/health").status_code == 200
        began = time.monotonic()
        assert first.stop() == 0
        assert time.monotonic() - began < patient(3)
