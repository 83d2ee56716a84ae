"""Checkpoint storage formats: what a tensor's bytes mean."""
