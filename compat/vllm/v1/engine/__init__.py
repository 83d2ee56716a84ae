"""The engine of asyncio programs."""
