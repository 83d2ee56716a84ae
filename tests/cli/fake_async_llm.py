"""Runs the command line with a model that repeats what it is told: `python fake_async_llm.py chat ...`.

It stands in for octavo.api.async_llm, streams the last message back one word at a time, and answers "slow" for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import sys
import termios
import types
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from octavo.config.engine import EngineConfig
from octavo.protocol.errors import ConfigError, InvalidRequestError, ModelLoadError
from octavo.protocol.outputs import CompletionOutput, RequestOutput
from octavo.protocol.sampling import SamplingParams


class FakeAsyncLLM:
    default_sampling: ClassVar = {"temperature": 0.25}

    @classmethod
    async def start(
        cls, config: EngineConfig, *, recorder: Any = None, chat_template: str | None = None, quiet: bool = False
    ) -> FakeAsyncLLM:
        if config.model.model == "missing":
            raise ModelLoadError("missing: no such model")
        if config.model.max_model_len == 7:
            raise ConfigError("max_model_len: must not be 7", param="max_model_len")
        return cls()

    def render_chat(self, messages: list[dict[str, str]], add_generation_prompt: bool = True, **kw: Any) -> str:
        return json.dumps(messages)

    async def generate(
        self,
        prompt: str,
        sampling: SamplingParams,
        request_id: str,
        *,
        stream: bool = True,
        add_special_tokens: bool = True,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        assert stream
        chat = not add_special_tokens
        words = json.loads(prompt)[-1]["content"].split() if chat else prompt.split()
        if words == ["fail"]:
            raise InvalidRequestError("the prompt is too long")
        if words == ["history"]:
            words = ["|".join(f"{m['role']}:{m['content']}" for m in json.loads(prompt)).replace(" ", "_")]
        if words == ["sampling"]:
            words = [f"T={sampling.temperature}", f"max={sampling.max_tokens}", f"seed={sampling.seed}"]
        if words == ["escape"]:
            words = ["\x1b]0;title\x07ok"]
        try:
            for word in ["<", *words, *[">"]]:
                yield self._output(request_id, word + " ", None)
            while words == ["slow"]:
                await asyncio.sleep(0.01)
                yield self._output(request_id, "z", None)
            yield self._output(request_id, "", "length" if words == ["cut"] else "stop")
        finally:
            if words == ["slow"]:
                print("[freed]", file=sys.stderr, flush=True)

    @staticmethod
    def _output(request_id: str, text: str, reason: str | None) -> RequestOutput:
        return RequestOutput(request_id, None, [], [CompletionOutput(0, text, [], finish_reason=reason)], reason is not None)

    async def close(self) -> None:
        print("[closed]", file=sys.stderr, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C typed into a pseudo-terminal is a signal
    module = types.ModuleType("octavo.api.async_llm")
    module.AsyncLLM = FakeAsyncLLM  # type: ignore[attr-defined]
    sys.modules["octavo.api.async_llm"] = module
    from octavo.cli.main import main

    main()
