"""Benchmarks: how fast this machine serves a model, and how far that is from what the machine could do."""
