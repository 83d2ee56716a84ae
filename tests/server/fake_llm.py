"""A stand-in for AsyncLLM: a byte-level tokenizer and an engine that says what it is told to, token by token."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from octavo.api.prompts import Prompt, prompt_parts
from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.errors import EngineDeadError, InvalidRequestError, OctavoError
from octavo.protocol.outputs import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Logprob,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
)
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import BlocksPage, BlockState, EngineInfo, EngineStats
from octavo.text.pieces import PieceDecoder
from octavo.text.tokenizer import Tokenizer

EOS = 256
VOCAB_SIZE = 257
# Of a pool of six: block, owners, references, digest, idle seconds.
BLOCKS = [
    (0, ["a:0", "a:1"], 2, "00112233445566778899aabbccddeeff", 0.0),
    (1, ["a:0"], 1, "dd" * 16, 0.0),
    (2, ["a:1"], 1, None, 0.0),
    (3, [], 0, "ff" * 16, 2.00049),
    (4, [], 0, "ee" * 16, 1.5),
    (5, [], 0, None, None),
]
REPLY = "Hello wörld 🙂, this is a reply."


class ByteTokenizer:
    vocab_size = VOCAB_SIZE
    chat_template: str | None = None
    named_templates: dict[str, str] = {}  # noqa: RUF012
    bos_token, eos_token = None, "<|end|>"
    special_ids = added_ids = frozenset({EOS})
    pieces = PieceDecoder()
    # What it puts before a text, where a test wants it to.
    start: int | None = None
    special_tokens: ClassVar[dict[str, int]] = {"<|end|>": EOS}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.start] * (add_special_tokens and self.start is not None) + list(text.encode())

    def least_tokens(self, text: str) -> int:
        return len(text)

    def decode(self, ids: list[int], skip_special_tokens: bool = True, *, whole: bool = True) -> str:
        data = b"".join(b"" if skip_special_tokens and i == EOS else self.token_bytes(i) for i in ids)
        return codecs.getincrementaldecoder("utf-8")("replace").decode(data, whole)

    token_text = Tokenizer.token_text

    def token_bytes(self, token_id: int) -> bytes:
        return b"<|end|>" if token_id == EOS else bytes([token_id])


@dataclass
class Call:
    """What the server asked of the fake, and how it went."""

    prompt: list[int]
    sampling: SamplingParams | BeamSearchParams | PoolingParams
    request_id: str
    stream: bool
    cache_salt: str | None = None
    priority: int = 0
    tokens: int = 0
    closed: bool = False
    finished: bool = False


@dataclass
class FakeLLM:
    """`reply` is said by every sample, then the end token unless `endless`; `delay` seconds pass before each token.

    After `fail_after` tokens the request fails; `die()` kills the engine; `hold` stops tokens until it is set.
    """

    reply: str = REPLY
    delay: float = 0.0
    endless: bool = False
    fail_after: int | None = None
    failure: Exception = field(default_factory=lambda: OctavoError("generation failed: the logits are not finite"))
    model: str = "fake-model"
    max_model_len: int = 200
    max_logprobs: int = 20
    default_sampling: dict[str, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    rendered: list[dict[str, Any]] = field(default_factory=list)
    logprob_floor: float = -0.5
    resets: list[bool] = field(default_factory=list)
    can_reset: bool = True
    pages: list[tuple[int, int]] = field(default_factory=list)
    saves: int = 0
    save_error: Exception | None = None
    most_beams: int = 8
    # Added to the logprobs of sample i.
    logprob_steps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        self.info = EngineInfo(
            self.model,
            "LlamaForCausalLM",
            "reference",
            VOCAB_SIZE,
            self.max_model_len,
            16,
            64,
            1,
            4096,
            "0",
            kv_cache_dtype="float32",
            hidden_size=3,
        )
        self.tokenizer = ByteTokenizer()
        self.stats = EngineStats()
        self.is_alive = True
        self.hold = asyncio.Event()
        self.hold.set()
        self._dead = asyncio.Event()

    def render_chat(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **kwargs: Any) -> str:
        self.rendered.append({"messages": messages, "add_generation_prompt": add_generation_prompt, **kwargs})
        if kwargs.get("explode"):
            raise InvalidRequestError("messages: the chat template refused them: no.", param="messages")
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return text + ("<assistant>" if add_generation_prompt else "")

    def die(self) -> None:
        self.is_alive = False
        self._dead.set()

    async def wait_dead(self) -> None:
        await self._dead.wait()

    async def abort(self, request_id: str) -> None:
        raise NotImplementedError

    async def close(self, *, save: bool = True) -> None:
        self.is_alive = False

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        request_id: str,
        *,
        stream: bool = True,
        add_special_tokens: bool = True,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        assert request_id not in {call.request_id for call in self.calls}
        parts = prompt_parts(prompt)
        ids = self.tokenizer.encode(parts.text or "", add_special_tokens) if parts.token_ids is None else parts.token_ids
        call = Call(ids, sampling, request_id, stream, cache_salt=parts.cache_salt, priority=priority)
        self.calls.append(call)
        samples = [Sample(self, index, sampling, len(ids)) for index in range(sampling.n)]
        metrics = RequestMetrics(time.monotonic())
        told = None if sampling.prompt_logprobs is None else self.prompt_logprobs(ids, sampling.prompt_logprobs)
        try:
            while not all(sample.done for sample in samples):
                await self._wait_for_turn(call)
                call.tokens += 1
                deltas = [sample.step() for sample in samples if not sample.done]
                if stream:
                    yield RequestOutput(request_id, None, ids, deltas, all(s.done for s in samples), metrics, 1, told)
            call.finished = True
            if not stream:
                yield RequestOutput(request_id, None, ids, [sample.whole for sample in samples], True, metrics, 1, told)
        finally:
            call.closed = True

    def prompt_logprobs(self, ids: list[int], count: int) -> list[PositionLogprobs | None]:
        """Each token of a prompt ranks second after "!", "#", …, and has minus its place in the prompt as its logprob."""
        positions: list[PositionLogprobs | None] = [None]
        for place, token_id in enumerate(ids[1:], 1):
            likely = {candidate: Logprob(-0.1 * rank, rank, chr(candidate)) for rank, candidate in enumerate((33, 35, 36)[:count], 1)}
            positions.append({token_id: Logprob(-float(place), 2, self.tokenizer.token_text(token_id)), **likely})
        return positions

    async def beam_search(
        self,
        prompt: Prompt,
        params: BeamSearchParams,
        request_id: str,
        *,
        logprobs: int | None = None,
        add_special_tokens: bool = True,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Beam i leaves out the last i bytes of the reply, and they come in no order."""
        if params.beam_width > self.most_beams:
            raise InvalidRequestError(f"beam_width {params.beam_width} is too much", param="beam_width")
        sampling = SamplingParams(max_tokens=params.max_tokens, logprobs=logprobs)
        ids = prompt_parts(prompt).token_ids
        call = Call(ids, params, request_id, False, cache_salt=prompt_parts(prompt).cache_salt, priority=priority)
        self.calls.append(call)
        outputs = []
        try:
            for index in range(params.beam_width):
                sample = Sample(self, index, sampling, len(ids))
                del sample._ids[len(sample._ids) - index :]
                while not sample.done:
                    await self._wait_for_turn(call)
                    sample.step()
                outputs.insert(0, sample.whole)
            call.finished = True
            yield RequestOutput(request_id, None, ids, outputs, True, RequestMetrics(time.monotonic()), 1)
        finally:
            call.closed = True

    async def embed(
        self, prompt: Prompt, params: PoolingParams, request_id: str, *, add_special_tokens: bool = True, priority: int = 0
    ) -> EmbeddingRequestOutput:
        """The vector is the prompt's length, its last token and 1."""
        ids = prompt_parts(prompt).token_ids
        call = Call(ids, params, request_id, False, priority=priority)
        self.calls.append(call)
        try:
            await self._wait_for_turn(call)
            call.finished = True
            return EmbeddingRequestOutput(request_id, EmbeddingOutput([float(len(ids)), float(ids[-1]), 1.0]), ids)
        finally:
            call.closed = True

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        self.resets.append(reset_running_requests)
        return self.can_reset

    async def kv_blocks(self, offset: int = 0, limit: int = 100) -> BlocksPage:
        self.pages.append((offset, limit))
        blocks = [BlockState(*state) for state in BLOCKS[offset : offset + limit]]
        return BlocksPage(EngineStats(2, 1, 6, 3, 40, blocks_cached=4), 2, blocks)

    async def save_prefix_cache(self) -> int:
        self.saves += 1
        if self.save_error is not None:
            raise self.save_error
        return 7

    async def _wait_for_turn(self, call: Call) -> None:
        if self.fail_after is not None and call.tokens >= self.fail_after:
            raise self.failure
        waits = [asyncio.ensure_future(self._dead.wait()), asyncio.ensure_future(self._pause())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not self.is_alive:
            raise EngineDeadError("The engine has died.")

    async def _pause(self) -> None:
        await self.hold.wait()
        await asyncio.sleep(self.delay)


class Sample:
    """One of a request's samples: steps through the reply's bytes."""

    def __init__(self, llm: FakeLLM, index: int, sampling: SamplingParams, num_prompt_tokens: int) -> None:
        self._llm = llm
        self._sampling = sampling
        self._ids = list(llm.reply.encode())
        self._room = llm.max_model_len - num_prompt_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.whole = CompletionOutput(index, "", [], logprobs=None if sampling.logprobs is None else [])
        self.done = False

    def step(self) -> CompletionOutput:
        position = len(self.whole.token_ids)
        ids = self._ids
        token_id = EOS if position >= len(ids) and not self._llm.endless else ids[position % len(ids)]
        delta = CompletionOutput(self.whole.index, "", [token_id])
        if token_id == EOS:
            delta.finish_reason = "stop"
        else:
            delta.text = self._utf8.decode(bytes([token_id]))
        limit = min(self._sampling.max_tokens or self._room, self._room)
        if delta.finish_reason is None and position + 1 >= limit:
            delta.finish_reason = "length"
        self._stop_strings(delta)
        if self._sampling.logprobs is not None:
            delta.logprobs = [self._logprobs(token_id, self._sampling.logprobs)]
        self._append(delta)
        return delta

    def _stop_strings(self, delta: CompletionOutput) -> None:
        text = self.whole.text + delta.text
        for stop in self._sampling.stop_list:
            if text.endswith(stop):
                delta.text = delta.text.removesuffix(stop[-1])
                delta.finish_reason, delta.stop_reason = "stop", stop

    def _logprobs(self, token_id: int, count: int) -> PositionLogprobs:
        # The sampled token ranks second: the likeliest is always "!".
        found = {token_id: Logprob(self._llm.logprob_floor + self._more(), 2, None)}
        others = [candidate for candidate in (33, 34, 35, 36, 37) if candidate != token_id]
        for rank, candidate in enumerate(others[:count], start=1):
            found[candidate] = Logprob(-0.1 if rank == 1 else -float(rank), rank if rank == 1 else rank + 1, None)
        return found

    def _append(self, delta: CompletionOutput) -> None:
        whole = self.whole
        whole.text += delta.text
        whole.token_ids += delta.token_ids
        whole.finish_reason, whole.stop_reason = delta.finish_reason, delta.stop_reason
        if whole.logprobs is not None and delta.logprobs is not None:
            whole.logprobs += delta.logprobs
            whole.cumulative_logprob = (whole.cumulative_logprob or 0.0) + self._llm.logprob_floor + self._more()
        self.done = delta.finish_reason is not None

    def _more(self) -> float:
        steps, index = self._llm.logprob_steps, self.whole.index
        return steps[index] if index < len(steps) else 0.0
