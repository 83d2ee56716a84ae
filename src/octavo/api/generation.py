"""One request of a caller: a prompt and its samples."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from octavo.api.sample import Sample, position_logprobs
from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.errors import InvalidRequestError, OctavoError
from octavo.protocol.outputs import CompletionOutput, PositionLogprobs, RequestMetrics, RequestOutput
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import EngineOutput, EngineRequest
from octavo.text.tokenizer import Tokenizer

SEED_LIMIT = 1 << 63


class Generation:
    """Follows a request through the engine, which sees each of its `n` samples as a request of its own, named `KEY:INDEX`. A beam search is
    one request there, named `KEY:0`, and its samples here are what it found.

    `key` is never used twice for one engine: a caller may use a request id again at once, while the engine still has news of the first.
    """

    def __init__(
        self,
        key: str,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        eos_token_ids: list[int],
        seed: int,
        tokenizer: Tokenizer,
        arrival_time: float,
        cache_salt: str | None = None,
        priority: int = 0,
        beam_search: BeamSearchParams | None = None,
        grammar: str | None = None,
        bad_words: list[list[int]] | None = None,
    ) -> None:
        self.key = key
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.sampling = sampling
        self.metrics = RequestMetrics(arrival_time)
        self.error: str | None = None
        self._invalid = False
        self._num_cached_tokens: int | None = None
        self.n = sampling.n if beam_search is None else beam_search.beam_width
        self.samples = [Sample(index, tokenizer, prompt_token_ids, sampling) for index in range(self.n)]
        self._eos_token_ids = eos_token_ids
        self._seed = seed
        self._cache_salt = cache_salt
        self._priority = priority
        self._beam_search = beam_search
        self._tokenizer = tokenizer
        # The first token follows nothing.
        self.prompt_logprobs: list[PositionLogprobs | None] | None = None if sampling.prompt_logprobs is None else [None]
        self.grammar = grammar
        self._bad_words = bad_words or []

    def engine_requests(self) -> Iterator[EngineRequest]:
        """One request for each sample, which draws with the seed `seed + i`, or one for all beams."""
        asked = self.samples if self._beam_search is None else self.samples[:1]
        group = self.key if len(asked) > 1 else None
        for sample in asked:
            # Text and stop strings are this side's; the engine needs numbers only.
            sampling = msgspec.structs.replace(
                self.sampling,
                n=1,
                stop=None,
                seed=(self._seed + sample.index) % SEED_LIMIT,
                # Once for all samples.
                prompt_logprobs=None if sample.index else self.sampling.prompt_logprobs,
                truncate_prompt_tokens=None,
                structured_outputs=None,
                bad_words=None,
                output_kind=None,
                # The others take over what the first has computed.
                skip_reading_prefix_cache=None if sample.index else self.sampling.skip_reading_prefix_cache,
            )
            yield EngineRequest(
                request_id=self.engine_id(sample.index),
                prompt_token_ids=self.prompt_token_ids,
                sampling=sampling,
                eos_token_ids=self._eos_token_ids,
                arrival_time=self.metrics.arrival_time,
                group_id=group,
                cache_salt=self._cache_salt,
                priority=self._priority,
                beam_search=self._beam_search,
                grammar=self.grammar,
                bad_words=self._bad_words,
            )

    def engine_id(self, index: int) -> str:
        """The engine's name for a sample."""
        return f"{self.key}:{index}"

    @property
    def finished(self) -> bool:
        """Whether every sample is."""
        return all(sample.finished for sample in self.samples)

    @property
    def finish_reason(self) -> str:
        """Of the request as a whole: an error or an abort of any sample, else how the first one ended."""
        reasons = [sample.finish_reason or "abort" for sample in self.samples]
        return next((reason for reason in ("error", "abort") if reason in reasons), reasons[0])

    @property
    def num_generation_tokens(self) -> int:
        """Tokens of all samples."""
        return sum(len(sample.token_ids) for sample in self.samples)

    def unfinished_ids(self) -> list[str]:
        """The engine's names of what still runs."""
        asked = self.samples if self._beam_search is None else self.samples[:1]
        return [self.engine_id(sample.index) for sample in asked if not sample.finished]

    def push(self, index: int, output: EngineOutput, now: float) -> bool:
        """Takes in what a step gave a sample, or what was found for all; nothing once that is finished. True if the engine must be told to
        end it."""
        sample = self.samples[index]
        if sample.finished:
            return False
        metrics = self.metrics
        if output.first_scheduled_time is not None and metrics.first_scheduled_time is None:
            metrics.first_scheduled_time = output.first_scheduled_time
        if self._num_cached_tokens is None:
            # The sample that is heard of first is the one that found, or computed, the prompt for all.
            self._num_cached_tokens = output.num_cached_tokens
        metrics.num_preemptions = max(metrics.num_preemptions, output.num_preemptions)
        if output.token_ids or output.hypotheses:
            metrics.first_token_time = metrics.first_token_time or now
            metrics.last_token_time = sample.last_token_time = now
        if output.error is not None:
            self.error, self._invalid = output.error, output.invalid
        if output.prompt_logprobs and self.prompt_logprobs is not None:
            first = len(self.prompt_logprobs)
            told = zip(self.prompt_token_ids[first : first + len(output.prompt_logprobs)], output.prompt_logprobs, strict=True)
            self.prompt_logprobs += [position_logprobs(token_id, given, self._tokenizer) for token_id, given in told]
        if output.hypotheses is None:
            cut = sample.push(output)
        else:
            cut = False
            for each, found in zip(self.samples, output.hypotheses, strict=True):
                each.push_hypothesis(found)
        if sample.finished and self.finished:
            metrics.finished_time = now
        return cut

    def failure(self) -> OctavoError | None:
        """The error that ended it in the engine, if one did: InvalidRequestError where its own fields are at fault."""
        if self.error is None:
            return None
        kind = InvalidRequestError if self._invalid else OctavoError
        return kind(f"request {self.request_id} failed: {self.error}")

    def take(self) -> RequestOutput | None:
        """What is new since the last `take`, only for samples that have news; None if none has."""
        outputs = [output for sample in self.samples if (output := sample.take()) is not None]
        return self._output_with(outputs) if outputs else None

    def output(self) -> RequestOutput:
        """All of it."""
        result = self._output_with([])
        result.outputs = [sample.output() for sample in self.samples]
        return result

    def _output_with(self, outputs: list[CompletionOutput]) -> RequestOutput:
        cached = self._num_cached_tokens or 0
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            outputs,
            self.finished,
            self.metrics,
            cached,
            self.prompt_logprobs,
        )
