"""Frozen options by topic, resolved once."""
