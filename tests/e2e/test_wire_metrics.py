"""/metrics under vLLM's names: they are there, and they move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from processes import wait_until
from serve_process import UNHURRIED, LiveServer
from sse import connect, post_bytes

GAUGES = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
COUNTERS = ["prompt_tokens_total", "generation_tokens_total", "num_preemptions_total"]
HISTOGRAMS = ["time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"]
REASONS = ["stop", "length", "abort", "error"]


@pytest.fixture(scope="module")
def server(long_llama: Path) -> Iterator[LiveServer]:
    """A pool so small that two long requests can't both stay in it."""
    arguments = ("--num-gpu-blocks-override", "40", "--max-model-len", "512", "--served-model-name", "tiny")
    with LiveServer(long_llama, *UNHURRIED, *arguments) as live:
        yield live
        assert live.stop() == 0


def moved(server: LiveServer, before: dict[str, float]) -> dict[str, float]:
    """What has changed since `before`, once nothing runs any more."""
    wait_until(lambda: server.metrics()["vllm:num_requests_running"] == 0, 30)
    now = server.metrics()
    return {
        name.removeprefix("vllm:"): round(value - before.get(name, 0), 9)
        for name, value in now.items()
        if value != before.get(name, 0) and name.startswith("vllm:")
    }


def test_names_and_labels(http: httpx.Client) -> None:
    reply = http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = reply.text
    for name in [*GAUGES, *COUNTERS]:
        assert f'vllm:{name}{{engine="0",model_name="tiny"}} ' in text
    for name in HISTOGRAMS:
        assert f"# TYPE vllm:{name} histogram" in text
        assert f'vllm:{name}_bucket{{engine="0",le="+Inf",model_name="tiny"}} ' in text
    for reason in REASONS:
        assert f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="tiny"}} ' in text


def test_a_completion_moves_them(server: LiveServer, http: httpx.Client) -> None:
    before = server.metrics()
    body = {"prompt": [5, 6, 7, 8], "max_tokens": 10, "temperature": 0, "ignore_eos": True}
    assert http.post("/v1/completions", json=body).status_code == 200
    changes = moved(server, before)
    assert changes["prompt_tokens_total"] == 4
    assert changes["generation_tokens_total"] == 10
    assert changes['request_success_total{finished_reason="length"}'] == 1
    assert changes["time_to_first_token_seconds_count"] == 1
    assert changes["inter_token_latency_seconds_count"] == 9
    assert changes["e2e_request_latency_seconds_count"] == 1
    assert 0 < changes["time_to_first_token_seconds_sum"] <= changes["e2e_request_latency_seconds_sum"] < 10
    assert changes["inter_token_latency_seconds_sum"] < changes["e2e_request_latency_seconds_sum"]
    assert changes["request_prompt_tokens_sum"] == 4
    assert changes["request_generation_tokens_sum"] == 10
    assert changes["request_params_max_tokens_sum"] == 10
    assert "num_preemptions_total" not in changes
    assert not {f'request_success_total{{finished_reason="{reason}"}}' for reason in ("stop", "abort", "error")} & changes.keys()


def test_prompt_work_is_counted_in_tokens(server: LiveServer, http: httpx.Client) -> None:
    """Sixteen requests with a beginning of 96 tokens, at once, then one of them again, and under a salt."""
    before = server.metrics()
    start = [5 + place % 400 for place in range(96)]
    prompts = [[*start, 410 + index, 411 + index, 7] for index in range(16)]
    body = {"max_tokens": 2, "temperature": 0, "ignore_eos": True}

    def usage(prompt: list, **fields: object) -> dict:
        reply = http.post("/v1/completions", json={"prompt": prompt, **body, **fields})
        assert reply.status_code == 200, reply.text
        return reply.json()["usage"]

    together = usage(prompts)
    assert together["prompt_tokens"] == 16 * 99
    assert together["prompt_tokens_details"] == {"cached_tokens": 15 * 96}
    assert usage(prompts[3])["prompt_tokens_details"] == {"cached_tokens": 96}
    assert usage(start)["prompt_tokens_details"] == {"cached_tokens": 95}
    assert usage(prompts[3], cache_salt="a")["prompt_tokens_details"] == {"cached_tokens": 0}
    changes = moved(server, before)
    cached = 15 * 96 + 96 + 95
    assert changes["prefix_cache_queries_total"] == 16 * 99 + 99 + 96 + 99
    assert changes["prefix_cache_hits_total"] == changes["prompt_tokens_cached_total"] == cached
    assert changes['prompt_tokens_by_source_total{source="local_compute"}'] == (96 + 16 * 3) + 3 + 1 + 99
    assert changes['prompt_tokens_by_source_total{source="local_cache_hit"}'] == cached
    assert http.post("/reset_prefix_cache").json() == {"success": True}
    assert usage(prompts[3])["prompt_tokens_details"] == {"cached_tokens": 0}


def test_blocks_are_shown_while_requests_run(server: LiveServer, http: httpx.Client) -> None:
    assert http.post("/reset_prefix_cache").json() == {"success": True}
    body = {"prompt": [9] * 40, "n": 2, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with connect(server) as connection:
        connection.sendall(post_bytes("/v1/completions", body).replace(b"Host:", b"X-Request-Id: mine\r\nHost:", 1))
        assert connection.recv(1)
        reply = http.get("/kv/blocks?limit=1000").json()
        summary, blocks = reply["summary"], reply["blocks"]
        assert summary["used"] + summary["cached"] + summary["free"] == summary["num_blocks"] == len(blocks)
        assert summary["requests_running"] + summary["requests_waiting"] == 2
        states = [block["state"] for block in blocks]
        assert [states.count(state) for state in ("used", "cached", "free")] == [summary[state] for state in ("used", "cached", "free")]
        owners = {owner for block in blocks for owner in block["owners"]}
        assert {owner.rpartition(":")[2] for owner in owners} <= {"0", "1"}
        assert all("mine" in owner for owner in owners)
        shared = [block for block in blocks if block["reference_count"] == 2]
        assert len(shared) >= 2
        assert all(len(block["owners"]) == 2 and block["hash"] for block in shared[:2])
    wait_until(lambda: http.get("/kv/blocks?limit=1").json()["summary"]["used"] == 0, 10, "the blocks")


def test_every_reason_counts(server: LiveServer, http: httpx.Client) -> None:
    before = server.metrics()
    assert http.post("/v1/completions", json={"prompt": "The cat", "temperature": 0, "stop": "low"}).status_code == 200
    assert http.post("/v1/completions", json={"prompt": "The cat", "n": 3, "max_tokens": 2, "min_tokens": 2}).status_code == 200
    with connect(server) as connection:
        connection.sendall(post_bytes("/v1/completions", {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}))
        assert connection.recv(1)
    changes = moved(server, before)
    assert changes['request_success_total{finished_reason="stop"}'] == 1
    assert changes['request_success_total{finished_reason="length"}'] == 1
    assert changes['request_success_total{finished_reason="abort"}'] == 1
    assert changes["request_params_n_sum"] == 1 + 3 + 1


def test_refused_requests_count_as_http_errors(server: LiveServer, http: httpx.Client) -> None:
    before = server.metrics()
    assert http.post("/v1/completions", json={"prompt": ""}).status_code == 400
    assert http.post("/v1/completions", json={"prompt": "x", "model": "y"}).status_code == 404
    after = server.metrics()
    for status in (400, 404):
        series = f'octavo:http_errors_total{{code="{status}"}}'
        assert after[series] == before.get(series, 0) + 1
    assert moved(server, before) == {}


def test_gauges_and_preemptions(server: LiveServer, http: httpx.Client) -> None:
    """Three requests that grow to 501 tokens, in a pool of 640."""
    before = server.metrics()
    connections = [connect(server) for _ in range(3)]
    for token, connection in enumerate(connections, 9):
        connection.sendall(
            post_bytes("/v1/completions", {"prompt": [token], "max_tokens": 500, "temperature": 0, "ignore_eos": True, "stream": True})
        )
    highest = 0.0
    waited = ran = False

    def all_done() -> bool:
        nonlocal highest, waited, ran
        now = server.metrics()
        highest = max(highest, now["vllm:kv_cache_usage_perc"])
        waited |= now["vllm:num_requests_waiting"] > 0
        ran |= now["vllm:num_requests_running"] > 1
        length = 'vllm:request_success_total{finished_reason="length"}'
        return now[length] == before[length] + 3

    try:
        for connection in connections:
            connection.setblocking(True)
        wait_until(all_done, 60)
    finally:
        for connection in connections:
            connection.close()
    assert waited
    assert ran
    assert 0.5 < highest <= 1
    changes = moved(server, before)
    assert changes["num_preemptions_total"] >= 1
    assert changes["generation_tokens_total"] == 1500
    assert changes["request_num_preemptions_sum"] == changes["num_preemptions_total"]
    assert server.metrics()["vllm:kv_cache_usage_perc"] == 0
