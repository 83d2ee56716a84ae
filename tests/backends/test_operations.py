"""Each elementwise and row operation against its definition in float64, one number at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.backends.reference import operations
from octavo.backends.reference.products import Threads, linear
from octavo.graph.graph import RopeSpec

few = settings(max_examples=40)
seeds = st.integers(0, 2**32 - 1)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@few
@given(seeds, st.integers(1, 40), st.integers(1, 60), st.integers(1, 20))
def test_embed_takes_rows(seed: int, vocab: int, width: int, tokens: int) -> None:
    table = normal(seed, vocab, width)
    ids = np.random.default_rng(seed).integers(0, vocab, tokens).astype(np.int32)
    rows = operations.embed(table, ids)
    for row, token in zip(rows, ids, strict=True):
        assert row.tolist() == table[token].tolist()


@few
@given(seeds, st.integers(1, 9), st.integers(1, 700), st.floats(1e-6, 1e-1), st.floats(1e-3, 1e3))
def test_rms_norm(seed: int, rows: int, width: int, epsilon: float, size: float) -> None:
    x, weight = normal(seed, rows, width) * np.float32(size), normal(seed + 1, width)
    result = operations.rms_norm(x, weight, epsilon)
    assert result.dtype == np.float32
    for row, given_row in zip(result, x.astype(float), strict=True):
        root = math.sqrt(math.fsum(value * value for value in given_row) / width + epsilon)
        wanted = [value / root * float(factor) for value, factor in zip(given_row, weight, strict=True)]
        assert row == pytest.approx(wanted, rel=3e-6, abs=1e-9)


def test_a_norm_adds_its_offset_to_the_weight_and_norms_each_head_alone() -> None:
    x, weight = normal(3, 5, 24), normal(4, 8)
    given_rows = operations.head_norm(x, weight, 1e-6, 1.0)
    for row, whole in zip(given_rows, x.astype(float), strict=True):
        for head in range(3):
            own = whole[8 * head : 8 * head + 8]
            root = math.sqrt(math.fsum(own * own) / 8 + 1e-6)
            assert row[8 * head : 8 * head + 8] == pytest.approx(own / root * (1 + weight.astype(float)), rel=3e-6)
    assert operations.head_norm(x, weight, 1e-6).tolist() == operations.rms_norm(x.reshape(15, 8), weight, 1e-6).reshape(5, 24).tolist()


def test_embeddings_are_scaled() -> None:
    table = normal(5, 4, 3)
    assert operations.embed(table, np.array([2, 0], np.int32), 1.5).tolist() == (table[[2, 0]] * np.float32(1.5)).tolist()


def test_rms_norm_of_zeros_is_zero() -> None:
    assert operations.rms_norm(np.zeros((2, 8), np.float32), np.ones(8, np.float32), 1e-5).tolist() == [[0.0] * 8] * 2


@few
@given(seeds, st.integers(1, 37), st.integers(1, 50), st.integers(1, 1100), st.booleans(), st.sampled_from([1, 4, 8, 16]))
def test_linear(seed: int, rows: int, inner: int, outputs: int, with_bias: bool, tile: int) -> None:
    x, weight = normal(seed, rows, inner), normal(seed + 1, outputs, inner)
    bias = normal(seed + 2, outputs) if with_bias else None
    threads = Threads(1)
    result = linear(x, weight, bias, tile, threads)
    assert result.shape == (rows, outputs)
    assert result.dtype == np.float32
    picks = np.random.default_rng(seed).integers(0, (rows, outputs), (30, 2)).tolist()
    for row, output in [*picks, (0, 0), (rows - 1, outputs - 1)]:
        wanted = math.fsum(float(a) * float(b) for a, b in zip(x[row], weight[output], strict=True))
        wanted += 0.0 if bias is None else float(bias[output])
        assert float(result[row, output]) == pytest.approx(wanted, rel=1e-5, abs=3e-6 * inner)


def test_linear_leaves_its_arguments_alone() -> None:
    x, weight, bias = normal(1, 5, 7), normal(2, 3, 7), normal(3, 3)
    before = [array.tobytes() for array in (x, weight, bias)]
    linear(x, weight, bias, 4, Threads(1))
    assert [array.tobytes() for array in (x, weight, bias)] == before


def turned(head: np.ndarray, position: int, frequencies: list[float], scale: float) -> list[float]:
    """One head, rotated: (i, i + half) are the real and imaginary part of a number times e^(i · angle)."""
    half = len(frequencies)
    result = [float(value) for value in head]
    for index, frequency in enumerate(frequencies):
        # The models were trained with the angle rounded to float32.
        angle = float(np.float32(position) * np.float32(frequency))
        number = complex(head[index], head[index + half]) * complex(math.cos(angle), math.sin(angle)) * scale
        result[index], result[index + half] = number.real, number.imag
    return result


@few
@given(
    seeds,
    st.integers(1, 4),
    st.integers(1, 40).map(lambda half: 2 * half),
    st.lists(st.integers(0, 100_000), min_size=1, max_size=6),
    st.sampled_from([10.0, 10_000.0, 500_000.0]),
    st.sampled_from([1.0, 0.5, 1.25]),
    st.booleans(),
)
def test_rope(seed: int, heads: int, head_dim: int, positions: list[int], theta: float, scale: float, whole: bool) -> None:
    frequencies = [theta ** (-2 * index / head_dim) for index in range(head_dim // 2)]
    frequencies = frequencies if whole or head_dim < 4 else frequencies[: head_dim // 4]
    spec = RopeSpec(head_dim, tuple(frequencies), scale)
    x = normal(seed, len(positions), heads * head_dim)
    result = operations.rope(x, *operations.rotations(np.array(positions, np.int32), spec), head_dim)
    for row, given_row, position in zip(result.reshape(-1, heads, head_dim), x.reshape(-1, heads, head_dim), positions, strict=True):
        for head, given_head in zip(row, given_row, strict=True):
            assert head == pytest.approx(turned(given_head, position, frequencies, scale), abs=2e-6)


def test_rope_at_position_zero_changes_nothing_and_keeps_lengths_elsewhere() -> None:
    spec = RopeSpec(8, (1.0, 0.1, 0.01, 0.001))
    x = normal(5, 3, 16)
    positions = np.array([0, 17, 99_999], np.int32)
    result = operations.rope(x, *operations.rotations(positions, spec), 8)
    assert result[0].tobytes() == x[0].tobytes()
    assert np.linalg.norm(result, axis=1) == pytest.approx(np.linalg.norm(x, axis=1), rel=1e-6)


def silu(gate: float, up: float) -> float:
    if gate < -700:
        return 0.0
    return gate / (1 + math.exp(-gate)) * up


@few
@given(
    st.lists(st.tuples(st.floats(-1e4, 1e4, width=32), st.floats(-1e4, 1e4, width=32)), min_size=1, max_size=50),
)
def test_silu_mul(pairs: list[tuple[float, float]]) -> None:
    gate, up = (np.array([column], np.float32) for column in zip(*pairs, strict=True))
    result = operations.silu_mul(gate, up)[0]
    for value, (a, b) in zip(result, pairs, strict=True):
        assert float(value) == pytest.approx(silu(a, b), rel=2e-6, abs=1e-30)


def test_silu_mul_at_extremes() -> None:
    gate = np.array([[-3e38, -1e4, -104.0, -88.0, 0.0, 88.0, 3e38, np.nan]], np.float32)
    result = operations.silu_mul(gate, np.ones_like(gate))[0]
    assert result[:2].tolist() == [0.0, 0.0]
    assert abs(result[2]) < 1e-42
    assert result[3] == pytest.approx(-88 * math.exp(-88), rel=1e-2)
    assert result[4:7].tolist() == [0.0, 88.0, float(np.float32(3e38))]
    assert np.isnan(result[7])


def gelu(gate: float, up: float) -> float:
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return gate / (1 + math.exp(-2 * inner)) * up if inner > -350 else 0.0


@few
@given(st.lists(st.tuples(st.floats(-30, 30, width=32), st.floats(-1e4, 1e4, width=32)), min_size=1, max_size=50))
def test_gelu_mul(pairs: list[tuple[float, float]]) -> None:
    gate, up = (np.array([column], np.float32) for column in zip(*pairs, strict=True))
    result = operations.gelu_mul(gate, up)[0]
    for value, (a, b) in zip(result, pairs, strict=True):
        assert float(value) == pytest.approx(gelu(a, b), rel=4e-5, abs=1e-30)


def test_gelu_mul_is_the_formula_with_a_tanh_and_bounded_at_extremes() -> None:
    gate = np.array([[-3e38, -20.0, -1.0, 0.0, 0.5, 3.0, 3e38, np.nan]], np.float32)
    result = operations.gelu_mul(gate, np.ones_like(gate))[0]
    assert result[[0, 1, 3]].tolist() == [0.0, 0.0, 0.0]
    for value, x in zip(result[[2, 4, 5]], (-1.0, 0.5, 3.0), strict=True):
        wanted = x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        assert float(value) == pytest.approx(wanted, rel=2e-6)
    assert result[6] == np.float32(3e38)
    assert np.isnan(result[7])


@few
@given(st.lists(st.floats(-1e5, 1e5, width=32), min_size=1, max_size=50), st.sampled_from([0.5, 4.0, 30.0, 50.0]))
def test_softcap(values: list[float], cap: float) -> None:
    for capped, value in zip(operations.softcap(np.array(values, np.float32), cap), values, strict=True):
        assert float(capped) == pytest.approx(cap * math.tanh(value / cap), rel=2e-6, abs=1e-30)


def test_add() -> None:
    a, b = normal(1, 3, 5), normal(2, 3, 5)
    wanted = [[float(np.float32(x + y)) for x, y in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)]
    assert operations.add(a, b).tolist() == wanted
