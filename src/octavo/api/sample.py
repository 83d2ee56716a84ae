"""One sample of a request, from token ids to text."""

from __future__ import annotations

import math

from octavo.protocol.outputs import CompletionOutput, Logprob, PositionLogprobs
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import BeamHypothesis, EngineOutput, TokenLogprobs
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.stop import StopChecker
from octavo.text.tokenizer import Tokenizer


class Sample:
    """What one sample has so far, and what of it has not been handed out yet."""

    def __init__(self, index: int, tokenizer: Tokenizer, prompt_ids: list[int], sampling: SamplingParams) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.last_token_time: float | None = None
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._pieces: list[str] = []
        self._logprobs: list[PositionLogprobs] | None = None if sampling.logprobs is None else []
        self._cumulative: float | None = None if sampling.logprobs is None else 0.0
        self._handed: tuple[int, int, bool] = (0, 0, False)
        self._detokenizer = (
            IncrementalDetokenizer(tokenizer, prompt_ids, sampling.skip_special_tokens, sampling.spaces_between_special_tokens)
            if sampling.detokenize
            else None
        )
        self._stop = StopChecker(sampling.stop_list, sampling.include_stop_str_in_output)

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of its tokens' logprobs, if they were asked for."""
        return self._cumulative

    @property
    def finished(self) -> bool:
        """Whether no token will be added."""
        return self.finish_reason is not None

    def push(self, output: EngineOutput) -> bool:
        """Takes in what a step gave. True if a stop string ended the sample while the engine would go on."""
        ended_by_token = output.finish_reason == "stop" and not self._sampling.include_stop_str_in_output
        logprobs = output.logprobs or []
        for place, token_id in enumerate(output.token_ids):
            self.token_ids.append(token_id)
            if self._logprobs is not None and place < len(logprobs):
                self._add_logprobs(token_id, logprobs[place])
            silent = ended_by_token and place == len(output.token_ids) - 1
            if not silent and self._add_text([token_id]):
                return output.finish_reason is None
        if output.finish_reason is not None:
            self._emit(self._stop.flush())
            self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        return False

    def push_hypothesis(self, found: BeamHypothesis) -> None:
        """Takes in, whole, what a beam search found."""
        self.push(EngineOutput("", found.token_ids, found.logprobs, found.finish_reason))
        self._cumulative = found.cumulative_logprob

    def finish(self, reason: str) -> None:
        """Ends the sample from outside."""
        if not self.finished:
            self._emit(self._stop.flush())
            self.finish_reason = reason

    def take(self) -> CompletionOutput | None:
        """What is new since the last `take`: its text, token ids and logprobs; None if nothing is."""
        # That it is finished is news once, even with nothing left to say.
        now = (len(self._pieces), len(self.token_ids), self.finished)
        if now == self._handed:
            return None
        pieces, tokens, _ = self._handed
        self._handed = now
        output = self.output()
        output.text = "".join(self._pieces[pieces:])
        output.token_ids = self.token_ids[tokens:]
        if output.logprobs is not None:
            output.logprobs = output.logprobs[tokens:]
        return output

    def output(self) -> CompletionOutput:
        """All of it."""
        return CompletionOutput(
            index=self.index,
            text="".join(self._pieces),
            token_ids=list(self.token_ids),
            cumulative_logprob=self._cumulative,
            logprobs=None if self._logprobs is None else list(self._logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _add_text(self, token_ids: list[int]) -> bool:
        """Detokenizes; True if a stop string came up, which then ends the sample. None counts before `min_tokens`."""
        if self._detokenizer is None:
            return False
        return self._check(self._detokenizer.push(token_ids), may_stop=len(self.token_ids) > self._sampling.min_tokens)

    def _check(self, text: str, *, may_stop: bool = True) -> bool:
        emit, stopped = self._stop.push(text, check=may_stop)
        self._emit(emit)
        if stopped is not None:
            self.finish_reason, self.stop_reason = "stop", stopped
        return stopped is not None

    def _emit(self, text: str) -> None:
        if text:
            self._pieces.append(text)

    def _add_logprobs(self, token_id: int, given: TokenLogprobs) -> None:
        entry = position_logprobs(token_id, given, self._tokenizer)
        if self._logprobs is not None and self._cumulative is not None:
            self._logprobs.append(entry)
            self._cumulative = self._cumulative + given.logprob if math.isfinite(given.logprob) else -math.inf


def position_logprobs(token_id: int, given: TokenLogprobs, tokenizer: Tokenizer) -> PositionLogprobs:
    """Logprobs at one position, whose token is `token_id`, with each token's text."""
    entry = {token_id: Logprob(given.logprob, given.rank, tokenizer.token_text(token_id))}
    for rank, (top_id, logprob) in enumerate(zip(given.top_ids, given.top_logprobs, strict=True), 1):
        entry.setdefault(top_id, Logprob(logprob, rank, tokenizer.token_text(top_id)))
    return entry
