"""The native sampler against octavo.worker.sampler, on every instruction set of this machine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.backends.sampling import ROW, SamplingInputs, SamplingOutputs
from octavo.protocol.sampling import SamplingParams
from octavo.structured_output.matcher import mask_of
from octavo.worker import sampler as definition
from octavo.worker.philox import random_bits
from octavo.worker.sampler import Sampled, SampleFailed, Sampler, SamplingRow
from octavo.worker.stepping import pack, unpack

native = pytest.importorskip("octavo._native", reason="Octavo was installed without a C++ compiler")

Results = list[Sampled | SampleFailed]
INF = np.float32(np.inf)
ISAS = native.available_isas()


def arrays_of(inputs: SamplingInputs) -> tuple[np.ndarray, ...]:
    """The step's sampling in the native program's order."""
    rows = inputs.rows.view(np.uint8)
    return rows, inputs.changed_ids, inputs.changed_counts, inputs.biased_ids, inputs.biases, inputs.masks


class NativeSampler:
    """The native sampler in the Sampler's clothes."""

    def __init__(self, vocab_size: int, isa: str = "", threads: int = 2) -> None:
        self._vocab_size = vocab_size
        self._program = native.Program(vocab_size, threads, [], isa)

    def sample(self, logits: np.ndarray, rows: Sequence[SamplingRow]) -> Results:
        inputs = pack(rows, self._vocab_size)
        outputs = self._program.sample(logits, *arrays_of(inputs))
        return list(unpack(SamplingOutputs(*outputs), rows, self._vocab_size))


def row_of(
    seed: int = 0,
    position: int = 0,
    tokens: list[int] | None = None,
    prompt: int = 0,
    mask: np.ndarray | None = None,
    bad_words: Sequence[Sequence[int]] = (),
    **params: Any,
) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), seed, position, tokens or [], prompt, [0], mask=mask, bad_words=bad_words)


def fresh(row: SamplingRow) -> SamplingRow:
    return SamplingRow(
        row.sampling,
        row.seed,
        row.position,
        row.token_ids,
        row.num_prompt_tokens,
        row.eos_token_ids,
        mask=row.mask,
        bad_words=row.bad_words,
    )


def bits_of(result: Sampled | SampleFailed) -> tuple[Any, ...]:
    if isinstance(result, SampleFailed):
        return (result.reason,)
    if result.logprobs is None:
        return (result.token_id,)
    found = result.logprobs
    return (result.token_id, found.logprob.hex(), found.rank, tuple(found.top_ids), tuple(value.hex() for value in found.top_logprobs))


# Exponentials of these differences are exact whatever computes them: 1 and 0.
EXACT = st.sampled_from([0.0, -0.0, -400.0, -np.inf])
SIZES = st.sampled_from([1, 2, 3, 15, 16, 17, 255, 256, 257, 700, 2049, 4999])


@st.composite
def logit_rows(draw: st.DrawFn, exact: bool) -> np.ndarray:
    size = draw(SIZES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if exact:
        values = draw(st.lists(EXACT, min_size=1, max_size=8))
        return (rng.choice(np.array(values), size) + np.float32(draw(st.sampled_from([0.0, 7.5])))).astype(np.float32)
    kind = draw(st.sampled_from(["normal", "peaked", "masked", "equals"]))
    logits = (rng.standard_normal(size) * {"normal": 1.0, "peaked": 12.0, "masked": 3.0, "equals": 4.0}[kind]).astype(np.float32)
    if kind == "masked":
        logits[rng.random(size) < 0.7] = -INF
    return np.round(logits) if kind == "equals" else logits


@st.composite
def choices(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.integers(0, 40))
    tokens = draw(st.lists(st.integers(0, 4998), min_size=size, max_size=size))
    return {
        "tokens": tokens,
        "prompt": draw(st.integers(0, size)),
        "seed": draw(st.integers(-(2**63), 2**63 - 1)),
        "temperature": draw(st.sampled_from([0.0, 0.01, 0.3, 0.8, 1.0, 2.0])),
        "top_p": draw(st.one_of(st.just(1.0), st.sampled_from([1e-12, 0.1, 0.5, 0.95, 0.999999, 1 - 2**-53]), st.floats(1e-9, 1.0))),
        "top_k": draw(st.sampled_from([0, 0, 1, 2, 5, 50, 300, 1000, 10**6, 2**40])),
        "min_p": draw(st.sampled_from([0.0, 0.0, 1e-6, 0.05, 0.5, 1.0])),
        "min_tokens": draw(st.sampled_from([0, 0, 0, 5, 100])),
        "stop_token_ids": draw(st.sampled_from([None, [1], [2, 2, 10**6]])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 0.7, 1.3])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.0, -0.5, 1.5])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.0, 0.1, -2.0])),
        "logprobs": draw(st.sampled_from([None, None, 0, 1, 5, 20, 400, -1])),
        "logit_bias": draw(st.sampled_from([None, {}, {0: 3.0, 4000: -100.0}, {7: -0.25, 8: 100.0, 1: 1e-3}])),
        "forbids": draw(st.booleans()),
        "masked": draw(st.sampled_from([None, None, 0.02, 0.5, 0.98, 1.0])),
        "max_tokens": 1000,
    }


def made_row(choice: dict[str, Any], vocab_size: int) -> SamplingRow:
    choice = dict(choice)
    tokens = [token % vocab_size for token in choice.pop("tokens")]
    choice["logit_bias"] = {token % vocab_size: bias for token, bias in (choice["logit_bias"] or {}).items()}
    if choice.pop("forbids"):
        # The first continues what the tokens end with, the second does not.
        choice["bad_words"] = [[*tokens[-2:], 1], [vocab_size + 1, 2]]
    share = choice.pop("masked")
    if share is not None:
        left_out = np.random.default_rng(choice["seed"] % 2**32).random(vocab_size) < share
        choice["mask"] = mask_of(np.flatnonzero(~left_out).tolist(), vocab_size)
    if not choice["temperature"]:
        choice |= {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    return row_of(choice.pop("seed"), len(tokens), tokens, choice.pop("prompt"), **choice)


def neighbours(logits: np.ndarray, row: SamplingRow) -> set[int]:
    """What the definition chooses if the random number, top_p or min_p is another by a millionth."""
    bits = random_bits(row.seed, row.position)
    found = set()
    for shift, nucleus, least in itertools.product((-1e-6, 0, 1e-6), repeat=3):
        moved = fresh(row)
        top_p = min(max(row.sampling.top_p + nucleus, 1e-12), 1.0)
        moved.sampling = msgspec.structs.replace(row.sampling, top_p=top_p, min_p=min(max(row.sampling.min_p * (1 + least), 0.0), 1.0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(definition, "random_bits", lambda *_, at=shift: min(max(bits + int(at * 2**64), 0), 2**64 - 1))
            (result,) = Sampler(len(logits)).sample(logits[None, :], [moved])
        assert isinstance(result, Sampled)
        found.add(result.token_id)
    return found


def check_logprobs(expected: Sampled, got: Sampled, *, same_token: bool) -> None:
    assert (expected.logprobs is None) == (got.logprobs is None)
    if expected.logprobs is None or got.logprobs is None:
        return
    assert got.logprobs.top_ids == expected.logprobs.top_ids
    np.testing.assert_allclose(got.logprobs.top_logprobs, expected.logprobs.top_logprobs, rtol=3e-7, atol=3e-7)
    if same_token:
        assert got.logprobs.rank == expected.logprobs.rank
        assert got.logprobs.logprob == pytest.approx(expected.logprobs.logprob, rel=3e-7, abs=3e-7)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=150)
@given(logits=logit_rows(exact=True), choice=choices())
def test_equals_the_definition_where_exponentials_are_exact(isa: str, logits: np.ndarray, choice: dict[str, Any]) -> None:
    choice |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    row = made_row(choice, len(logits))
    (expected,) = Sampler(len(logits)).sample(logits[None, :], [row])
    (got,) = NativeSampler(len(logits), isa, 1).sample(logits[None, :], [fresh(row)])
    if isinstance(expected, SampleFailed) or isinstance(got, SampleFailed):
        assert got == expected
        return
    assert got.token_id == expected.token_id
    check_logprobs(expected, got, same_token=True)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=150)
@given(logits=logit_rows(exact=False), choice=choices())
def test_equals_the_definition_unless_a_hair_decides(isa: str, logits: np.ndarray, choice: dict[str, Any]) -> None:
    row = made_row(choice, len(logits))
    (expected,) = Sampler(len(logits)).sample(logits[None, :], [row])
    (got,) = NativeSampler(len(logits), isa, 1).sample(logits[None, :], [fresh(row)])
    if isinstance(expected, SampleFailed) or isinstance(got, SampleFailed):
        assert got == expected
        return
    same = got.token_id == expected.token_id
    assert same or (not row.sampling.is_greedy and got.token_id in neighbours(logits, row))
    check_logprobs(expected, got, same_token=same)


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
        tokens = rng.integers(0, size, 3 + i).tolist()
        rows.append(row_of(1000 + i, 3 + i, tokens, 3, max_tokens=100, **kinds[i % len(kinds)]))
    for bad, value in ((7, np.nan), (12, np.inf)):
        logits[bad % count, size // 2] = value
    return logits, rows


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [300, 4099, 49_152])
def test_a_row_is_the_same_alone_in_any_batch_and_on_any_number_of_threads(isa: str, size: int) -> None:
    logits, rows = mixed_batch(size, 64)
    one = NativeSampler(size, isa, 1)
    alone = [bits_of(one.sample(logits[i : i + 1].copy(), [fresh(row)])[0]) for i, row in enumerate(rows)]
    assert len({outcome for outcome in alone if len(outcome) == 1 and isinstance(outcome[0], str)}) == 2
    for threads in (1, 2, 3):
        together = NativeSampler(size, isa, threads)
        assert [bits_of(result) for result in together.sample(logits, [fresh(row) for row in rows])] == alone
        order = np.random.default_rng(threads).permutation(len(rows))
        shuffled = together.sample(logits[order], [fresh(rows[i]) for i in order])
        assert [bits_of(result) for result in shuffled] == [alone[i] for i in order]


def test_a_mixed_batch_is_as_the_definition_has_it() -> None:
    logits, rows = mixed_batch(49_152, 64)
    expected = Sampler(49_152).sample(logits, [fresh(row) for row in rows])
    got = NativeSampler(49_152).sample(logits, [fresh(row) for row in rows])
    assert [bits_of(result)[0] for result in got] == [bits_of(result)[0] for result in expected]


@pytest.mark.parametrize("isa", ISAS)
class TestTies:
    def test_greedy_takes_the_lowest_id(self, isa: str) -> None:
        for first, second in ((0, 1), (3, 700), (255, 256), (16, 0), (1000, 17), (1998, 1999)):
            logits = np.full((1, 2000), -1.0, np.float32)
            logits[0, [first, second]] = 2.0
            (result,) = NativeSampler(2000, isa).sample(logits, [row_of(temperature=0, logprobs=2)])
            assert isinstance(result, Sampled)
            assert result.logprobs is not None
            assert result.token_id == min(first, second)
            assert result.logprobs.rank == 1
            assert result.logprobs.top_ids == sorted((first, second))

    @pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.03}])
    def test_of_equals_the_lower_ids_are_kept(self, isa: str, cut: dict[str, Any]) -> None:
        sampler = NativeSampler(100, isa)
        rows = [row_of(seed, 1, **cut) for seed in range(200)]
        drawn = {result.token_id for result in sampler.sample(np.zeros((200, 100), np.float32), rows) if isinstance(result, Sampled)}
        assert drawn == {0, 1, 2}

    def test_zeros_of_either_sign_are_equal(self, isa: str) -> None:
        logits = np.array([[-1.0, -0.0, 0.0, -0.0]], np.float32)
        (result,) = NativeSampler(4, isa).sample(logits, [row_of(temperature=0, logprobs=3)])
        assert isinstance(result, Sampled)
        assert result.logprobs is not None
        assert (result.token_id, result.logprobs.top_ids) == (1, [1, 2, 3])


@pytest.mark.parametrize("isa", ISAS)
class TestFailures:
    @pytest.mark.parametrize("size", [1, 17, 256, 1000])
    @pytest.mark.parametrize("bad", [{0: np.nan}, {0: np.inf}, {0: np.inf, -1: np.nan}, {-1: -np.nan}, "nothing"])
    @pytest.mark.parametrize("params", [{"temperature": 0}, {"top_p": 0.9, "logprobs": 2, "presence_penalty": 1.0}])
    def test_are_those_of_the_definition_and_leave_other_rows_alone(self, isa: str, size: int, bad: Any, params: dict[str, Any]) -> None:
        logits = np.random.default_rng(0).standard_normal((3, size)).astype(np.float32)
        if bad == "nothing":
            logits[1] = -INF
        else:
            for place, value in bad.items():
                logits[1, place] = value
        rows = [row_of(i, 2, [0, 0], 1, **params) for i in range(3)]
        expected = Sampler(size).sample(logits, [fresh(row) for row in rows])
        got = NativeSampler(size, isa).sample(logits, rows)
        assert isinstance(expected[1], SampleFailed)
        assert got[1] == expected[1]
        assert [bits_of(got[i])[0] for i in (0, 2)] == [bits_of(expected[i])[0] for i in (0, 2)]

    def test_no_token_left_and_penalties_out_of_range(self, isa: str) -> None:
        logits = np.array([[3e38, 1.0], [1.0, -INF]], np.float32)
        rows = [row_of(0, 1, [0], 1, repetition_penalty=1e-3, temperature=0), row_of(0, 1, [1], 1, min_tokens=4)]
        expected = Sampler(2).sample(logits, [fresh(row) for row in rows])
        assert all(isinstance(result, SampleFailed) for result in expected)
        assert NativeSampler(2, isa).sample(logits, rows) == expected


@pytest.mark.parametrize("isa", ISAS)
def test_logprobs_are_the_log_softmax(isa: str) -> None:
    logits = (np.random.default_rng(1).standard_normal((1, 49_152)) * 3).astype(np.float32)
    (result,) = NativeSampler(49_152, isa).sample(logits, [row_of(temperature=0, logprobs=-1)])
    assert isinstance(result, Sampled)
    assert result.logprobs is not None
    exact = logits[0].astype(np.float64)
    exact -= exact.max() + math.log(np.exp(exact - exact.max()).sum())
    np.testing.assert_allclose(result.logprobs.top_logprobs, exact[result.logprobs.top_ids], rtol=1.5e-7, atol=0)
    assert sorted(result.logprobs.top_ids) == list(range(49_152))


def test_frequencies_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625], np.float32))
    rows = [row_of(seed, 5) for seed in range(20_000)]
    drawn = NativeSampler(5).sample(np.tile(logits, (len(rows), 1)), rows)
    counts = np.bincount([result.token_id for result in drawn if isinstance(result, Sampled)], minlength=5)
    expected = np.exp(logits.astype(np.float64)) * len(rows)
    assert ((counts - expected) ** 2 / expected).sum() < 23.5  # the 99.99% point of chi-square with 4 degrees of freedom


class TestRefusals:
    def sample(self, ids: Sequence[int] = (), counts: Sequence[int] = (), bias_ids: Sequence[int] = (), **fields: Any) -> Any:
        biases, masks = fields.pop("given", [0.5] * len(bias_ids)), fields.pop("masks", np.empty((0, 1), np.int32))
        record = np.zeros(1, ROW)
        record["mask"] = -1
        record["top_p"] = record["temperature"] = record["repetition"] = 1.0
        record["logprobs"] = -1
        for name, value in fields.items():
            record[name] = value
        program = native.Program(8, 1, [], "")
        changes = (np.array(ids, np.int32), np.array(counts, np.int32), np.array(bias_ids, np.int32), np.array(biases, np.float32))
        return program.sample(np.zeros((1, 8), np.float32), record.view(np.uint8), *changes, masks)

    def test_a_plain_row_is_fine(self) -> None:
        assert 0 <= self.sample()[0][0] < 8

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("temperature", np.nan),
            ("temperature", -1.0),
            ("temperature", np.inf),
            ("top_p", 0.0),
            ("top_p", np.nan),
            ("min_p", 1.5),
            ("top_k", -1),
            ("logprobs", -2),
            ("changes", -1),
            ("changes", 1),
            ("biases", -1),
            ("biases", 1),
            ("mask", -2),
            ("mask", 0),
        ],
    )
    def test_fields_out_of_range(self, field: str, value: float) -> None:
        with pytest.raises(ValueError, match=r"range|negative|differ"):
            self.sample(**{field: value})

    @pytest.mark.parametrize(("token", "count"), [(-1, 0), (8, 0), (0, -2)])
    def test_changes_out_of_range(self, token: int, count: int) -> None:
        with pytest.raises(ValueError, match=r"out of range|negative"):
            self.sample([token], [count], changes=1)

    @pytest.mark.parametrize("token", [-1, 8])
    def test_biases_out_of_range(self, token: int) -> None:
        with pytest.raises(ValueError, match="out of range"):
            self.sample(bias_ids=[token], biases=1)

    def test_biases_that_are_no_numbers_or_too_few(self) -> None:
        with pytest.raises(ValueError, match="not a number"):
            self.sample(bias_ids=[1], given=[np.nan], biases=1)
        with pytest.raises(ValueError, match="differ in number"):
            self.sample(bias_ids=[1], given=[], biases=1)

    def test_masks_of_another_width(self) -> None:
        with pytest.raises(ValueError, match="width"):
            self.sample(mask=0, masks=np.zeros((1, 2), np.int32))

    def test_logits_of_another_shape(self) -> None:
        program = native.Program(8, 1, [], "")
        nothing = (np.empty(0, np.int32),) * 3 + (np.empty(0, np.float32), np.empty((0, 1), np.int32))
        with pytest.raises(ValueError, match="shape"):
            program.sample(np.zeros((2, 8), np.float32), np.zeros(1, ROW).view(np.uint8), *nothing)
        with pytest.raises(ValueError, match="size"):
            program.sample(np.zeros((1, 8), np.float32), np.zeros(ROW.itemsize - 1, np.uint8), *nothing)
