"""Metrics as plain values; the shapes are those of vLLM's `vllm.v1.metrics.reader`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family


@dataclass(slots=True)
class Metric:
    """One series: the metric's name, and what its labels say."""

    name: str
    labels: dict[str, str]


@dataclass(slots=True)
class Counter(Metric):
    """A number that only grows."""

    value: int


@dataclass(slots=True)
class Gauge(Metric):
    """A number of this moment."""

    value: float


@dataclass(slots=True)
class Histogram(Metric):
    """How many values there were, their sum, and how many of them were at most each bound (written as text, the last one "+Inf")."""

    count: int
    sum: float
    buckets: dict[str, int]


def snapshot(registry: CollectorRegistry) -> list[Metric]:
    """Every series of the engine's metrics as it is now; those of the process are left out."""
    return [metric for family in registry.collect() if ":" in family.name for metric in _series(family)]


def _series(family: Family) -> Iterator[Metric]:
    histograms: dict[tuple[tuple[str, str], ...], Histogram] = {}
    for sample in family.samples:
        if family.type == "gauge":
            yield Gauge(family.name, dict(sample.labels), sample.value)
        elif family.type == "counter" and sample.name.endswith("_total"):
            yield Counter(family.name, dict(sample.labels), int(sample.value))
        elif family.type == "histogram":
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            made = histograms.setdefault(tuple(labels.items()), Histogram(family.name, labels, 0, 0.0, {}))
            if sample.name.endswith("_bucket"):
                made.buckets[sample.labels["le"]] = int(sample.value)
            elif sample.name.endswith("_count"):
                made.count = int(sample.value)
            elif sample.name.endswith("_sum"):
                made.sum = sample.value
    yield from histograms.values()
