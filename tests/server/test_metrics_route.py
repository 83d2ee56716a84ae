from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.api.metrics import Metrics, one_two_five
from octavo.protocol.outputs import RequestMetrics
from octavo.protocol.wire import EngineInfo, EngineStats

LABELS = {"model_name": "m", "engine": "0"}


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics()
    metrics.attach(
        "m",
        EngineInfo(
            "m", "LlamaForCausalLM", "reference", 100, 300, 16, 64, kv_cache_bytes=4096, kv_bytes_per_block=64, kv_cache_dtype="int8"
        ),
    )
    return metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, LABELS | labels)


def test_names_are_vllms(metrics: Metrics) -> None:
    names = {family.name for family in text_string_to_metric_families(metrics.render()[0].decode())}
    assert names >= {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens",
        "vllm:generation_tokens",
        "vllm:request_success",
        "vllm:num_preemptions",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:request_time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds",
        "vllm:request_inference_time_seconds",
        "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens",
        "vllm:request_num_preemptions",
        "vllm:iteration_tokens_total",
        "vllm:request_params_n",
        "vllm:request_params_max_tokens",
        "vllm:cache_config_info",
        "vllm:prefix_cache_queries",
        "vllm:prefix_cache_hits",
        "vllm:prompt_tokens_by_source",
        "vllm:prompt_tokens_cached",
        "octavo:kv_blocks_cached",
        "octavo:kv_blocks_evicted",
        "octavo:kv_blocks_copied",
        "vllm:num_requests_swapped",
        "vllm:cpu_cache_usage_perc",
        "octavo:kv_blocks_swapped_out",
        "octavo:kv_blocks_swapped_in",
        "octavo:kv_bytes_swapped_out",
        "octavo:kv_bytes_swapped_in",
        "octavo:http_errors",
        "process_resident_memory_bytes",
    }


def test_every_finish_reason_starts_at_zero(metrics: Metrics) -> None:
    for reason in ("stop", "length", "abort", "error"):
        assert value(metrics, "vllm:request_success_total", finished_reason=reason) == 0


def test_steps(metrics: Metrics) -> None:
    metrics.on_step(EngineStats(running=3, waiting=2, blocks_total=64, blocks_used=16, preemptions=2, step_tokens=20))
    metrics.on_step(EngineStats(running=1, waiting=0, blocks_total=64, blocks_used=32, preemptions=5, step_tokens=1))
    metrics.on_step(EngineStats(running=0, waiting=0, blocks_total=64, blocks_used=32, preemptions=5))
    assert value(metrics, "vllm:num_requests_running") == 0
    assert value(metrics, "vllm:num_requests_waiting") == 0
    assert value(metrics, "vllm:kv_cache_usage_perc") == 0.5
    assert value(metrics, "vllm:num_preemptions_total") == 5
    assert value(metrics, "vllm:iteration_tokens_total_count") == 2
    assert value(metrics, "vllm:iteration_tokens_total_sum") == 21


def test_the_prefix_cache(metrics: Metrics) -> None:
    first = EngineStats(
        blocks_cached=9, blocks_evicted=1, blocks_copied=2, prefix_cache_queries=100, prefix_cache_hits=40, prompt_tokens_computed=60
    )
    second = EngineStats(
        blocks_cached=7, blocks_evicted=5, blocks_copied=2, prefix_cache_queries=150, prefix_cache_hits=80, prompt_tokens_computed=75
    )
    for stats in (first, second, second):
        metrics.on_step(stats)
    assert value(metrics, "octavo:kv_blocks_cached") == 7
    assert value(metrics, "octavo:kv_blocks_evicted_total") == 5
    assert value(metrics, "octavo:kv_blocks_copied_total") == 2
    assert value(metrics, "vllm:prefix_cache_queries_total") == 150
    assert value(metrics, "vllm:prefix_cache_hits_total") == 80
    assert value(metrics, "vllm:prompt_tokens_cached_total") == 80
    assert value(metrics, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 80
    assert value(metrics, "vllm:prompt_tokens_by_source_total", source="local_compute") == 75


def test_swap_space(metrics: Metrics) -> None:
    """A block has 4096 / 64 bytes."""
    assert value(metrics, "vllm:cpu_cache_usage_perc") == 0
    metrics.on_step(EngineStats(swapped=2, swap_blocks_total=8, swap_blocks_used=6, blocks_swapped_out=7))
    metrics.on_step(EngineStats(swapped=1, swap_blocks_total=8, swap_blocks_used=2, blocks_swapped_out=9, blocks_swapped_in=3))
    assert value(metrics, "vllm:num_requests_swapped") == 1
    assert value(metrics, "vllm:cpu_cache_usage_perc") == 0.25
    assert value(metrics, "octavo:kv_blocks_swapped_out_total") == 9
    assert value(metrics, "octavo:kv_blocks_swapped_in_total") == 3
    assert value(metrics, "octavo:kv_bytes_swapped_out_total") == 9 * 64
    assert value(metrics, "octavo:kv_bytes_swapped_in_total") == 3 * 64


def test_bytes_of_blocks_of_two_kinds() -> None:
    """Of 9 blocks that left 4, and of 3 that came back 1, are of layers that see a window."""
    metrics = Metrics()
    sizes = {"kv_bytes_per_block": 64, "kv_bytes_per_window_block": 10, "num_window_blocks": 6}
    metrics.attach("m", EngineInfo("m", "Gemma2ForCausalLM", "reference", 100, 300, 16, 64, **sizes))
    metrics.on_step(EngineStats(blocks_swapped_out=5, window_blocks_swapped_out=1))
    metrics.on_step(EngineStats(blocks_swapped_out=9, window_blocks_swapped_out=4, blocks_swapped_in=3, window_blocks_swapped_in=1))
    assert value(metrics, "octavo:kv_bytes_swapped_out_total") == 5 * 64 + 4 * 10
    assert value(metrics, "octavo:kv_bytes_swapped_in_total") == 2 * 64 + 1 * 10
    labels = {"block_size": "16", "cache_dtype": "", "enable_prefix_caching": "False", "num_gpu_blocks": "70", "kv_cache_memory_bytes": "0"}
    assert metrics.registry.get_sample_value("vllm:cache_config_info", labels | {"engine": "0"}) == 1


def test_tokens(metrics: Metrics) -> None:
    request = RequestMetrics(arrival_time=10.0)
    metrics.on_tokens(request, 1, 10.5, None)
    metrics.on_tokens(request, 2, 10.9, 10.5)
    assert value(metrics, "vllm:generation_tokens_total") == 3
    assert value(metrics, "vllm:time_to_first_token_seconds_sum") == pytest.approx(0.5)
    assert value(metrics, "vllm:time_to_first_token_seconds_bucket", le="0.5") == 1
    assert value(metrics, "vllm:inter_token_latency_seconds_count") == 2
    assert value(metrics, "vllm:inter_token_latency_seconds_sum") == pytest.approx(0.4)


def test_a_finished_request(metrics: Metrics) -> None:
    request = RequestMetrics(10.0, 10.25, 10.5, 11.5, 11.75, num_preemptions=1)
    metrics.on_finished("length", 7, 5, request, 1, 5)
    assert value(metrics, "vllm:request_success_total", finished_reason="length") == 1
    assert value(metrics, "vllm:prompt_tokens_total") == 7
    sums = {
        "e2e_request_latency_seconds": 1.75,
        "request_queue_time_seconds": 0.25,
        "request_prefill_time_seconds": 0.25,
        "request_decode_time_seconds": 1.0,
        "request_inference_time_seconds": 1.25,
        "request_time_per_output_token_seconds": 0.25,
        "request_prompt_tokens": 7,
        "request_generation_tokens": 5,
        "request_params_n": 1,
        "request_params_max_tokens": 5,
        "request_num_preemptions": 1,
    }
    assert {name: value(metrics, f"vllm:{name}_sum") for name in sums} == pytest.approx(sums)


def test_requests_that_never_ran_count_too(metrics: Metrics) -> None:
    for reason in ("abort", "error"):
        metrics.on_finished(reason, 7, 0, RequestMetrics(10.0, finished_time=11.0), 2, None)
        assert value(metrics, "vllm:request_success_total", finished_reason=reason) == 1
    assert value(metrics, "vllm:e2e_request_latency_seconds_count") == 2
    assert value(metrics, "vllm:request_queue_time_seconds_count") == 0
    assert value(metrics, "vllm:request_params_max_tokens_count") == 0


def test_tokens_that_come_all_at_once_say_nothing_of_their_times(metrics: Metrics) -> None:
    """As those of a beam search do; one token for each of two samples came in one step, after the prompt."""
    spans = ("request_prefill_time", "request_decode_time", "request_time_per_output_token")
    metrics.on_finished("length", 7, 12, RequestMetrics(10.0, 10.25, 11.5, 11.5, 11.75), 2, 6)
    assert [value(metrics, f"vllm:{name}_seconds_count") for name in spans] == [0, 0, 0]
    assert value(metrics, "vllm:request_inference_time_seconds_sum") == 1.25
    metrics.on_finished("length", 7, 2, RequestMetrics(10.0, 10.25, 11.5, 11.5, 11.75), 2, 1)
    assert [value(metrics, f"vllm:{name}_seconds_count") for name in spans] == [1, 1, 0]


def test_token_buckets_follow_the_context() -> None:
    assert one_two_five(300) == [1, 2, 5, 10, 20, 50, 100, 200]
    assert one_two_five(1) == [1]


async def test_route_and_refused_requests(connect, metrics: Metrics) -> None:
    fresh = Metrics()
    client: httpx.AsyncClient = connect(metrics=fresh)
    await client.get("/nothing")
    await client.get("/v1/completions")
    await client.post("/v1/completions", json={"prompt": ""})
    await client.post("/v1/completions", json={"prompt": "", "x": 1})
    reply = await client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {
        sample.labels["code"]: sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
        if sample.name == "octavo:http_errors_total"
    }
    assert found == {"404": 1, "405": 1, "400": 2}
    assert 'vllm:num_requests_running{engine="0",model_name="fake-model"} 0.0' in reply.text
    labels = (
        'block_size="16",cache_dtype="float32",enable_prefix_caching="False",engine="0",kv_cache_memory_bytes="4096",num_gpu_blocks="64"'
    )
    assert f"vllm:cache_config_info{{{labels}}} 1.0" in reply.text
