"""LLM.get_metrics: what the server's /metrics has, for one in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.api.metric_values import Counter, Gauge, Histogram, Metric
from octavo.protocol.pooling import PoolingParams

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def by_name(llm: LLM) -> dict[str, Metric]:
    """Each series by its name and what its labels say beyond model and engine."""
    found = {}
    for metric in llm.get_metrics():
        more = [value for name, value in metric.labels.items() if name not in ("model_name", "engine")]
        found[" ".join([metric.name, *more])] = metric
    return found


def test_what_is_counted(fixtures_dir: Path) -> None:
    with LLM(fixtures_dir / "tiny-llama", disable_log_stats=False, quiet=True) as llm:
        for _ in range(2):
            llm.generate([[5] * 20, [6] * 3], GREEDY, use_tqdm=False)
        llm.embed([[7] * 4], PoolingParams("mean"), use_tqdm=False)
        found = by_name(llm)
    expected = {
        "vllm:generation_tokens": 20,
        "vllm:prompt_tokens": 50,
        "vllm:prefix_cache_queries": 46,
        "vllm:prefix_cache_hits": 16,
        "vllm:request_success length": 4,
        "vllm:request_success stop": 1,
        "vllm:request_success error": 0,
        "vllm:num_preemptions": 0,
    }
    for name, value in expected.items():
        metric = found[name]
        assert isinstance(metric, Counter)
        assert metric.value == value, name
    running, prompts, first = (
        found["vllm:num_requests_running"],
        found["vllm:request_prompt_tokens"],
        found["vllm:time_to_first_token_seconds"],
    )
    assert isinstance(running, Gauge)
    assert running.value == 0
    assert isinstance(prompts, Histogram)
    assert (prompts.count, prompts.sum) == (5, 50)
    assert (prompts.buckets["2.0"], prompts.buckets["5.0"], prompts.buckets["20.0"], prompts.buckets["+Inf"]) == (0, 3, 5, 5)
    assert isinstance(first, Histogram)
    assert first.count == 4
    assert first.sum > 0
    assert running.labels == {"model_name": str(fixtures_dir / "tiny-llama"), "engine": "0"}
    assert not any(name.startswith("process") for name in found)


def test_nothing_is_counted_unless_asked_for(llm: LLM) -> None:
    with pytest.raises(RuntimeError, match="make the LLM with disable_log_stats=False"):
        llm.get_metrics()


def test_a_prompt_can_be_computed_whole_whatever_is_cached(fixtures_dir: Path) -> None:
    with LLM(fixtures_dir / "tiny-llama", quiet=True) as llm:
        params = [GREEDY, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, skip_reading_prefix_cache=True)]
        before = [llm.generate([5] * 40, each, use_tqdm=False)[0] for each in (params[0], *params)]
        assert [output.num_cached_tokens for output in before] == [0, 32, 0]
        assert len({tuple(output.outputs[0].token_ids) for output in before}) == 1
        several = SamplingParams(n=3, seed=1, max_tokens=5, skip_reading_prefix_cache=True)
        assert llm.generate([5] * 40, several, use_tqdm=False)[0].num_cached_tokens == 0
