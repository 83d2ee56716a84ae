"""Figures from raw results."""

import pytest
from fake_contenders import load, one_round

from comparison.figures import Figure, contender_figure, limit_figure, ratio, server_figure, tokens_per_second


def test_one_stream_counts_the_tokens_after_the_first():
    task = {"first_token_s": [0.2, 0.2, 0.2], "seconds": [1.2, 2.2, 0.7], "output_tokens": [101, 101, 101]}
    assert tokens_per_second("stream", task) == pytest.approx(100.0)


def test_a_prompt_counts_its_own_tokens():
    assert tokens_per_second("prefill", {"first_token_s": [0.5, 0.25, 1.0]}) == 2048.0


def test_chat64_counts_output_tokens():
    assert tokens_per_second("chat64", {"seconds": 4.0, "output_tokens": 6000}) == 1500.0


def test_medians_are_over_rounds_with_least_and_greatest():
    figure = contender_figure([one_round(speed=1.0), one_round(speed=3.0), one_round(speed=2.0)], "chat64")
    assert (figure.median, figure.least, figure.greatest, figure.problem) == (600.0, 300.0, 900.0, "")


@pytest.mark.parametrize(
    ("rounds", "values", "problem"),
    [
        ([{"tasks": {}, "error": "exit status 1: boom"}] * 2, (), "exit status 1: boom"),
        ([one_round(), one_round(tasks={"chat64": {"error": "boom"}})], (300.0,), "round 2 of 2: boom"),
        ([one_round(tasks={"chat64": {"seconds": 0.0, "output_tokens": 6}})], (), "6 tokens in 0.0000 s give no rate"),
        ([{"tasks": {}}], (), "not measured"),
    ],
)
def test_what_a_round_lacks_is_told(rounds, values, problem):
    assert contender_figure(rounds, "chat64") == Figure(values, problem)


def test_a_start_is_known_though_tasks_failed():
    assert contender_figure([{"ready_s": 3.0, "tasks": {}, "error": "boom"}], "ready") == Figure((3.0,), "")


def test_a_server_that_failed_under_load_still_has_its_start():
    rounds = [{"ready_s": 1.0, "error": "2 requests failed"}, {"ready_s": 2.0, "load": load(80.0)}]
    assert server_figure(rounds, "ready_s") == Figure((1.0, 2.0))
    assert server_figure(rounds, "load", "output_tokens_per_s") == Figure((80.0,), "round 1 of 2: 2 requests failed")


def test_limits_that_could_not_be_measured_are_told():
    assert limit_figure([{"error": "boom"}], "octavo-4", "stream") == Figure((), "boom")


def test_ratios_need_both_sides():
    assert ratio(Figure((6.0,)), Figure((2.0,))) == 3.0
    assert ratio(Figure((6.0,)), Figure()) is None
    assert ratio(Figure(), Figure((2.0,))) is None
