from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import TokenLogprobs
from octavo.worker.choice import draw, highest, weight_scale
from octavo.worker.philox import random_bits
from octavo.worker.sampler import Sampled, SampleFailed, Sampler, SamplingRow

INF = np.float32(np.inf)


def row_of(
    seed: int = 0, position: int = 0, tokens: list[int] | None = None, prompt: int = 0, eos: list[int] | None = None, **params: Any
) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), seed, position, tokens or [], prompt, eos or [])


def tokens_of(results: list[Sampled | SampleFailed]) -> list[int]:
    assert all(isinstance(r, Sampled) for r in results), results
    return [r.token_id for r in results if isinstance(r, Sampled)]


def one(logits: np.ndarray, row: SamplingRow) -> Sampled:
    (result,) = Sampler(logits.size).sample(logits.reshape(1, -1).astype(np.float32), [row])
    assert isinstance(result, Sampled), result
    return result


def plain_draw(logits: np.ndarray, row: SamplingRow) -> int | None:
    """The definition of a draw: full sorts, one token at a time, whole numbers. None where nothing is left."""
    params, size = row.sampling, len(logits)
    top = logits.max()
    if not np.isfinite(top):
        return None
    if params.is_greedy:
        return min(i for i in range(size) if logits[i] == top)
    ratio = np.exp((logits - top) / np.float32(params.temperature))
    weights = [int(w) for w in np.rint(ratio * weight_scale(size))]
    kept = set(range(size))
    if params.min_p:
        kept -= {i for i in kept if ratio[i] < np.float32(params.min_p)}
    if params.top_k:
        kept &= set(sorted(range(size), key=lambda i: (-logits[i], i))[: params.top_k])
    if params.top_p < 1:
        wanted = math.ceil(params.top_p * sum(weights[i] for i in kept))
        held, nucleus = 0, set()
        for i in sorted(kept, key=lambda i: (-weights[i], i)):
            if held >= wanted:
                break
            held += weights[i]
            nucleus.add(i)
        kept = nucleus
    target = random_bits(row.seed, row.position) * sum(weights[i] for i in kept) >> 64
    for i in sorted(kept):
        target -= weights[i]
        if target < 0:
            return i
    raise AssertionError("the weights are exhausted")


# Few distinct values give many ties, spread ones give none; sizes lie on both sides of a block of 256.
COARSE = st.sampled_from([-np.inf, -30.0, -2.0, -1.0, -0.5, -0.0, 0.0, 0.25, 1.0, 3.0])


@st.composite
def logit_rows(draw_: st.DrawFn) -> np.ndarray:
    size = draw_(st.sampled_from([1, 2, 3, 17, 255, 256, 257, 700, 2049]))
    seed = draw_(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    kind = draw_(st.sampled_from(["coarse", "normal", "peaked", "flat", "masked"]))
    if kind == "coarse":
        values = np.array(draw_(st.lists(COARSE, min_size=1, max_size=8)))
        return rng.choice(values, size).astype(np.float32)
    scale = {"normal": 1.0, "peaked": 12.0, "flat": 0.0, "masked": 3.0}[kind]
    logits = (rng.standard_normal(size) * scale).astype(np.float32)
    if kind == "masked":
        logits[rng.random(size) < 0.7] = -INF
    return logits


@st.composite
def choices(draw_: st.DrawFn) -> dict[str, Any]:
    return {
        "temperature": draw_(st.sampled_from([0.0, 0.01, 0.3, 0.8, 1.0, 2.0])),
        "top_p": draw_(st.one_of(st.just(1.0), st.sampled_from([1e-12, 0.1, 0.5, 0.95, 0.999999, 1 - 2**-53]), st.floats(1e-9, 1.0))),
        "top_k": draw_(st.sampled_from([0, 0, 1, 2, 5, 50, 300, 1000, 10**6])),
        "min_p": draw_(st.sampled_from([0.0, 0.0, 1e-6, 0.05, 0.5, 1.0])),
    }


@settings(max_examples=400)
@given(logit_rows(), choices(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**20))
def test_every_choice_equals_its_plain_definition(logits: np.ndarray, choice: dict[str, Any], seed: int, position: int) -> None:
    row = row_of(seed, position, **choice)
    with np.errstate(all="ignore"):
        expected = plain_draw(logits, row)
    (result,) = Sampler(len(logits)).sample(logits[None, :], [row])
    assert (result.token_id if isinstance(result, Sampled) else None) == expected


@settings(max_examples=200)
@given(logit_rows(), st.sampled_from([1, 2, 5, 20, 127, 128, 600, 5000]))
def test_highest_equals_a_stable_sort(values: np.ndarray, k: int) -> None:
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    assert highest(values, k).tolist() == order[:k]


@settings(max_examples=200)
@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=600).filter(any), st.floats(1e-6, 1.0), st.integers(0, 2**64 - 1))
def test_draw_takes_a_positive_weight_of_the_nucleus(weights: list[int], top_p: float, bits: int) -> None:
    index = draw(np.array(weights, np.float32), top_p, bits)
    assert weights[index] > 0
    above = sum(w for w in weights if w > weights[index])
    assert above < top_p * sum(weights)


def mixed_batch(size: int, count: int) -> tuple[np.ndarray, list[SamplingRow]]:
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((count, size)) * 2).astype(np.float32)
    logits[:, :40] += rng.random(logits[:, :40].shape).astype(np.float32) * 10
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.8, "top_p": 0.95, "logprobs": 5},
        {"temperature": 1.3, "top_k": 40, "logprobs": 0},
        {"temperature": 1.0},
        {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.2, "logprobs": 20},
        {"temperature": 0, "presence_penalty": 1.0, "frequency_penalty": 0.2, "logprobs": 1},
        {"temperature": 1.0, "top_p": 0.5, "top_k": 500, "min_tokens": 90, "stop_token_ids": [1, 2]},
    ]
    rows = []
    for i in range(count):
        length = 3 + i
        tokens = rng.integers(0, size, length).tolist()
        rows.append(row_of(1000 + i, length, tokens, 3, [0], max_tokens=100, **kinds[i % len(kinds)]))
    return logits, rows


def fresh(row: SamplingRow) -> SamplingRow:
    return SamplingRow(row.sampling, row.seed, row.position, row.token_ids, row.num_prompt_tokens, row.eos_token_ids)


def bits_of(result: Sampled | SampleFailed) -> tuple[Any, ...]:
    assert isinstance(result, Sampled), result
    if result.logprobs is None:
        return (result.token_id,)
    found = result.logprobs
    return (result.token_id, found.logprob.hex(), found.rank, tuple(found.top_ids), tuple(v.hex() for v in found.top_logprobs))


@pytest.mark.parametrize("size", [1, 2, 300, 4099, 49_152])
def test_a_row_is_the_same_alone_and_in_any_batch(size: int) -> None:
    count = 64
    logits, rows = mixed_batch(max(size, 3), count)
    if size < 3:
        logits, rows = logits[:, :size].copy(), [row_of(i, i, logprobs=size) for i in range(count)]
    sampler = Sampler(size)
    together = [bits_of(r) for r in sampler.sample(logits, [fresh(r) for r in rows])]
    for i in range(count):
        (alone,) = Sampler(size).sample(logits[i : i + 1].copy(), [fresh(rows[i])])
        assert bits_of(alone) == together[i]
    order = np.random.default_rng(0).permutation(count)
    shuffled = sampler.sample(logits[order], [fresh(rows[i]) for i in order])
    assert [bits_of(r) for r in shuffled] == [together[i] for i in order]


def test_a_row_is_the_same_wherever_it_lies_in_memory() -> None:
    size = 4099
    logits, rows = mixed_batch(size, 14)
    sampler = Sampler(size)
    expected = [bits_of(r) for r in sampler.sample(logits, [fresh(r) for r in rows])]
    for shift in (1, 2, 3, 5, 7, 9, 15):
        space = np.empty(logits.size + shift, np.float32)
        moved = space[shift:].reshape(logits.shape)
        moved[:] = logits
        assert [bits_of(r) for r in sampler.sample(moved, [fresh(r) for r in rows])] == expected
    assert [bits_of(r) for r in sampler.sample(np.asfortranarray(logits), [fresh(r) for r in rows])] == expected


def test_neither_logits_nor_tokens_are_changed() -> None:
    logits, rows = mixed_batch(700, 14)
    before, tokens = logits.copy(), [list(r.token_ids) for r in rows]
    logits.setflags(write=False)
    Sampler(700).sample(logits, rows)
    assert logits.tobytes() == before.tobytes()
    assert [list(r.token_ids) for r in rows] == tokens


def test_a_kept_row_equals_a_fresh_one_at_every_step() -> None:
    """Decode with penalties, once with the row kept from step to step and once rebuilt as after a preemption."""
    size, prompt = 300, [5, 6, 7, 5]
    rng = np.random.default_rng(5)
    tokens = list(prompt)
    kept = row_of(9, 0, tokens, len(prompt), repetition_penalty=1.3, frequency_penalty=0.3, presence_penalty=0.2, logprobs=3)
    sampler = Sampler(size)
    for _ in range(120):
        logits = rng.standard_normal((1, size)).astype(np.float32)
        kept.position = len(tokens)
        (a,) = sampler.sample(logits, [kept])
        rebuilt = SamplingRow(kept.sampling, 9, len(tokens), np.array(tokens, np.int32), len(prompt))
        (b,) = Sampler(size).sample(logits, [rebuilt])
        assert bits_of(a) == bits_of(b)
        assert isinstance(a, Sampled)
        tokens.append(a.token_id)
    assert len(set(tokens)) > 64


class TestGreedy:
    def test_takes_the_lowest_id_among_equals(self) -> None:
        logits = np.array([[0, 3, 1, 3, 3], [-0.0, 0.0, -1, 0, 0]], np.float32)
        assert tokens_of(Sampler(5).sample(logits, [row_of(temperature=0)] * 2)) == [1, 0]

    def test_penalties_can_change_it(self) -> None:
        logits = np.array([0, 3.0, 2.9, 1, 0], np.float32)
        assert one(logits, row_of(0, 2, [1, 4], 2, temperature=0)).token_id == 1
        assert one(logits, row_of(0, 2, [1, 4], 2, temperature=0, presence_penalty=2)).token_id == 1, "the prompt does not count"
        assert one(logits, row_of(0, 2, [4, 1], 1, temperature=0, presence_penalty=2)).token_id == 2
        assert one(logits, row_of(0, 2, [1, 4], 2, temperature=0, repetition_penalty=1.5)).token_id == 2, "the prompt counts"

    def test_top_k_of_one_is_greedy(self) -> None:
        logits = np.random.default_rng(0).integers(0, 4, (30, 400)).astype(np.float32)
        drawn = Sampler(400).sample(logits, [row_of(i, i, top_k=1, temperature=2) for i in range(30)])
        assert tokens_of(drawn) == logits.argmax(axis=1).tolist()


class TestMinTokens:
    LOGITS = np.array([5.0, 4.0, 3.0, 2.0], np.float32)

    def test_end_tokens_wait_until_it_is_reached(self) -> None:
        for generated, expected in [(0, 2), (1, 2), (2, 0), (3, 0)]:
            tokens = [3] * (4 + generated)
            row = row_of(0, len(tokens), tokens, 4, [0], temperature=0, min_tokens=2, stop_token_ids=[1])
            assert one(self.LOGITS, row).token_id == expected

    def test_ignore_eos_does_not_lift_it(self) -> None:
        row = row_of(0, 4, [3] * 4, 4, [0], temperature=0, min_tokens=1, ignore_eos=True)
        assert one(self.LOGITS, row).token_id == 1

    def test_logprobs_are_from_before_the_mask(self) -> None:
        row = row_of(0, 4, [3] * 4, 4, [0], temperature=0, min_tokens=1, logprobs=1)
        found = one(self.LOGITS, row).logprobs
        assert found is not None
        assert (found.top_ids, found.rank) == ([0], 2)

    def test_a_row_with_no_token_left_fails(self) -> None:
        row = row_of(0, 4, [3] * 4, 4, [0, 1, 2], temperature=1, min_tokens=1, stop_token_ids=[3])
        (result,) = Sampler(4).sample(self.LOGITS[None], [row])
        assert result == SampleFailed("min_tokens leaves no token to choose at position 4", invalid=True)


class TestBadLogits:
    @pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "+inf")])
    @pytest.mark.parametrize(
        "params", [{"temperature": 0}, {"temperature": 1}, {"temperature": 0, "repetition_penalty": 1.1, "logprobs": 2}]
    )
    @pytest.mark.parametrize("size", [1, 7, 64, 515])
    def test_fail_their_own_row_only(self, value: float, word: str, params: dict[str, Any], size: int) -> None:
        good = np.random.default_rng(size).standard_normal((3, size)).astype(np.float32)
        rows = [row_of(i, 2, [0, 0], 1, **params) for i in range(3)]
        expected = Sampler(size).sample(good, [fresh(r) for r in rows])
        for column in range(size):
            bad = good.copy()
            bad[1, column] = value
            results = Sampler(size).sample(bad, [fresh(r) for r in rows])
            assert results[1] == SampleFailed(f"the model's logits contain {word} at position 2")
            assert (results[0], results[2]) == (expected[0], expected[2])

    def test_masked_tokens_are_never_drawn_and_all_masked_fails(self) -> None:
        logits = np.full((2, 300), -INF)
        logits[0, [17, 290]] = [0.0, -1.0]
        sampler = Sampler(300)
        seen = set()
        for position in range(60):
            result, failed = sampler.sample(logits, [row_of(1, position), row_of(1, position)])
            assert isinstance(result, Sampled)
            seen.add(result.token_id)
            assert failed == SampleFailed(f"the model's logits are all -inf at position {position}")
        assert seen == {17, 290}

    def test_a_penalty_beyond_float32_fails_its_row(self) -> None:
        logits = np.array([[1e35, 1.0], [1e35, 1.0]], np.float32)
        rows = [row_of(0, 1, [0], 1, repetition_penalty=1e-6), row_of(0, 1, [0], 1, temperature=0)]
        failed, fine = Sampler(2).sample(logits, rows)
        assert failed == SampleFailed("the penalties take a logit out of float32's range at position 1")
        assert fine == Sampled(0)

    def test_huge_finite_logits_are_fine(self) -> None:
        logits = np.array([3e38, -3e38, 3e38], np.float32)
        found = one(logits, row_of(0, 0, temperature=0.01, logprobs=3))
        assert found.token_id in (0, 2)
        assert found.logprobs is not None
        assert found.logprobs.top_ids == [0, 2, 1]

    def test_wrong_shape_or_type_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"float32 \[1, 5\], got float32 \[1, 4\]"):
            Sampler(5).sample(np.zeros((1, 4), np.float32), [row_of()])
        with pytest.raises(ValueError, match="got float64"):
            Sampler(4).sample(np.zeros((1, 4)), [row_of()])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"\[2, 4\]"):
            Sampler(4).sample(np.zeros((1, 4), np.float32), [row_of(), row_of()])


class TestLogprobs:
    def found(self, logits: np.ndarray, **params: Any) -> TokenLogprobs:
        logprobs = one(logits, row_of(3, 1, [0], 0, **params)).logprobs
        assert logprobs is not None
        return logprobs

    def test_none_unless_asked(self) -> None:
        assert one(np.zeros(4), row_of()).logprobs is None

    @pytest.mark.parametrize("size", [1, 3, 1000, 49_152])
    @pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
    def test_are_the_log_softmax(self, size: int, scale: float) -> None:
        logits = (np.random.default_rng(size).standard_normal(size) * scale).astype(np.float32)
        exact = logits.astype(np.float64) - logits.max()
        exact -= math.log(np.exp(exact).sum())
        found = self.found(logits, logprobs=20, temperature=0.5)
        order = sorted(range(size), key=lambda i: (-logits[i], i))[:20]
        token = one(logits, row_of(3, 1, [0], 0, temperature=0.5)).token_id
        assert found.top_ids == order
        np.testing.assert_allclose(found.top_logprobs, exact[order], rtol=1e-6, atol=1e-6)
        assert found.logprob == pytest.approx(exact[token], rel=1e-6, abs=1e-6)
        assert found.rank == 1 + int((logits > logits[token]).sum())
        assert all(type(v) is float and v == float(np.float32(v)) for v in [found.logprob, *found.top_logprobs])

    def test_do_not_see_temperature_penalties_or_filters(self) -> None:
        logits = np.random.default_rng(0).standard_normal(600).astype(np.float32)
        plain = self.found(logits, logprobs=7)
        changed = self.found(logits, logprobs=7, temperature=0.3, top_p=0.2, repetition_penalty=1.9, presence_penalty=2, min_p=0.1)
        assert (changed.top_ids, changed.top_logprobs) == (plain.top_ids, plain.top_logprobs)

    def test_equals_share_a_rank_and_the_lower_id_is_first(self) -> None:
        found = self.found(np.array([1, 2, 2, 0, 2], np.float32), logprobs=4, temperature=0)
        assert found.top_ids == [1, 2, 4, 0]
        assert found.rank == 1
        assert found.top_logprobs[0] == found.top_logprobs[2] == found.logprob

    def test_zero_gives_the_chosen_token_alone_and_minus_one_gives_all(self) -> None:
        logits = np.random.default_rng(0).standard_normal(600).astype(np.float32)
        assert self.found(logits, logprobs=0).top_ids == []
        everything = self.found(logits, logprobs=-1)
        assert sorted(everything.top_ids) == list(range(600))
        assert sum(math.exp(v) for v in everything.top_logprobs) == pytest.approx(1, abs=1e-5)

    def test_masked_tokens_have_minus_infinity(self) -> None:
        found = self.found(np.array([-np.inf, 0, -np.inf]), logprobs=3)
        assert found.top_ids == [1, 0, 2]
        assert found.top_logprobs == [0.0, -math.inf, -math.inf]


def chi_square(counts: Counter[int], probabilities: np.ndarray, draws: int) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom, over tokens expected at least five times; the rest are one class."""
    expected = probabilities * draws
    common = np.flatnonzero(expected >= 5)
    observed = np.array([counts[i] for i in common], float)
    groups = [(observed, expected[common])]
    rest = draws - expected[common].sum()
    if rest >= 5:
        groups.append((np.array([draws - observed.sum()]), np.array([rest])))
    statistic = sum(float(((o - e) ** 2 / e).sum()) for o, e in groups)
    return statistic, sum(len(o) for o, _ in groups) - 1


@pytest.mark.parametrize("vary", ["position", "seed"])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 2.0, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 12},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.5, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
    ],
)
def test_frequencies_follow_the_distribution(params: dict[str, Any], vary: str) -> None:
    size, draws = 600, 12_000
    logits = (np.random.default_rng(8).standard_normal(size) * 2).astype(np.float32)
    probabilities = np.exp((logits.astype(np.float64) - logits.max()) / params["temperature"])
    order = np.argsort(-logits, kind="stable")
    if "min_p" in params:
        probabilities[probabilities < params["min_p"]] = 0
    if "top_k" in params:
        probabilities[order[params["top_k"] :]] = 0
    if "top_p" in params:
        before = np.cumsum(probabilities[order]) - probabilities[order]
        probabilities[order[before >= params["top_p"] * probabilities.sum()]] = 0
    probabilities /= probabilities.sum()
    rows = [row_of(i if vary == "seed" else 5, i if vary == "position" else 5, **params) for i in range(draws)]
    counts = Counter(tokens_of(Sampler(size).sample(np.broadcast_to(logits, (draws, size)), rows)))
    assert set(counts) <= set(np.flatnonzero(probabilities).tolist())
    statistic, freedom = chi_square(counts, probabilities, draws)
    # The statistic has mean `freedom` and variance 2 * freedom; the seeds are fixed, so this passes always or never.
    assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)


def test_sums_stay_exact_at_the_largest_vocabularies() -> None:
    """With equal logits the draw is the share of the vocabulary that the random bits name, to the last token."""
    size = 2**18
    row = row_of(4, 0)
    sampler, logits = Sampler(size), np.zeros((1, size), np.float32)
    for position in range(20):
        row.position = position
        assert tokens_of(sampler.sample(logits, [row])) == [random_bits(4, position) * size >> 64]
    assert weight_scale(size) * size == 2**52
    assert weight_scale(size - 1) * size == 2**52
    assert weight_scale(1) == 2**52


def test_weights_below_half_a_unit_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left as fractions, 100,000 of them would add up and take the last of the range from the likeliest token."""
    size = 2**18
    monkeypatch.setattr("octavo.worker.sampler.random_bits", lambda seed, position: 2**64 - 1)
    logits = np.full((1, size), math.log(0.4 / float(weight_scale(size))), np.float32)
    logits[0, 0] = 0
    assert tokens_of(Sampler(size).sample(logits, [row_of()])) == [0]
    logits[0, -1] = math.log(2 / float(weight_scale(size)))
    assert tokens_of(Sampler(size).sample(logits, [row_of()])) == [size - 1]


def test_the_same_seed_and_position_give_the_same_token_and_others_differ() -> None:
    size = 1000
    logits = np.zeros((1, size), np.float32)
    sampler = Sampler(size)

    def drawn(seed: int, position: int) -> int:
        return tokens_of(sampler.sample(logits, [row_of(seed, position)]))[0]

    assert [drawn(5, p) for p in range(50)] == [drawn(5, p) for p in range(50)]
    assert len({tuple(drawn(seed, p) for p in range(6)) for seed in range(-20, 20)}) == 40
