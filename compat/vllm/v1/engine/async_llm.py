"""The engine of asyncio programs, by its newer name."""

from octavo.api.async_engine import AsyncLLMEngine as AsyncLLM

__all__ = ["AsyncLLM"]
