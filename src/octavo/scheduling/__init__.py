"""Requests, queue, scheduler: pure policy over values."""
