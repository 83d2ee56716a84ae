"""A model in this process, answering through AsyncLLM."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import aclosing
from itertools import count
from typing import Any, TypeVar

from octavo.api.async_llm import AsyncLLM
from octavo.cli.talk import Message, OnText, Reply
from octavo.config.engine import EngineConfig
from octavo.protocol.sampling import SamplingParams

T = TypeVar("T")


class LocalTalker:
    """Owns an event loop on a thread of its own, so that the engine is heard while the main thread waits for a person to type."""

    def __init__(self, config: EngineConfig, *, chat_template: str | None = None) -> None:
        """Loads the model. Raises ModelLoadError or ConfigError."""
        self.model = config.model.model
        self._ids = count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="octavo-cli", daemon=True)
        self._thread.start()
        try:
            self._llm = self._wait(AsyncLLM.start(config, chat_template=chat_template))
        except BaseException:
            self._end_loop()
            raise

    def chat(self, messages: list[Message], sampling: dict[str, Any], on_text: OnText) -> Reply:
        """See Talker."""
        prompt = self._llm.render_chat([dict(message) for message in messages], add_generation_prompt=True)
        return self._wait(self._stream(prompt, sampling, on_text, add_special_tokens=False))

    def complete(self, prompt: str, sampling: dict[str, Any], on_text: OnText) -> Reply:
        """See Talker."""
        return self._wait(self._stream(prompt, sampling, on_text, add_special_tokens=True))

    def close(self) -> None:
        """Stops the engine."""
        try:
            self._wait(self._llm.close())
        finally:
            self._end_loop()

    async def _stream(self, prompt: str, sampling: dict[str, Any], on_text: OnText, *, add_special_tokens: bool) -> Reply:
        params = SamplingParams(**{"max_tokens": None, **self._llm.default_sampling, **sampling})
        outputs = self._llm.generate(prompt, params, f"cli-{next(self._ids)}", stream=True, add_special_tokens=add_special_tokens)
        reason = None
        async with aclosing(outputs):
            async for output in outputs:
                if output.outputs[0].text:
                    on_text(output.outputs[0].text)
                reason = output.outputs[0].finish_reason or reason
        return Reply(reason)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the loop. Ctrl-C cancels it and comes out as KeyboardInterrupt once it has cleaned up."""
        ended = threading.Event()

        async def run() -> T:
            try:
                return await work
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            ended.wait()
            raise

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
