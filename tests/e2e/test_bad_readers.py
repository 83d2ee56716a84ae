"""Clients that vanish or hardly read: they cost no blocks and hold up nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import patient
from processes import wait_until
from serve_process import UNHURRIED, LiveServer
from sse import connect, events, post_bytes, read_all, reset_on_close, unchunk

ABORTED = 'vllm:request_success_total{finished_reason="abort"}'


@pytest.fixture(scope="module")
def server(long_llama: Path) -> Iterator[LiveServer]:
    """A context of 8,192 tokens, so that requests last."""
    with LiveServer(long_llama, *UNHURRIED, "--kv-cache-memory", "64MiB") as live:
        yield live
        assert live.stop() == 0
        assert "Traceback" not in live.stderr


def endless(**fields: Any) -> dict[str, Any]:
    return {"prompt": "The cat", "temperature": 0, "max_tokens": 8000, "ignore_eos": True, **fields}


def is_idle(server: LiveServer) -> bool:
    now = server.metrics()
    return now["vllm:num_requests_running"] == now["vllm:num_requests_waiting"] == now["vllm:kv_cache_usage_perc"] == 0


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": True, "n": 3, "temperature": 1}, {"stream": False}], ids=str)
def test_a_client_that_vanishes(server: LiveServer, fields: dict[str, Any], reset: bool) -> None:
    aborted = server.metrics()[ABORTED]
    connection = connect(server)
    connection.sendall(post_bytes("/v1/completions", endless(**fields)))
    if fields["stream"]:
        assert connection.recv(1)
    wait_until(lambda: server.metrics()["vllm:num_requests_running"] == fields.get("n", 1), 20)
    assert server.metrics()["vllm:kv_cache_usage_perc"] > 0
    if reset:
        reset_on_close(connection)
    connection.close()
    wait_until(lambda: is_idle(server), 1, "its blocks are free")
    assert server.metrics()[ABORTED] == aborted + 1


def test_many_clients_that_vanish_while_others_stay(server: LiveServer) -> None:
    """More requests than the cache has room for, most of which end while they wait."""
    stays = endless(max_tokens=50, stream=False)
    with server.client() as client:
        expected = client.post("/v1/completions", json=stays).json()["choices"]
        connections = [connect(server) for _ in range(80)]
        for connection in connections:
            connection.sendall(post_bytes("/v1/completions", endless(stream=True)))
        wait_until(lambda: server.metrics()["vllm:num_requests_waiting"] > 0, 30)
        for connection in connections:
            connection.close()
        assert client.post("/v1/completions", json=stays).json()["choices"] == expected
    wait_until(lambda: is_idle(server), 2, "everything is free")


def test_a_client_that_reads_slowly(server: LiveServer) -> None:
    """What it asked for is far more than the sockets between hold, so the server must wait for it, and for it alone."""
    request = endless(max_tokens=800, stream=True, logprobs=20)
    connection = connect(server, receive_buffer=4096)
    connection.sendall(post_bytes("/v1/completions", request))
    start = connection.recv(64)
    with server.client() as client:
        quick = endless(max_tokens=20, stream=False)
        began = time.monotonic()
        for _ in range(3):
            assert client.post("/v1/completions", json=quick).status_code == 200
        assert time.monotonic() - began < patient(5)
        # The engine ends the request and frees its blocks, however little of it was read.
        wait_until(lambda: is_idle(server), 20)
        expected = client.post("/v1/completions", json={**request, "stream": False}).json()["choices"][0]
    body = unchunk(start + read_all(connection))
    connection.close()
    choices = [event["choices"][0] for event in events(body.decode().splitlines())]
    assert "".join(choice["text"] for choice in choices) == expected["text"]
    found = [value for choice in choices if choice["logprobs"] for value in choice["logprobs"]["token_logprobs"]]
    assert found == expected["logprobs"]["token_logprobs"]
    assert choices[-1]["finish_reason"] == "length"
    # What it had not taken was put together instead of being queued.
    assert len(choices) < 800
    assert len(body) > 500_000
