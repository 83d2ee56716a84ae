"""`octavo bench memory`: what is counted is exact; how fast it went is nobody's promise."""

import itertools
import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from machines import measured_round

from octavo.bench.memory import MemoryOptions, Moment, Replay, Trace, charts, figures_of, make_trace, mean_by_time, replay, run_memory
from octavo.bench.session import Session
from octavo.bench.workload import Ask, Workload
from octavo.config.engine import BackendConfig, CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.kvcache.window import Window
from octavo.protocol.errors import ConfigError
from octavo.protocol.wire import EngineInfo


@pytest.fixture
def config(fixtures_dir, monkeypatch) -> EngineConfig:
    monkeypatch.setattr("octavo.bench.memory.measure_machine", measured_round)
    return EngineConfig(
        model=ModelConfig(str(fixtures_dir / "tiny-llama"), max_model_len=64),
        cache=CacheConfig(num_blocks_override=8, enable_prefix_caching=False),
        scheduler=SchedulerConfig(max_num_seqs=16),
        backend=BackendConfig("reference", threads=1),
        seed=0,
    )


def small_trace(num_blocks=8) -> Trace:
    """Six requests of a block each, of which the last grows into a second one."""
    asks = [Ask([10 + index] * 10, 22 if index == 5 else 6) for index in range(6)]
    return Trace("small", Workload("small", asks), 64, num_blocks, 16)


EXPECTED = {
    # Runs of four blocks for 64 tokens: two at once, of which each holds 10 to 15 tokens while others wait.
    "maximum": {
        "steps": 6 + 6 + 22,
        "running_peak": 2,
        "running_mean": 2,
        "tokens_share": 25 / 128,
        "reserved_share": 1.0,
        "waiting_s": 12,
    },
    # Runs of two for 10 + 22.
    "buddies": {"steps": 6 + 22, "running_peak": 4, "running_mean": 4, "tokens_share": 50 / 128, "reserved_share": 1.0, "waiting_s": 6},
    # All at once, so that nothing waits.
    "paged": {"steps": 22, "running_peak": 6, "running_mean": None, "tokens_share": None, "reserved_share": None, "waiting_s": 0},
}


@pytest.mark.parametrize("policy", list(EXPECTED))
def test_counts_of_a_small_trace(config, policy):
    ticks = itertools.count()
    with Session(config, quiet=True) as session:
        usual = session.llm._core
        found = figures_of(replay(session, config, small_trace(), policy, lambda: next(ticks)), small_trace())
        assert session.llm._core is usual
        assert usual._executor._worker.num_requests == 0
    assert {name: found[name] for name in EXPECTED[policy]} == EXPECTED[policy]
    assert found["preemptions"] == 0
    assert found["output_tokens_per_s"] == 52 / found["seconds"]


@pytest.mark.parametrize("policy", list(EXPECTED))
def test_blocks_of_two_kinds_are_counted_as_those_of_one(config, fixtures_dir, policy):
    """Of requests that are no longer than the window both kinds hold the same tokens, in as many blocks each."""
    config = replace(config, model=ModelConfig(str(fixtures_dir / "tiny-gemma2"), max_model_len=64))
    config = replace(config, cache=CacheConfig(num_blocks_override=12, enable_prefix_caching=False))
    ticks = itertools.count()
    with Session(config, quiet=True) as session:
        info = session.info
        trace = replace(small_trace(), window=Window(info.sliding_window, 512), first_window_block=info.num_blocks)
        assert (info.num_blocks, info.num_window_blocks, trace.total_blocks) == (12, 12, 16)
        found = figures_of(replay(session, config, trace, policy, lambda: next(ticks)), trace)
        assert make_trace("log-normal", 64, info, config, MemoryOptions(num_prompts=3)).first_window_block == 12
    assert {name: found[name] for name in EXPECTED[policy]} == EXPECTED[policy]
    assert found["preemptions"] == 0


def test_the_paged_cache_fills_a_pool_that_is_too_small(config):
    """Four blocks: four requests at once. The one that grows is preempted by none, since admission keeps its block."""
    ticks = itertools.count()
    trace = small_trace(num_blocks=4)
    with Session(config, quiet=True) as session:
        found = figures_of(replay(session, config, trace, "paged", lambda: next(ticks)), trace)
    assert (found["running_peak"], found["running_mean"], found["waiting_s"], found["preemptions"]) == (4, 4, 6, 0)
    assert (found["tokens_share"], found["fill"], found["reserved_share"]) == (50 / 64, 50 / 64, 1.0)


def test_the_policies_give_the_same_tokens(config):
    with Session(config, quiet=True) as session:
        said = []
        for policy in EXPECTED:
            generate, outputs = session.generate, []
            session.generate = lambda asks, generate=generate, outputs=outputs: outputs.extend(generate(asks)) or outputs
            replay(session, config, small_trace(), policy)
            session.generate = generate
            said.append([output.outputs[0].token_ids for output in outputs])
    assert said[0] == said[1] == said[2]
    assert [len(tokens) for tokens in said[0]] == [6] * 5 + [22]


@pytest.mark.parametrize("limit", [{"max_num_batched_tokens": 4}, {"max_num_seqs": 2}])
def test_who_waits_for_tokens_or_seats_does_not_wait_for_memory(config, limit):
    config = replace(config, scheduler=replace(config.scheduler, **limit))
    with Session(config, quiet=True) as session:
        moments = replay(session, config, small_trace(), "paged").moments
    assert any(moment.waiting for moment in moments)
    assert not any(moment.waits_for_memory for moment in moments)


def test_means_are_weighed_by_time():
    moments = [Moment(3.0, 1, 1, 4, 10, True), Moment(1.0, 5, 0, 4, 20, True), Moment(2.0, 5, 3, 4, 30, False)]
    assert mean_by_time(moments[:2], lambda moment: moment.running) == 2.0
    assert mean_by_time([], lambda moment: moment.running) is None
    # Only while requests wait, and for memory.
    found = figures_of(Replay(8.0, 16, 3, moments), small_trace())
    assert (found["running_mean"], found["tokens_share"], found["fill"], found["waiting_s"]) == (1.0, 10 / 128, 10 / 64, 3.0)
    assert (found["running_peak"], found["preemptions"], found["output_tokens_per_s"]) == (5, 3, 2.0)


def test_the_whole_benchmark(config):
    options = MemoryOptions(traces=("log-normal",), full_requests=2, num_prompts=9, iterations=2, seed=3)
    report = run_memory(replace(config, cache=CacheConfig()), options, quiet=True)
    whole = json.loads(report.json())
    assert (whole["command"], whole["settings"]["full_requests"]) == ("memory", 2)
    trace = whole["results"]["traces"]["log-normal"]
    assert (trace["max_model_len"], trace["num_blocks"], trace["workload"]["requests"]) == (64, 8, 9)
    assert set(trace["policies"]) == {"maximum", "buddies", "paged"}
    assert trace["policies"]["maximum"]["running_peak"] == 2
    peaks = [trace["policies"][policy]["running_peak"] for policy in ("maximum", "buddies", "paged")]
    assert peaks == sorted(peaks)
    shares = [trace["policies"][policy]["tokens_share"] for policy in ("maximum", "paged")]
    assert shares[0] < shares[1]
    paged = trace["policies"]["paged"]["output_tokens_per_s"]
    assert trace["paged_to"]["maximum"] == pytest.approx(paged / trace["policies"]["maximum"]["output_tokens_per_s"])
    assert [table.title.partition(":")[0] for table in report.tables] == ["Machine", "Model", "log-normal 9"]
    assert [row[0] for row in report.tables[2].rows] == ["static, maximum length", "static, buddies", "paged"]


def test_the_picture_shows_every_figure():
    policies = ("maximum", "buddies", "paged")
    figures = {
        policy: {"tokens_share": share, "running_mean": None, "preemptions": 7, "output_tokens_per_s": 100.0}
        for policy, share in zip(policies, (0.2, 0.4, 0.8), strict=True)
    }
    drawing = charts({"traces": {"a < b": {"policies": figures}}})
    root = ElementTree.fromstring(drawing)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "KV memory that holds tokens", "20.0%", "40.0%", "80.0%", "paged", "7", "100.0", "–"} <= set(texts)
    widths = [float(each.get("width")) for each in root.iter("{http://www.w3.org/2000/svg}rect") if each.get("x")]
    assert len(widths) == 12
    assert widths[0] * 4 == widths[1] * 2 == widths[2] > 0
    assert widths[3:6] == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "length", "param"),
    [
        (MemoryOptions(traces=("chat65",)), 64, "traces"),
        (MemoryOptions(traces=("chat64",)), 64, "traces"),
        (MemoryOptions(traces=("log-normal",), full_requests=1), 49, "full_requests"),
    ],
)
def test_what_can_t_be_served_is_refused_by_name(config, options, length, param):
    config = replace(config, model=replace(config.model, max_model_len=length), cache=CacheConfig(block_size=16 if length == 64 else 1))
    with pytest.raises(ConfigError) as found:
        run_memory(config, options, quiet=True)
    assert found.value.param == param


def test_chat64_needs_room_for_its_longest_request(config):
    with pytest.raises(ConfigError, match="912 tokens"):
        make_trace("chat64", 911, EngineInfo("m", "llama", "reference", 50_000, 2048, 16, 512), config, MemoryOptions())


def test_the_paged_cache_of_a_windowed_model_keeps_the_window(config):
    info = EngineInfo("m", "mistral", "reference", 512, 2048, 16, 512, sliding_window=40)
    trace = make_trace("log-normal", 64, info, config, MemoryOptions(num_prompts=3))
    assert trace.manager("paged").window == Window(40, config.scheduler.max_num_batched_tokens)
    assert trace.manager("maximum").window is trace.manager("buddies").window is None
    assert trace.total_blocks == trace.num_blocks
