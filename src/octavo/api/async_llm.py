"""Generation for asyncio programs; the engine runs in a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from octavo.api.embedding import Embedding
from octavo.api.front_end import FrontEnd, open_front_end
from octavo.api.generation import Generation
from octavo.api.prompts import Prompt
from octavo.api.recorder import Recorder, record_end, record_push
from octavo.api.request_ids import check_request_id
from octavo.config.engine import EngineConfig
from octavo.engine.client import EngineClient
from octavo.loading.progress import progress_for
from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.outputs import EmbeddingRequestOutput, PoolingRequestOutput, RequestOutput
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.sampling import RequestOutputKind, SamplingParams
from octavo.protocol.structured_outputs import StructuredOutputsParams
from octavo.protocol.wire import BlocksPage, EngineInfo, EngineOutput, EngineStats
from octavo.text.tokenizer import Tokenizer
from octavo.utils.background import in_background


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request under way, and the event that wakes its iterator."""

    generation: Generation
    news: asyncio.Event


class AsyncLLM:
    """A model that many coroutines of one event loop may ask at once. Made by `await AsyncLLM.start(...)`, ended by `await close()`, which
    may be called twice, or `async with`, or else with the event loop. In another one its calls raise RuntimeError."""

    def __init__(self, front: FrontEnd, recorder: Recorder | None) -> None:
        self._front = front
        self._recorder = recorder
        self._client: EngineClient | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._keys: dict[str, str] = {}
        self._aborts: set[asyncio.Task[None]] = set()
        self._knows_vocabulary = False
        self.stats = EngineStats()

    @classmethod
    async def start(
        cls, config: EngineConfig, *, recorder: Recorder | None = None, chat_template: str | None = None, quiet: bool = False
    ) -> AsyncLLM:
        """Fetches the model if need be, starts the engine and waits until it can serve.

        `chat_template` (a template's text or file) replaces the model's own. Raises ModelLoadError, ConfigError or EngineDeadError.
        """
        front, placed = await asyncio.to_thread(open_front_end, config, progress_for(quiet=quiet), chat_template=chat_template)
        llm = cls(front, recorder)
        llm._client = await EngineClient.start(placed, llm._on_batch, quiet=quiet)
        llm._client.info.model = config.model.model
        front.attach(llm._client.info)
        return llm

    @property
    def _engine(self) -> EngineClient:
        if self._client is None:
            raise RuntimeError("AsyncLLM is made by AsyncLLM.start")
        return self._client

    @property
    def info(self) -> EngineInfo:
        """Sizes and limits of the engine."""
        return self._engine.info

    @property
    def engine_pid(self) -> int:
        """The engine's process id."""
        return self._engine.pid

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._front.tokenizer

    @property
    def default_sampling(self) -> dict[str, Any]:
        """The model's own sampling defaults, by SamplingParams field."""
        return self._front.default_sampling

    @property
    def max_logprobs(self) -> int:
        """How many alternatives a request may ask for at each token, -1 for as many as there are tokens."""
        return self._front.max_logprobs

    @property
    def is_alive(self) -> bool:
        """Whether the engine can still answer."""
        return self._engine.is_alive

    async def wait_dead(self) -> None:
        """Returns when the engine has died."""
        await self._engine.wait_dead()

    def render_chat(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **kwargs: Any) -> str:
        """A conversation as the model's template writes it. Raises InvalidRequestError."""
        return self._front.render_chat(messages, add_generation_prompt=add_generation_prompt, **kwargs)

    def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        request_id: str,
        *,
        stream: bool = True,
        cumulative: bool = False,
        add_special_tokens: bool = True,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generates for one prompt: a string, token ids, or a dictionary with either and a `cache_salt`, as for `LLM.generate`. Under the
        scheduling policy "priority" the lowest `priority` is served first.

        With `stream` each RequestOutput brings what is new since the last one, for the samples that have news, or all so far if it is
        `cumulative`; a consumer that falls behind gets more at a time. Without, there is one, complete. An `output_kind` goes before both.
        Closing the iterator aborts the request and frees its blocks.

        Raises InvalidRequestError for what can't be served, EngineDeadError if the engine dies, OctavoError if this request failed in it.
        """
        if isinstance(sampling, SamplingParams) and sampling.output_kind is not None:
            stream = sampling.output_kind is not RequestOutputKind.FINAL_ONLY
            cumulative = sampling.output_kind is RequestOutputKind.CUMULATIVE
        return self._follow(
            lambda: self._front.prepare(prompt, sampling, request_id, add_special_tokens=add_special_tokens, priority=priority),
            request_id,
            stream,
            cumulative,
            structured_outputs=sampling.structured_outputs if isinstance(sampling, SamplingParams) else None,
        )

    def beam_search(
        self,
        prompt: Prompt,
        params: BeamSearchParams,
        request_id: str,
        *,
        logprobs: int | None = None,
        add_special_tokens: bool = True,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Searches the continuations of one prompt by beams. There is one RequestOutput, with `beam_width` outputs, the best first, and
        `logprobs` likeliest tokens at each position; None: none at all. For the rest see `generate`."""
        return self._follow(
            lambda: self._front.prepare_beam_search(
                prompt, params, request_id, logprobs=logprobs, add_special_tokens=add_special_tokens, priority=priority
            ),
            request_id,
            stream=False,
        )

    async def embed(
        self, prompt: Prompt, params: PoolingParams, request_id: str, *, add_special_tokens: bool = True, priority: int = 0
    ) -> EmbeddingRequestOutput:
        """The embedding of one prompt, its hidden states pooled. A cancelled call aborts the request. Raises as `generate` does."""
        return (await self._pool(prompt, params, request_id, add_special_tokens, priority)).embedded()

    async def encode(
        self, prompt: Prompt, params: PoolingParams, request_id: str, *, add_special_tokens: bool = True, priority: int = 0
    ) -> PoolingRequestOutput:
        """As `embed`, with the vector as `outputs.data`."""
        return (await self._pool(prompt, params, request_id, add_special_tokens, priority)).pooled()

    async def _pool(self, prompt: Prompt, params: PoolingParams, request_id: str, add_special_tokens: bool, priority: int) -> Embedding:
        made: list[Embedding] = []

        def prepare() -> Generation:
            embedding = self._front.prepare_embedding(prompt, params, request_id, add_special_tokens=add_special_tokens, priority=priority)
            made.append(embedding)
            return embedding

        async with aclosing(self._follow(prepare, request_id, stream=False)) as outputs:
            async for _ in outputs:
                pass
        return made[0]

    async def _follow(
        self,
        prepare: Callable[[], Generation],
        request_id: str,
        stream: bool,
        cumulative: bool = False,
        structured_outputs: StructuredOutputsParams | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Sends a request to the engine and gives what comes of it. Raises TypeError for an id that is no str or is empty."""
        check_request_id(request_id)
        if structured_outputs is not None:
            # Compiled aside: others must not wait for it. What it gives is kept, and found again by `prepare`.
            await in_background(self._front.grammars.grammar, structured_outputs)
        if request_id in self._keys:
            raise InvalidRequestError(f"request id {request_id!r} is already in use", param="request_id")
        self._engine.check()
        generation = prepare()
        news = asyncio.Event()
        self._waiting[generation.key], self._keys[request_id] = _Waiting(generation, news), generation.key
        try:
            if generation.grammar is not None and not self._knows_vocabulary:
                self._knows_vocabulary = True
                await self._engine.use_vocabulary(self._front.grammars.vocabulary)
            await self._engine.add(*generation.engine_requests())
            while True:
                await news.wait()
                news.clear()
                self._raise_failure(generation)
                output = generation.take() if stream else generation.output() if generation.finished else None
                if output is not None:
                    yield generation.output() if cumulative else output
                    # More may have come while the consumer was busy, so it is this output that says whether it was the last.
                    if output.finished:
                        return
        finally:
            del self._waiting[generation.key], self._keys[request_id]
            self._close_generation(generation)

    async def abort(self, request_id: str) -> None:
        """Ends a request; its iterator gives what it has, with the finish reason "abort". Raises TypeError for what is no id."""
        check_request_id(request_id)
        waiting = self._waiting.get(self._keys.get(request_id, ""))
        if waiting is None:
            return
        unfinished = waiting.generation.unfinished_ids()
        for sample in waiting.generation.samples:
            sample.finish("abort")
        waiting.news.set()
        await self._engine.abort(unfinished)

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forgets all blocks that could be found by what they hold. False, with nothing forgotten, while requests hold any; with
        `reset_running_requests` those lose their blocks first and compute them once more. Raises EngineDeadError."""
        return await self._engine.reset_prefix_cache(reset_running_requests=reset_running_requests)

    async def kv_blocks(self, offset: int = 0, limit: int = 100) -> BlocksPage:
        """The state of `limit` blocks of the KV cache from `offset` on, and the cache's gauges. Owners are request ids with the number of
        the sample, "ID:INDEX"; for samples that have not begun and are to begin with the blocks, the id alone. Raises EngineDeadError."""
        page = await self._engine.blocks(offset, limit)
        for block in page.blocks:
            block.owners = [name for owner in block.owners if (name := self._owner_name(owner)) is not None]
        return page

    def _owner_name(self, engine_id: str) -> str | None:
        """An id of the engine's in the caller's words; None for a request that ended while the answer was on its way."""
        key, colon, index = engine_id.partition(":")
        waiting = self._waiting.get(key)
        return None if waiting is None else f"{waiting.generation.request_id}{colon}{index}"

    async def save_prefix_cache(self) -> int:
        """Saves all blocks that can be found by what they hold to the folder of the configuration, in place of what was saved before, and
        returns their number; no step runs meanwhile. Raises PrefixCacheError if that fails or there is no folder, EngineDeadError."""
        return await self._engine.save_prefix_cache()

    async def close(self, *, save: bool = True) -> None:
        """Stops the engine. Whoever still waits gets an EngineDeadError. With a `prefix_cache_dir` and `save` the prefix cache is saved
        first: PrefixCacheError says that this failed, and the engine is stopped all the same."""
        try:
            if save and self.info.saves_prefix_cache and self.is_alive:
                await self.save_prefix_cache()
        finally:
            await self._engine.close()
            await asyncio.gather(*self._aborts, return_exceptions=True)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _raise_failure(self, generation: Generation) -> None:
        failure = generation.failure()
        if failure is not None:
            raise failure
        if not generation.finished and not self.is_alive:
            raise self._engine.dead_error()

    def _close_generation(self, generation: Generation) -> None:
        """Whatever way a request ended: nothing of it stays in the engine, and the recorder hears of it."""
        unfinished = generation.unfinished_ids()
        failed = generation.error is not None or (bool(unfinished) and not self.is_alive)
        if unfinished:
            for sample in generation.samples:
                sample.finish("error" if failed else "abort")
            self._abort_later(unfinished)
        record_end(self._recorder, generation, failed=failed)

    def _abort_later(self, engine_ids: list[str]) -> None:
        # A closing generator may be inside a cancelled task, which can't wait for the socket; a task of its own can.
        task = asyncio.get_running_loop().create_task(self._engine.abort(engine_ids))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    def _wake_all(self) -> None:
        for waiting in self._waiting.values():
            waiting.news.set()

    def _on_batch(self, outputs: list[EngineOutput], stats: EngineStats) -> None:
        """A step's results; also called, empty, when the engine has died."""
        if not self.is_alive:
            self._wake_all()
            return
        now = time.monotonic()
        self.stats = stats
        cut = []
        for output in outputs:
            key, _, index = output.request_id.rpartition(":")
            waiting = self._waiting.get(key)
            if waiting is None:
                continue
            generation = waiting.generation
            if record_push(self._recorder, generation, int(index), output, now):
                cut.append(output.request_id)
            waiting.news.set()
        if cut:
            self._abort_later(cut)
        if self._recorder is not None:
            self._recorder.on_step(stats)
