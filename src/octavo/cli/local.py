"""A model in this process, answering through AsyncLLM."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import count
from typing import Any

from octavo.api.async_llm import AsyncLLM
from octavo.cli.talk import Message, OnText, Reply
from octavo.config.engine import EngineConfig
from octavo.protocol.sampling import SamplingParams


class LocalTalker:
    """Owns an event loop that runs only while it answers; asyncio.Runner turns Ctrl-C into a cancelled answer."""

    def __init__(self, config: EngineConfig, *, chat_template: str | None = None, quiet: bool = False) -> None:
        """Loads the model. Raises ModelLoadError or ConfigError."""
        self.model = config.model.model
        self._ids = count()
        self._runner = asyncio.Runner()
        try:
            self._llm = self._runner.run(AsyncLLM.start(config, chat_template=chat_template, quiet=quiet))
        except BaseException:
            self._runner.close()
            raise

    def chat(self, messages: list[Message], sampling: dict[str, Any], on_text: OnText) -> Reply:
        """See Talker."""
        prompt = self._llm.render_chat(messages, add_generation_prompt=True)
        return self._runner.run(self._stream(prompt, sampling, on_text, add_special_tokens=False))

    def complete(self, prompt: str, sampling: dict[str, Any], on_text: OnText) -> Reply:
        """See Talker."""
        return self._runner.run(self._stream(prompt, sampling, on_text, add_special_tokens=True))

    async def _stream(self, prompt: str, sampling: dict[str, Any], on_text: OnText, *, add_special_tokens: bool) -> Reply:
        params = SamplingParams(**{"max_tokens": None, **self._llm.default_sampling, **sampling})
        outputs = self._llm.generate(prompt, params, f"cli-{next(self._ids)}", stream=True, add_special_tokens=add_special_tokens)
        reason = None
        async with aclosing(outputs):  # type: ignore[type-var]
            async for output in outputs:
                if output.outputs[0].text:
                    on_text(output.outputs[0].text)
                reason = output.outputs[0].finish_reason or reason
        return Reply(reason)

    def close(self) -> None:
        """Stops the engine."""
        try:
            self._runner.run(self._llm.close())
        finally:
            self._runner.close()
