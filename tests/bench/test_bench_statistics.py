"""Percentiles with known data, and arrivals."""

import math
import statistics

import numpy as np
import pytest

from octavo.bench.statistics import median, percentile, poisson_arrivals, summary


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([5.0], 99, 5.0),
        ([1.0, 2.0], 50, 1.5),
        ([4.0, 1.0, 3.0, 2.0], 0, 1.0),
        ([4.0, 1.0, 3.0, 2.0], 100, 4.0),
        ([4.0, 1.0, 3.0, 2.0], 50, 2.5),
        (list(range(1, 102)), 90, 91.0),
        (list(range(1, 12)), 99, 10.9),
    ],
)
def test_percentiles_of_known_data(values, share, expected):
    assert percentile(values, share) == pytest.approx(expected)


def test_percentiles_are_numpys():
    values = list(np.random.default_rng(1).standard_normal(57))
    for share in (0, 1, 25, 50, 90, 99, 99.9, 100):
        assert percentile(values, share) == pytest.approx(float(np.percentile(values, share)))


def test_the_median_is_not_moved_by_one_outlier():
    assert median([1.0, 2.0, 1000.0]) == 2.0
    assert median([3.0, 1.0, 2.0, 4.0]) == statistics.median([3.0, 1.0, 2.0, 4.0])


def test_nothing_has_no_percentile():
    assert math.isnan(percentile([], 50))
    assert summary([]) == {"mean": None, "median": None, "p90": None, "p99": None}


def test_a_summary_of_known_data():
    found = summary(float(value) for value in range(1, 101))
    assert found == pytest.approx({"mean": 50.5, "median": 50.5, "p90": 90.1, "p99": 99.01})


def test_arrivals_are_repeatable_and_rising():
    first = poisson_arrivals(100, 4.0, 7)
    assert first == poisson_arrivals(100, 4.0, 7)
    assert first != poisson_arrivals(100, 4.0, 8)
    assert first[0] == 0.0
    assert first == sorted(first)


def test_arrivals_have_the_gaps_of_a_poisson_process():
    times = poisson_arrivals(20_001, 5.0, 3)
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(1 / 5.0, rel=0.03)
    # Of an exponential distribution mean and deviation are equal, and 1 − 1/e of it lies below the mean.
    assert gaps.std() == pytest.approx(1 / 5.0, rel=0.05)
    assert (gaps < 1 / 5.0).mean() == pytest.approx(1 - 1 / math.e, abs=0.02)


def test_an_infinite_rate_is_all_at_once():
    assert poisson_arrivals(3, math.inf, 0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_rate_is_over_zero(rate):
    with pytest.raises(ValueError, match="rate"):
        poisson_arrivals(3, rate, 0)
