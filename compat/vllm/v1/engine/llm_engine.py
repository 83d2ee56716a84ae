"""The engine, one step at a time."""

from octavo.api.llm_engine import LLMEngine

__all__ = ["LLMEngine"]
