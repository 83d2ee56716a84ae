"""`octavo bench latency` and `throughput` on a tiny model: shapes and sums, no speeds."""

import json
from dataclasses import replace

import pytest
from machines import ROUND, measured_round

from octavo.api.arguments import FIELDS
from octavo.api.llm import LLM
from octavo.bench.breakdown import PARTS, StepClock, breakdown, parts_of
from octavo.bench.latency import LatencyOptions, run_latency
from octavo.bench.session import Session, greedy, llm_arguments
from octavo.bench.throughput import ThroughputOptions, gauges, run_throughput, times
from octavo.config.engine import BackendConfig, CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, StructuredOutputsConfig
from octavo.protocol.errors import ConfigError
from octavo.protocol.outputs import CompletionOutput, RequestMetrics, RequestOutput
from octavo.protocol.wire import EngineStats


@pytest.fixture(params=["auto", "reference"])
def config(request, fixtures_dir, monkeypatch) -> EngineConfig:
    """tiny-llama with a small cache, on a machine of round numbers."""
    for module in ("latency", "throughput"):
        monkeypatch.setattr(f"octavo.bench.{module}.measure_machine", measured_round)
    return EngineConfig(
        model=ModelConfig(str(fixtures_dir / "tiny-llama")),
        cache=CacheConfig(num_blocks_override=256),
        scheduler=SchedulerConfig(max_num_seqs=8),
        backend=BackendConfig(request.param, threads=1),
        seed=0,
    )


def test_latency(config):
    options = LatencyOptions(input_len=8, output_len=4, prefill_len=40, context=200, iterations=2, warmup=1)
    report = run_latency(config, options, quiet=True)
    whole = json.loads(report.json())
    assert whole["command"] == "latency"
    assert whole["machine"] == ROUND.describe()
    assert whole["settings"]["context"] == 200
    results = whole["results"]
    stream = results["stream"]
    assert stream["tokens_per_s"] == pytest.approx(1 / stream["tpot_s"])
    assert stream["limit_tokens_per_s"] == pytest.approx(100.0 / results["model"]["weights_read_bytes_a_step"])
    assert stream["share_of_limit"] == pytest.approx(stream["tokens_per_s"] / stream["limit_tokens_per_s"])
    assert results["prefill"]["tokens_per_s"] == pytest.approx(40 / results["prefill"]["ttft_s"])
    assert [each["context"] for each in results["context"]["speeds"]] == [100, 200]
    assert stream["share_of_reads_meanwhile"] == pytest.approx(
        results["model"]["weights_read_bytes_a_step"] * stream["tokens_per_s"] / stream["reads_meanwhile_bytes_per_s"]
    )
    titles = ["Machine", "Model", "One stream", "Prompt", "Long context", "A step's time, in process"]
    native = results.get("native")
    if results["model"]["backend"] == "cpu":
        titles.append("The native call of a step, by operation")
        assert [each["requests"] for each in native] == [1, 8]
        assert all(seconds > 0 for each in native for name, seconds in each["working"].items())
    else:
        assert native is None
    assert [table.title for table in report.tables] == titles
    cases = results["breakdown"]
    assert [(case["requests"], case["sampling"]) for case in cases] == [(1, "greedy"), (1, "top_p 0.95"), (8, "greedy"), (8, "top_p 0.95")]
    for case in cases:
        assert set(case["parts_s"]) == set(PARTS)
        assert sum(case["parts_s"].values()) == pytest.approx(case["step_s"])
        assert all(case["parts_s"][name] > 0 for name in ("model", "sampling", "scheduling", "inputs", "results"))
        assert 0 < case["outside_native_share"] < 1
        assert case["sampling_is_native"] is (results["model"]["backend"] == "cpu")


def test_parts_of_latency_can_be_left_out(config):
    options = LatencyOptions(input_len=8, output_len=1, prefill_len=0, breakdown=False, iterations=1, warmup=0)
    assert set(run_latency(config, options, quiet=True).results) == {"model", "stream"}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (LatencyOptions(input_len=500, output_len=100), "output_len"),
        (LatencyOptions(prefill_len=512), "prefill_len"),
        (LatencyOptions(prefill_len=0, context=8000), "context"),
        (LatencyOptions(prefill_len=0, context=150), "context"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_by_name(config, options, word):
    with pytest.raises(ConfigError) as found:
        run_latency(config, options, quiet=True)
    assert found.value.param == word


def test_throughput(config):
    report = run_throughput(config, ThroughputOptions("random", num_prompts=12, input_len=20, output_len=6, iterations=2), quiet=True)
    whole = json.loads(report.json())
    results = whole["results"]
    assert whole["settings"]["workload"] == {
        "name": "random 12 × (20 + 6)",
        "requests": 12,
        "prompt_tokens": 240,
        "output_tokens": 72,
        "prefix_tokens": 0,
    }
    assert len(results["seconds_of_runs"]) == 2
    assert results["seconds"] in results["seconds_of_runs"]
    assert results["output_tokens_per_s"] == pytest.approx(72 / results["seconds"])
    assert results["total_tokens_per_s"] == pytest.approx(312 / results["seconds"])
    assert 1 <= results["mean_batch_requests"] <= 8
    assert results["preemptions"] == 0
    assert 0 < results["kv_use_mean"] <= results["kv_use_peak"] <= 1
    assert 0 < results["kv_fill_mean"] <= 1
    assert results["ttft_s"]["median"] > 0
    assert [table.title for table in report.tables] == ["Machine", "Model", "Throughput", "Engine"]


@pytest.mark.parametrize("cache", [True, False])
def test_throughput_after_a_shared_prefix(config, cache):
    """Each run finds the prefix, and nothing of the run before."""
    options = ThroughputOptions("shared-prefix", num_prompts=6, prefix_len=64, input_len=10, output_len=4, iterations=2)
    cached = replace(config, cache=replace(config.cache, enable_prefix_caching=cache))
    results = run_throughput(cached, options, quiet=True).results
    assert results["prompt_tokens_cached"] == (6 * 64 if cache else 0)
    assert results["prompt_tokens_computed"] == (6 * 10 if cache else 6 * 74)
    assert results["model"]["enable_prefix_caching"] is cache
    assert (results["share_of_limit"] is None) is cache
    assert 0 < results["kv_fill_mean"] <= 1


def test_chat64_is_refused_for_a_small_vocabulary(config):
    with pytest.raises(ConfigError, match="vocabulary"):
        run_throughput(config, ThroughputOptions(), quiet=True)


def test_a_workload_longer_than_the_model_is_refused(config):
    with pytest.raises(ConfigError, match="longer"):
        run_throughput(config, ThroughputOptions("random", input_len=500, output_len=100), quiet=True)


def test_watching_changes_no_token_and_leaves_nothing_behind(config):
    prompts = [[5, 6, 7], [8, 9, 10, 11]]
    with Session(config, quiet=True) as session:
        before = [output.outputs[0].token_ids for output in session.llm.generate(prompts, greedy(5), use_tqdm=False)]
        parts = [session.llm, session.core, session.core._scheduler, session.core._executor]
        names = [set(vars(part)) for part in parts]
        for split in (False, True):
            clock = StepClock(split=split)
            with clock.watching(session.llm):
                assert [output.outputs[0].token_ids for output in session.llm.generate(prompts, greedy(5), use_tqdm=False)] == before
            assert [set(vars(part)) for part in parts] == names
            assert [step.tokens for step in clock.steps][:2] == [7, 2]
            for step in clock.steps:
                assert sum(step.parts.values()) == pytest.approx(step.total)


def test_parts_of_a_step_with_known_times():
    spent = {"program": 5.0, "sampler": 1.0, "executor": 8.0, "schedule": 0.5, "update": 0.25, "core": 9.0}
    assert parts_of(spent, 10.0) == {"model": 5.0, "sampling": 1.0, "scheduling": 0.5, "inputs": 2.0, "results": 1.25, "other": 0.25}


def test_a_breakdown_needs_full_steps():
    with pytest.raises(RuntimeError, match="no step"):
        breakdown(StepClock(), StepClock(), 1, "greedy")


def test_gauges_of_known_steps():
    stats = [
        EngineStats(running=2, blocks_total=10, blocks_used=4, tokens_held=32, preemptions=3, step_tokens=30),
        EngineStats(running=4, blocks_total=10, blocks_used=8, tokens_held=128, preemptions=5, step_tokens=4),
        EngineStats(blocks_total=10, preemptions=5),
    ]
    found = gauges(stats, 16)
    assert (found["steps"], found["mean_batch_requests"], found["mean_step_tokens"], found["preemptions"]) == (3, 3.0, 17.0, 2)
    assert (found["kv_use_mean"], found["kv_use_peak"]) == (pytest.approx(0.6), 0.8)
    assert found["kv_fill_mean"] == pytest.approx((0.5 + 1.0) / 2)


def test_times_of_known_outputs():
    def output(arrival: float, first: float, last: float, tokens: int) -> RequestOutput:
        metrics = RequestMetrics(arrival, first_token_time=first, last_token_time=last)
        return RequestOutput("x", None, [1], [CompletionOutput(0, "", list(range(tokens)))], True, metrics)

    found = times([output(1.0, 2.0, 4.0, 5), output(1.0, 4.0, 4.0, 1)])
    assert found["ttft_s"]["mean"] == 2.0
    assert found["tpot_s"]["mean"] == 0.5


def test_every_engine_option_reaches_the_llm():
    config = EngineConfig(
        ModelConfig("m", "r", "d", 100, "vllm", "float16", max_logprobs=6),
        CacheConfig(32, 0.3, 1 << 20, 7, False, "float16", swap_space=1 << 21),
        SchedulerConfig(128, 4, "priority", "swap"),
        BackendConfig("reference", 1, False),
        StructuredOutputsConfig(1024, 5),
        9,
    )
    arguments = llm_arguments(config)
    assert arguments == {
        "model": "m",
        "revision": "r",
        "download_dir": "d",
        "max_model_len": 100,
        "generation_config": "vllm",
        "dtype": "float16",
        "max_logprobs": 6,
        "block_size": 32,
        "gpu_memory_utilization": 0.3,
        "kv_cache_memory_bytes": 1 << 20,
        "num_gpu_blocks_override": 7,
        "enable_prefix_caching": False,
        "kv_cache_dtype": "float16",
        "prefix_cache_dir": None,
        "swap_space": 1 << 21,
        "max_num_batched_tokens": 128,
        "max_num_seqs": 4,
        "scheduling_policy": "priority",
        "preemption_mode": "swap",
        "backend": "reference",
        "threads": 1,
        "pin_threads": False,
        "max_grammar_size": 1024,
        "max_compiled_grammars": 5,
        "seed": 9,
    }
    assert arguments.keys() <= {*LLM.__init__.__annotations__, *FIELDS}
