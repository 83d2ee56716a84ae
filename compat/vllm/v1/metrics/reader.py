"""Metrics as plain values."""

from octavo.api.metric_values import Counter, Gauge, Histogram, Metric

__all__ = ["Counter", "Gauge", "Histogram", "Metric"]
