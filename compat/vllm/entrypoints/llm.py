"""Generation in the calling process."""

from octavo import LLM

__all__ = ["LLM"]
