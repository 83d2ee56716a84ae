"""What is asked is the same on every machine."""

import random

import pytest

from octavo.bench.throughput import ThroughputOptions, make_workload
from octavo.bench.workload import chat64, log_normal, random_asks, shared_prefix
from octavo.protocol.errors import ConfigError


def test_chat64_is_what_it_says():
    workload = chat64()
    assert workload.describe() == {
        "name": "chat64",
        "requests": 64,
        "prompt_tokens": 11_633,
        "output_tokens": 6_317,
        "prefix_tokens": 0,
    }
    first = workload.asks[0]
    assert (len(first.prompt_token_ids), first.output_len) == (88, 109)
    assert workload.longest == max(len(ask.prompt_token_ids) + ask.output_len for ask in workload.asks)


def test_chat64_prompts_come_from_their_own_seed():
    workload = chat64(49_152)
    source = random.Random(5)
    assert workload.asks[5].prompt_token_ids == [source.randrange(1000, 40000) for _ in workload.asks[5].prompt_token_ids]


def test_chat64_needs_its_vocabulary():
    with pytest.raises(ConfigError, match=r"workload.*512"):
        chat64(512)


def test_random_prompts_are_repeatable_and_within_the_vocabulary():
    workload = random_asks(3, 20, 4, vocab_size=512, seed=1)
    assert [(len(ask.prompt_token_ids), ask.output_len) for ask in workload.asks] == [(20, 4)] * 3
    assert workload == random_asks(3, 20, 4, vocab_size=512, seed=1)
    assert workload != random_asks(3, 20, 4, vocab_size=512, seed=2)
    assert all(0 <= token < 512 for ask in workload.asks for token in ask.prompt_token_ids)
    assert workload.asks[0].prompt_token_ids != workload.asks[1].prompt_token_ids


def test_random_prompts_of_a_large_vocabulary_hold_no_special_tokens():
    assert min(random_asks(1, 5000, 1, vocab_size=32_000).asks[0].prompt_token_ids) >= 1000


def test_log_normal_lengths():
    workload = log_normal(2000, 1200, vocab_size=512, seed=1)
    prompts = sorted(len(ask.prompt_token_ids) for ask in workload.asks)
    outputs = sorted(ask.output_len for ask in workload.asks)
    assert (prompts[1000], outputs[1000]) == (pytest.approx(200, rel=0.08), pytest.approx(100, rel=0.08))
    # One in 6.3 lies above the median times e to the σ.
    assert (prompts[1683], outputs[1683]) == (pytest.approx(200 * 2.2255, rel=0.08), pytest.approx(100 * 1.8221, rel=0.08))
    assert (prompts[-1], outputs[-1]) == (900, workload.longest_output) == (900, 300)
    assert min(prompts[0], outputs[0]) >= 1
    assert workload == log_normal(2000, 1200, vocab_size=512, seed=1)
    assert workload.asks[0] != log_normal(1, 1200, vocab_size=512, seed=2).asks[0]


def test_prompts_after_a_shared_prefix():
    workload = shared_prefix(4, 20, 5, 3, vocab_size=512, seed=1)
    prompts = [ask.prompt_token_ids for ask in workload.asks]
    assert {tuple(prompt[:20]) for prompt in prompts} == {workload.prefix}
    assert len({tuple(prompt[20:]) for prompt in prompts}) == 4
    assert {len(prompt) for prompt in prompts} == {25}
    assert workload.describe() == {
        "name": "shared prefix 4 × (20 + 5 + 3)",
        "requests": 4,
        "prompt_tokens": 100,
        "output_tokens": 12,
        "prefix_tokens": 20,
    }
    assert workload == shared_prefix(4, 20, 5, 3, vocab_size=512, seed=1)


def test_defaults_of_the_workloads():
    described = {name: make_workload(name, None, ThroughputOptions()).describe() for name in ("random", "shared-prefix")}
    assert described["random"] | {"name": ""} == {
        "name": "",
        "requests": 64,
        "prompt_tokens": 64 * 128,
        "output_tokens": 64 * 128,
        "prefix_tokens": 0,
    }
    assert described["shared-prefix"] | {"name": ""} == {
        "name": "",
        "requests": 32,
        "prompt_tokens": 32 * (512 + 32),
        "output_tokens": 32 * 32,
        "prefix_tokens": 512,
    }


def test_an_unknown_workload_is_refused_by_name():
    with pytest.raises(ConfigError, match="chat65"):
        make_workload("chat65", None, ThroughputOptions())
