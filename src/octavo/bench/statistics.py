"""Medians, percentiles and arrivals."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

PERCENTILES = (90, 99)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` percent of `values` do not exceed, between two of them by linear interpolation; NaN for no values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones; NaN for no values."""
    return percentile(values, 50)


def summary(values: Iterable[float]) -> dict[str, float | None]:
    """`mean`, `median`, `p90` and `p99`; None, which JSON can hold, for no values."""
    given = list(values)
    if not given:
        return dict.fromkeys(("mean", "median", *(f"p{share}" for share in PERCENTILES)))
    return {
        "mean": sum(given) / len(given),
        "median": median(given),
        **{f"p{share}": percentile(given, share) for share in PERCENTILES},
    }


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """When `count` requests arrive, in seconds from the start: a Poisson process of `rate` a second, all at 0 for an infinite rate.

    The same seed gives the same times.
    """
    if rate <= 0:
        raise ValueError(f"the rate of arrivals must be over 0, not {rate}")
    if math.isinf(rate):
        return [0.0] * count
    source = random.Random(seed)
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += source.expovariate(rate)
    return times
