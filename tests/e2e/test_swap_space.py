"""Requests of a server that has too few blocks for them, and swap space beside these."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import wait_until
from serve_process import UNHURRIED, LiveServer
from sse import connect, post_bytes

BLOCKS = 20


@pytest.fixture(scope="module")
def server(long_llama: Path) -> Iterator[LiveServer]:
    """Three requests that grow to 251 tokens, in a pool of 320."""
    arguments = ("--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "256", "--swap-space", "64MiB", "--preemption-mode", "swap")
    with LiveServer(long_llama, *UNHURRIED, *arguments) as live:
        yield live
        assert live.stop() == 0
        assert "Traceback" not in live.stderr


def body(token: int) -> dict[str, object]:
    return {"prompt": [token], "max_tokens": 250, "temperature": 0, "ignore_eos": True}


def test_swapped_requests_go_on_where_they_were(server: LiveServer) -> None:
    def text(token: int) -> str:
        reply = server.http.post("/v1/completions", json=body(token) | {"cache_salt": "x"}).json()
        said: str = reply["choices"][0]["text"]
        return said

    alone = [text(token) for token in (9, 10, 11)]
    before = server.metrics()
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda token: server.http.post("/v1/completions", json=body(token)).json(), (9, 10, 11)))
    assert [reply["choices"][0]["text"] for reply in together] == alone
    after = server.metrics()

    def moved(name: str) -> float:
        return after[name] - before[name]

    assert moved("vllm:num_preemptions_total") >= 1
    assert moved("octavo:kv_blocks_swapped_in_total") >= 1
    assert moved("octavo:kv_blocks_swapped_out_total") >= moved("octavo:kv_blocks_swapped_in_total")
    # Whole blocks of one size, in both directions.
    block = moved("octavo:kv_bytes_swapped_out_total") / moved("octavo:kv_blocks_swapped_out_total")
    assert block == moved("octavo:kv_bytes_swapped_in_total") / moved("octavo:kv_blocks_swapped_in_total") > 1000
    assert after["vllm:num_requests_swapped"] == after["vllm:cpu_cache_usage_perc"] == 0


def test_clients_that_leave_while_their_requests_are_swapped(server: LiveServer) -> None:
    connections = [connect(server) for _ in range(3)]
    for token, connection in enumerate(connections, 12):
        connection.sendall(post_bytes("/v1/completions", body(token) | {"stream": True}))
    wait_until(lambda: server.metrics()["vllm:num_requests_swapped"] >= 1, 60)
    assert 0 < server.metrics()["vllm:cpu_cache_usage_perc"] <= 1
    for connection in connections:
        connection.close()
    wait_until(lambda: server.metrics()["vllm:num_requests_running"] == server.metrics()["vllm:num_requests_waiting"] == 0, 30)
    after = server.metrics()
    assert after["vllm:num_requests_swapped"] == after["vllm:cpu_cache_usage_perc"] == after["vllm:kv_cache_usage_perc"] == 0
