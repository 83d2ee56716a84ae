"""vLLM's AsyncLLMEngine over AsyncLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from octavo.api.async_llm import AsyncLLM
from octavo.api.call_arguments import refuse_more
from octavo.api.engine_args import EngineArgs
from octavo.api.missing_names import MissingFromEngines
from octavo.api.prompts import Prompt
from octavo.config.engine import EngineConfig
from octavo.config.values import settled
from octavo.protocol.errors import EngineDeadError
from octavo.protocol.lora import LoRARequest, refuse_adapters
from octavo.protocol.outputs import PoolingRequestOutput, RequestOutput
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.sampling import SamplingParams
from octavo.text.tokenizer import Tokenizer


class AsyncLLMEngine(MissingFromEngines):
    """An engine in a process of its own that starts when it is first used, in the event loop of that use. It is made of EngineArgs, or of
    the configuration that these make.

    End it with `await close()`, `async with`, or `shutdown()`. A start that failed is not tried again: its error is raised each time.
    """

    def __init__(self, engine_args: EngineArgs | EngineConfig) -> None:
        if not isinstance(engine_args, EngineArgs | EngineConfig):
            raise TypeError(
                f"{type(self).__name__}() takes EngineArgs, or what their create_engine_config() gives, not {type(engine_args).__name__}"
            )
        self._args = engine_args
        self._starting: asyncio.Task[AsyncLLM] | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLMEngine:
        """An engine of these arguments."""
        return cls(engine_args)

    @classmethod
    def from_vllm_config(cls, vllm_config: EngineConfig) -> AsyncLLMEngine:
        """An engine of a configuration that `EngineArgs.create_engine_config` made."""
        return cls(vllm_config)

    async def start(self) -> AsyncLLM:
        """Starts the engine unless it runs. Raises ModelLoadError, ConfigError or EngineDeadError, and RuntimeError in another event loop
        than the one that it was started in."""
        if self._closing is not None:
            raise EngineDeadError("this AsyncLLMEngine is closed")
        self._check_loop()
        if self._starting is None:
            args = self._args
            if isinstance(args, EngineArgs):
                start = AsyncLLM.start(args.create_engine_config(), chat_template=args.chat_template, quiet=args.quiet)
            else:
                start = AsyncLLM.start(args)
            self._starting = asyncio.get_running_loop().create_task(start)
        starting = self._starting
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled() and self._closing is not None:
                raise EngineDeadError("this AsyncLLMEngine was closed while it started") from None
            raise

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        *,
        priority: int = 0,
        **others: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generates for one prompt; as in vLLM each RequestOutput has everything so far. Closing the iterator aborts the request. Raises
        as `AsyncLLM.generate` does."""
        refuse_adapters(lora_request)
        refuse_more("AsyncLLMEngine.generate", others)
        llm = await self.start()
        outputs = llm.generate(prompt, sampling_params, request_id, cumulative=True, priority=priority)
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        *,
        priority: int = 0,
        **others: Any,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """The vector of one prompt, in one output. Raises as `AsyncLLM.encode` does."""
        refuse_adapters(lora_request)
        refuse_more("AsyncLLMEngine.encode", others)
        yield await (await self.start()).encode(prompt, pooling_params, request_id, priority=priority)

    async def abort(self, request_id: str) -> None:
        """Ends a request; its iterator gives what it has, with the finish reason "abort"."""
        await (await self.start()).abort(request_id)

    async def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return (await self.start()).tokenizer

    async def reset_prefix_cache(self, reset_running_requests: bool = False, **others: Any) -> bool:
        """Forgets all blocks that could be found by what they hold; False while requests hold any, which with `reset_running_requests`
        lose them first and compute them once more."""
        running = settled("reset_running_requests", reset_running_requests, bool)
        refuse_more("AsyncLLMEngine.reset_prefix_cache", others)
        return await (await self.start()).reset_prefix_cache(reset_running_requests=running)

    async def check_health(self) -> None:
        """Raises EngineDeadError if the engine has died."""
        if not (await self.start()).is_alive:
            raise EngineDeadError("the engine has died")

    @property
    def is_running(self) -> bool:
        """Whether the engine can answer now."""
        return self._closing is None and self._is_started and self._started().is_alive

    @property
    def errored(self) -> bool:
        """Whether it could not start, or has died."""
        if self._starting is None or not self._starting.done() or self._starting.cancelled():
            return False
        return not self._is_started or (self._closing is None and not self._started().is_alive)

    def shutdown(self) -> None:
        """Begins to end the engine; to be called in its event loop, which must go on running for a moment."""
        self._check_loop()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())

    async def close(self) -> None:
        """Ends the engine and waits for that. May be called twice, and after a start that failed."""
        self.shutdown()
        assert self._closing is not None
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> AsyncLLMEngine:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _check_loop(self) -> None:
        if self._starting is not None and self._starting.get_loop() is not asyncio.get_running_loop():
            raise RuntimeError("this AsyncLLMEngine was started in another event loop, and can be used and closed only there")

    @property
    def _is_started(self) -> bool:
        task = self._starting
        return task is not None and task.done() and not task.cancelled() and task.exception() is None

    def _started(self) -> AsyncLLM:
        assert self._starting is not None
        return self._starting.result()

    async def _close(self) -> None:
        if self._starting is None:
            return
        if not self._starting.done():
            self._starting.cancel()
        await asyncio.gather(self._starting, return_exceptions=True)
        if self._is_started:
            await self._started().close()
