"""The engine of asyncio programs."""

from octavo.api.async_engine import AsyncLLMEngine

__all__ = ["AsyncLLMEngine"]
