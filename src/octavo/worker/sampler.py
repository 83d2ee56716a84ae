"""Logits in, tokens out.

The order is vLLM's: logprobs from the raw logits; then what a grammar, `allowed_token_ids` or `bad_words` leave out masked; end tokens
masked while `min_tokens` is not reached; `logit_bias`; penalties; then the highest logit (greedy), or temperature, min_p, top_k, top_p and
a draw. Every row is worked on alone, over its full length and in a fixed order, so a request's token and logprobs are the same bits
whatever else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo.backends.sampling import NoToken
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import TokenLogprobs
from octavo.structured_output.matcher import GrammarMatcher, Words
from octavo.worker.choice import draw, highest, weight_scale
from octavo.worker.penalties import PenaltyState
from octavo.worker.philox import random_bits

Floats = npt.NDArray[np.float32]


@dataclass(slots=True)
class SamplingRow:
    """What the sampler must know of one request. Keep one for a request's stay in the worker and set `position` before each step.

    `position` is the index, in the sequence, of the token to be sampled: `token_ids[:position]` are known, the first
    `num_prompt_tokens` of them from the prompt. `token_ids` may be the worker's own growing list. `seed` is the request's 64-bit seed,
    never None. `eos_token_ids` are the model's end tokens. Penalty counts are built at first need and grow by what is new, so one
    row used throughout costs O(1) a token, while a fresh one (after a preemption) gives the same bits. `record` is `sampling` and `seed`
    as a program that samples by itself takes them. A `given` token, if it is not −1, is at that place already: nothing is chosen, and only
    its logprobs are wanted. A row with a `grammar` has a `matcher` from its first token on, and each step gives it a `mask` of the tokens
    that it may choose, or says in `failure` why the request can't go on.
    `bad_words` are sequences of tokens that the output must not hold. `fixed_mask` is what `allowed_token_ids` and those of a single token
    leave, and the `mask` of a row without a grammar.
    """

    sampling: SamplingParams
    seed: int
    position: int
    token_ids: Sequence[int] | npt.NDArray[np.int32]
    num_prompt_tokens: int
    eos_token_ids: Sequence[int] = ()
    penalties: PenaltyState | None = field(default=None, repr=False, compare=False)
    record: bytes | None = field(default=None, repr=False, compare=False)
    given: int = -1
    grammar: str | None = field(default=None, repr=False)
    matcher: GrammarMatcher | None = field(default=None, repr=False, compare=False)
    mask: Words | None = field(default=None, repr=False, compare=False)
    failure: SampleFailed | None = None
    bad_words: Sequence[Sequence[int]] = field(default=(), repr=False)
    fixed_mask: Words | None = field(default=None, repr=False, compare=False)

    @property
    def changes_logits(self) -> bool:
        """Whether this step masks or penalises any token."""
        sampling = self.sampling
        return bool(self.mask is not None or self.needs_min_tokens or sampling.has_penalties or sampling.logit_bias or self.bad_words)

    @property
    def forbids_ends(self) -> bool:
        """Whether end tokens are forbidden beside what a mask leaves out; a grammar's reckons with `min_tokens` by itself."""
        return self.needs_min_tokens and self.grammar is None

    @property
    def needs_min_tokens(self) -> bool:
        """Whether end tokens are still forbidden. As in vLLM the model's own end tokens are among them even with ignore_eos."""
        return self.position - self.num_prompt_tokens < self.sampling.min_tokens

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """What can't be chosen until `min_tokens` is reached; some may lie outside the vocabulary."""
        return (*self.eos_token_ids, *(self.sampling.stop_token_ids or ()))

    def completing(self) -> list[int]:
        """The tokens that would complete one of `bad_words`, where the output has all of it but the last. As in vLLM the prompt is none of
        it."""
        generated = self.position - self.num_prompt_tokens
        found = []
        for word in self.bad_words:
            begun = len(word) - 1
            if 0 < begun <= generated and list(self.token_ids[self.position - begun : self.position]) == list(word[:-1]):
                found.append(word[-1])
        return found

    def counted(self) -> PenaltyState:
        """The penalties' counts of the first `position` tokens."""
        if self.penalties is None:
            self.penalties = PenaltyState(self.sampling, self.num_prompt_tokens)
        self.penalties.update(self.token_ids, self.position)
        return self.penalties


@dataclass(slots=True)
class Sampled:
    """The token chosen for one row, and its logprobs if the request asked for them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class SampleFailed:
    """Why one row got no token. The request can't go on; the other rows are unharmed. `invalid`: its own fields are at fault."""

    reason: str
    invalid: bool = False


_WORDS = {
    NoToken.NAN: "the model's logits contain NaN",
    NoToken.INFINITY: "the model's logits contain +inf",
    NoToken.NOTHING: "the model's logits are all -inf",
    NoToken.OVERFLOW: "the penalties take a logit out of float32's range",
}


def failed(why: NoToken, row: SamplingRow) -> SampleFailed:
    """The failure in words."""
    if why is NoToken.MASKED:
        masks = {
            "structured_outputs": row.grammar is not None,
            "allowed_token_ids": row.sampling.allowed_token_ids is not None,
            "bad_words": bool(row.bad_words),
            "min_tokens": row.needs_min_tokens,
        }
        names = [name for name, masks_some in masks.items() if masks_some]
        return SampleFailed(
            f"{' and '.join(names)} {'leave' if len(names) > 1 else 'leaves'} no token to choose at position {row.position}", invalid=True
        )
    return SampleFailed(f"{_WORDS[why]} at position {row.position}")


class Sampler:
    """Chooses one token for each row of logits. Holds scratch memory, so use one from one thread at a time."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._scale = weight_scale(vocab_size)
        self._logits = np.empty(vocab_size, np.float32)
        self._weights = np.empty(vocab_size, np.float32)
        self._mass = np.empty(vocab_size, np.float64)

    def sample(self, logits: Floats, rows: Sequence[SamplingRow]) -> list[Sampled | SampleFailed]:
        """One result for each row of `logits` (float32, [len(rows), vocab_size]; not changed).

        A logit of -inf is a token that can't be chosen. A row that holds NaN or +inf, or only -inf, fails by itself.
        Raises ValueError if `logits` has another shape or type.
        """
        if logits.shape != (len(rows), self.vocab_size) or logits.dtype != np.float32:
            raise ValueError(f"logits must be float32 [{len(rows)}, {self.vocab_size}], got {logits.dtype} {list(logits.shape)}")
        logits = np.ascontiguousarray(logits)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return [self._sample_row(values, row) for values, row in zip(logits, rows, strict=True)]

    def _sample_row(self, raw: Floats, row: SamplingRow) -> Sampled | SampleFailed:
        best = int(raw.argmax())
        raw_top = float(raw[best])
        # argmax stops at the first NaN, and no finite number is above +inf, so this one value tells of the whole row.
        if not math.isfinite(raw_top):
            why = NoToken.NOTHING if raw_top == -math.inf else NoToken.NAN if math.isnan(raw_top) else NoToken.INFINITY
            return failed(why, row)
        if row.given >= 0:
            return Sampled(row.given, self._logprobs(raw, raw_top, row.given, row.sampling.logprobs or 0))
        if row.failure is not None:
            return row.failure
        values, top = raw, raw_top
        if row.changes_logits:
            values = self._changed(raw, row)
            best = int(values.argmax())
            top = float(values[best])
            if not math.isfinite(top):
                return failed(NoToken.MASKED if top == -math.inf else NoToken.OVERFLOW, row)
        token_id = best if row.sampling.is_greedy else self._draw(values, top, row)
        if row.sampling.logprobs is None:
            return Sampled(token_id)
        return Sampled(token_id, self._logprobs(raw, raw_top, token_id, row.sampling.logprobs))

    def _changed(self, raw: Floats, row: SamplingRow) -> Floats:
        """The row's logits with what can't be chosen masked, biases and penalties applied, in scratch memory."""
        values = self._logits
        values[:] = raw
        if row.mask is not None:
            values[np.unpackbits(row.mask.view(np.uint8), bitorder="little")[: self.vocab_size] == 0] = -np.inf
        for token_id in (*(row.end_token_ids if row.forbids_ends else ()), *row.completing()):
            if token_id < self.vocab_size:
                values[token_id] = -np.inf
        for token_id, bias in (row.sampling.logit_bias or {}).items():
            values[token_id] += np.float32(bias)
        if row.sampling.has_penalties:
            row.counted().apply(values)
        return values

    def _draw(self, values: Floats, top: float, row: SamplingRow) -> int:
        """A random token. `top` is the highest of `values`.

        A token's weight is `rint(exp((logit - top) / temperature) * scale)` in float32; min_p drops those whose exp is below it,
        top_k all but the k highest logits (the lower id first where they are equal), top_p is as `draw` says.
        """
        sampling = row.sampling
        ids = None
        if 0 < sampling.top_k < self.vocab_size:
            ids = np.sort(highest(values, sampling.top_k))
            values = values[ids]
        weights = self._weights[: len(values)]
        # Subtracting the highest first keeps the quotient from overflowing at low temperatures.
        np.subtract(values, np.float32(top), out=weights)
        np.divide(weights, np.float32(sampling.temperature), out=weights)
        np.exp(weights, out=weights)
        if sampling.min_p > 0.0:
            np.multiply(weights, weights >= np.float32(sampling.min_p), out=weights)
        np.multiply(weights, self._scale, out=weights)
        np.rint(weights, out=weights)
        index = draw(weights, sampling.top_p, random_bits(row.seed, row.position))
        return index if ids is None else int(ids[index])

    def _logprobs(self, raw: Floats, top: float, token_id: int, count: int) -> TokenLogprobs:
        """Log-softmax of the raw logits at the chosen token and at the `count` highest (-1: all).

        The sum is float64 over float32 exponentials; each logprob is rounded to float32. Order and rank are by logit, so that tokens
        whose logprobs round to the same float still have one order.
        """
        np.subtract(raw, np.float32(top), out=self._weights)
        np.exp(self._weights, out=self._weights)
        self._mass[:] = self._weights
        norm = top + math.log(float(self._mass.sum()))
        ids = highest(raw, self.vocab_size if count == -1 else count) if count else np.empty(0, np.int64)
        of_top = (raw[ids].astype(np.float64) - norm).astype(np.float32)
        of_token = np.float32(float(raw[token_id]) - norm)
        rank = 1 + int(np.count_nonzero(raw > raw[token_id]))
        return TokenLogprobs(float(of_token), rank, ids.tolist(), of_top.tolist())
