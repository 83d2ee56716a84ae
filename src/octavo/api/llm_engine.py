"""vLLM's LLMEngine: the engine of LLM, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from octavo.api.call_arguments import refuse_more
from octavo.api.engine_args import EngineArgs
from octavo.api.generation import Generation
from octavo.api.interrupt import HeldInterrupt
from octavo.api.llm import LLM
from octavo.api.missing_names import MissingFromLLMEngine
from octavo.api.prompts import Prompt
from octavo.api.recorder import record_push
from octavo.api.request_ids import check_request_id, ids_to_abort
from octavo.engine.core import EngineCore
from octavo.protocol.errors import InvalidRequestError, OctavoError
from octavo.protocol.lora import LoRARequest, refuse_adapters
from octavo.protocol.outputs import RequestOutput
from octavo.protocol.sampling import RequestOutputKind, SamplingParams
from octavo.text.tokenizer import Tokenizer


class LLMEngine(MissingFromLLMEngine):
    """Requests come and go between the steps, which the caller makes, in this process and one thread.

    Made by `LLMEngine.from_engine_args(EngineArgs(...))`, ended by `shutdown()`, which may be called twice, or `with`. Raises what `LLM`
    does, and TypeError for what is no EngineArgs.
    """

    def __init__(self, engine_args: EngineArgs) -> None:
        if not isinstance(engine_args, EngineArgs):
            raise TypeError(f"{type(self).__name__}() takes EngineArgs, not {type(engine_args).__name__}")
        args = engine_args
        self._llm = LLM(args.model, seed=args.seed, chat_template=args.chat_template, quiet=args.quiet, **args.keywords)
        self._running: dict[str, Generation] = {}
        self._failures: list[OctavoError] = []

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLMEngine:
        """An engine of these arguments."""
        return cls(engine_args)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **others: Any,
    ) -> None:
        """Queues a request, which the next steps compute. Raises InvalidRequestError for one that can't be served, or an id in use, and
        TypeError for an id that is no str or is empty."""
        check_request_id(request_id)
        refuse_adapters(lora_request)
        refuse_more("LLMEngine.add_request", others)
        if any(generation.request_id == request_id for generation in self._running.values()):
            raise InvalidRequestError(f"request id {request_id!r} is already in use", param="request_id")
        with self._turn() as core:
            front = self._llm._front
            generation = front.prepare(prompt, params, request_id, priority=priority)
            if generation.grammar is not None and not core.has_vocabulary:
                core.use_vocabulary(front.grammars.vocabulary)
            for request in generation.engine_requests():
                core.add(request)
            self._running[generation.key] = generation

    def step(self) -> list[RequestOutput]:
        """Computes one step: the requests that have news, each with everything so far, or what its `output_kind` says. Without requests
        there is nothing to do. Raises OctavoError for a request that failed in the step before, and the others go on; an error of the
        engine itself ends them all."""
        with self._turn() as core, HeldInterrupt():
            if self._failures:
                raise self._failures.pop(0)
            if not core.has_work:
                return []
            try:
                outputs = core.step()
            except BaseException:
                self._forget(list(self._running))
                raise
            now = time.monotonic()
            heard = dict.fromkeys(output.request_id.rpartition(":")[0] for output in outputs)
            for output in outputs:
                key, _, index = output.request_id.rpartition(":")
                if record_push(None, self._running[key], int(index), output, now):
                    core.abort(output.request_id)
            return self._news([self._running[key] for key in heard])

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """Forgets requests by their ids and frees their blocks; ids that are not known are passed over. Raises TypeError for what is
        no id."""
        wanted = ids_to_abort(request_id)
        with self._turn():
            self._forget([key for key, generation in self._running.items() if generation.request_id in wanted])

    def has_unfinished_requests(self) -> bool:
        """Whether there is something for `step` to do."""
        return bool(self._running or self._failures)

    def get_num_unfinished_requests(self) -> int:
        """How many requests run or wait, or have failed and were not told of yet."""
        return len(self._running) + len(self._failures)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._llm.get_tokenizer()

    def reset_prefix_cache(self, reset_running_requests: bool = False, **others: Any) -> bool:
        """Forgets all blocks that could be found by what they hold; False while requests hold any, which with `reset_running_requests`
        lose them first and compute them once more."""
        refuse_more("LLMEngine.reset_prefix_cache", others)
        return self._llm.reset_prefix_cache(reset_running_requests)

    def shutdown(self) -> None:
        """Ends the engine and whatever runs. Calls after it raise RuntimeError."""
        if not self._llm._closed:
            self.abort_request([generation.request_id for generation in self._running.values()])
            self._failures.clear()
        self._llm.close()

    def __enter__(self) -> LLMEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    @contextmanager
    def _turn(self) -> Iterator[EngineCore]:
        with self._llm._turns.take():
            if self._llm._closed:
                raise RuntimeError("this LLMEngine is shut down")
            yield self._llm._core

    def _news(self, generations: list[Generation]) -> list[RequestOutput]:
        """What there is to tell of these requests, of which those that are over are then forgotten."""
        failures = [failure for generation in generations if (failure := generation.failure()) is not None]
        self._failures += failures
        told = [output for generation in generations if generation.error is None and (output := _told(generation)) is not None]
        self._forget([generation.key for generation in generations if generation.finished or generation.error is not None])
        return told

    def _forget(self, keys: list[str]) -> None:
        for key in keys:
            for engine_id in self._running.pop(key).unfinished_ids():
                self._llm._core.abort(engine_id)


def _told(generation: Generation) -> RequestOutput | None:
    kind = generation.sampling.output_kind
    if kind is RequestOutputKind.DELTA:
        return generation.take()
    return generation.output() if generation.finished or kind is not RequestOutputKind.FINAL_ONLY else None
