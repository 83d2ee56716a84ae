"""A request whose time is over leaves nothing in the engine: not its blocks, not its seat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import wait_until
from serve_process import UNHURRIED, LiveServer
from sse import events

BODY = {"prompt": "The cat", "max_tokens": 8000, "ignore_eos": True, "temperature": 0, "timeout": 1.0}


@pytest.fixture(scope="module")
def slow(long_llama: Path) -> Iterator[LiveServer]:
    """One seat, and one place in the queue."""
    options = ("--max-num-seqs", "1", "--max-queued-requests", "1", "--kv-cache-memory", "64MiB")
    with LiveServer(long_llama, *UNHURRIED, *options) as live:
        yield live
        assert live.stop() == 0
        assert live.left_behind == []
        assert "Traceback" not in live.stderr


def idle(server: LiveServer) -> bool:
    metrics = server.metrics()
    return metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == metrics["vllm:kv_cache_usage_perc"] == 0


def test_whole_and_streamed(slow: LiveServer) -> None:
    reply = slow.http.post("/v1/completions", json=BODY)
    assert (reply.status_code, reply.json()["error"]["code"]) == (408, "timeout")
    wait_until(lambda: idle(slow), 10)
    with slow.http.stream("POST", "/v1/completions", json={**BODY, "timeout": 3.0, "stream": True}) as streamed:
        assert streamed.status_code == 200
        *pieces, last = events(streamed.iter_lines())
    assert last["error"]["code"] == "timeout"
    assert len(pieces) > 1
    wait_until(lambda: idle(slow), 10)
    # The seat is free.
    assert slow.http.post("/v1/completions", json={**BODY, "max_tokens": 2, "timeout": 30}).status_code == 200


def test_one_that_waits_for_a_seat(slow: LiveServer) -> None:
    with slow.http.stream("POST", "/v1/completions", json={**BODY, "stream": True, "timeout": 60}) as running:
        # Kept while the stream is to run: an iterator of httpx that nothing refers to closes its connection.
        lines = running.iter_lines()
        assert next(lines)
        wait_until(lambda: slow.metrics()["vllm:num_requests_running"] == 1, 10)
        reply = slow.http.post("/v1/completions", json={**BODY, "timeout": 0.5})
        assert reply.status_code == 408
        wait_until(lambda: slow.metrics()["vllm:num_requests_waiting"] == 0, 10)
        assert slow.metrics()["vllm:num_requests_running"] == 1
        assert next(lines) == ""
    wait_until(lambda: idle(slow), 10)
