from __future__ import annotations

import numpy as np
import pytest

from octavo.protocol.sampling import SamplingParams
from octavo.worker.penalties import PenaltyState

VOCAB = 500


def logits(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32)


def penalised(params: SamplingParams, tokens: list[int], prompt: int, row: np.ndarray) -> np.ndarray:
    """The definition, one token at a time."""
    out = row.copy()
    rep, freq, pres = (np.float32(v) for v in (params.repetition_penalty, params.frequency_penalty, params.presence_penalty))
    for token in range(VOCAB):
        count = tokens[prompt:].count(token)
        if token in tokens:
            out[token] = out[token] / rep if out[token] > 0 else out[token] * rep
        if count:
            out[token] = out[token] - freq * np.float32(count)
            out[token] = out[token] - pres
    return out


PARAMS = [
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(repetition_penalty=0.7),
    SamplingParams(frequency_penalty=0.37),
    SamplingParams(presence_penalty=-1.1),
    SamplingParams(repetition_penalty=1.1, frequency_penalty=-0.3, presence_penalty=0.9),
]


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize(("prompt", "length"), [(0, 0), (5, 5), (1, 2), (40, 200), (300, 400)])
def test_equals_the_definition(params: SamplingParams, prompt: int, length: int) -> None:
    tokens = np.random.default_rng(length).integers(0, 150, length).tolist()
    state = PenaltyState(params, prompt)
    state.update(tokens, length)
    row = logits()
    state.apply(row)
    assert row.tobytes() == penalised(params, tokens, prompt, logits()).tobytes()


@pytest.mark.parametrize("params", PARAMS)
def test_grown_token_by_token_equals_rebuilt(params: SamplingParams) -> None:
    tokens = np.random.default_rng(1).integers(0, VOCAB, 300).astype(np.int32)
    grown = PenaltyState(params, 20)
    for length in range(20, 301):
        grown.update(tokens, length)
        if length % 40 == 0:
            rebuilt = PenaltyState(params, 20)
            rebuilt.update(tokens.tolist(), length)
            one, other = logits(length), logits(length)
            grown.apply(one)
            rebuilt.apply(other)
            assert one.tobytes() == other.tobytes()


def test_takes_in_only_what_is_new() -> None:
    class Counting(list[int]):
        read = 0

        def __getitem__(self, part):  # type: ignore[no-untyped-def]
            got = super().__getitem__(part)
            Counting.read += len(got)
            return got

    tokens = Counting(range(400))
    state = PenaltyState(SamplingParams(repetition_penalty=1.2), 300)
    state.update(tokens, 300)
    Counting.read = 0
    for length in range(301, 401):
        state.update(tokens, length)
    assert Counting.read == 100


def test_going_back_forgets_later_tokens() -> None:
    params = PARAMS[-1]
    tokens = list(range(100)) * 2
    state = PenaltyState(params, 10)
    state.update(tokens, 200)
    state.update(tokens, 50)
    row = logits()
    state.apply(row)
    assert row.tobytes() == penalised(params, tokens[:50], 10, logits()).tobytes()


def test_masked_tokens_stay_masked() -> None:
    row = np.full(VOCAB, -np.inf, np.float32)
    row[7] = 1.0
    state = PenaltyState(PARAMS[-1], 1)
    state.update([3, 4, 4, 7], 4)
    state.apply(row)
    assert np.isneginf(np.delete(row, 7)).all()
    assert np.isfinite(row[7])
