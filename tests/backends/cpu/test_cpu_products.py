"""Products of every weight format on every instruction set, against the same roundings in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_emulation import FLOAT_KINDS, bf16, packed, quantized
from cpu_models import random_tensor

from octavo.backends.cpu.packing import Layout, packable
from octavo.quantization.decode import decode
from octavo.quantization.tensor import CheckpointTensor

native = pytest.importorskip("octavo._native", reason="Octavo was installed without a C++ compiler")

Array = np.ndarray[Any, Any]
KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "IQ4_NL", "Q4_K", "Q6_K", "BF16", "F16", "F32"]
NOTHING = np.empty(0, np.int64)

pytestmark = pytest.mark.parametrize("isa", native.available_isas())


class Product:
    """Rows of `table` (bfloat16 numbers) times a weight; both have one row for each token of the vocabulary."""

    def __init__(self, table: Array, weight: CheckpointTensor, isa: str, *, bias: Array | None = None, threads: int = 2) -> None:
        outputs, inner = weight.shape
        self.native = program = native.Program(outputs, threads, [], isa)
        embedding = program.add_linear(Layout.BF16, outputs, inner, np.empty(0, np.float32))
        assert program.fill(embedding, 0, np.ascontiguousarray(table, np.float32).view(np.uint8), NOTHING) == 0
        ready = packable(weight)
        self.linear = program.add_linear(ready.layout, outputs, inner, np.empty(0, np.float32) if bias is None else bias)
        self.changed = program.fill(self.linear, ready.storage, ready.data, NOTHING)
        tokens, samples = program.add_floats(inner, False), program.add_floats(inner, True)
        program.embed(embedding, tokens)
        program.gather(tokens, samples)
        activations = program.add_activations(inner, ready.layout.integer, True)
        program.convert(samples, activations)
        program.product(activations, program.add_floats(outputs, True), [(self.linear, 0)], False)
        program.allocate_cache(64, 16)

    def rows(self, tokens: Array) -> Array:
        """The products of the rows that `tokens` name, as tokens of one sequence."""
        count = len(tokens)
        return self.native.run(
            tokens.astype(np.int32),
            np.arange(count, dtype=np.int32),
            np.arange(count, dtype=np.int64),
            np.array([0, count], np.int32),
            np.array([count], np.int32),
            np.arange(64, dtype=np.int32)[None],
            None,
            np.arange(count, dtype=np.int32),
        ).copy()


def expected(table: Array, weight: Array, integer: bool) -> tuple[Array, Array]:
    """The products, and what each sums up in absolute values: the unit of its rounding."""
    x = quantized(table) if integer else table.astype(np.float64)
    return x @ weight.astype(np.float64).T, np.abs(x) @ np.abs(weight.astype(np.float64)).T


def table_of(outputs: int, inner: int, made: np.random.Generator) -> Array:
    """Rows of very different sizes; some hold zeros only, in a group or all over."""
    table = made.standard_normal((outputs, inner)) * 10.0 ** made.integers(-6, 4, (outputs, 1))
    table[1, :32] = 0
    table[2] = 0
    return bf16(table.astype(np.float32))


@pytest.mark.parametrize(("outputs", "inner"), [(3, 256), (16, 256), (37, 512), (100, 768)])
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_blocks(isa: str, kind: str, outputs: int, inner: int) -> None:
    check(isa, kind, outputs, inner)


@pytest.mark.parametrize(("outputs", "inner"), [(5, 1), (17, 30), (48, 33), (50, 72), (31, 100)])
@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_products_of_any_size(isa: str, kind: str, outputs: int, inner: int) -> None:
    check(isa, kind, outputs, inner)


def check(isa: str, kind: str, outputs: int, inner: int) -> None:
    made = np.random.default_rng([outputs, inner])
    table, weight = table_of(outputs, inner, made), random_tensor("w", kind, outputs, inner, made)
    bias = made.standard_normal(outputs).astype(np.float32)
    product = Product(table, weight, isa)
    given = product.rows(np.arange(outputs))
    wanted, size = expected(table, packed(weight), kind not in FLOAT_KINDS)
    assert np.all(np.abs(given - wanted) <= 2e-6 * size + 1e-37)
    # One by one the bits are the same, and so they are at every height of a batch.
    assert np.array_equal(np.concatenate([product.rows(np.array([token])) for token in range(outputs)]), given)
    for rows in range(2, min(outputs, 15)):
        assert np.array_equal(product.rows(np.arange(rows)), given[:rows])
    with_bias = Product(table, weight, isa, bias=bias, threads=3)
    assert np.array_equal(with_bias.rows(np.arange(outputs)), given + bias)


def test_products_of_many_rows(isa: str) -> None:
    """More rows than are worked on at a time."""
    for kind in ("Q4_1", "Q8_0", "BF16"):
        made = np.random.default_rng(3)
        table, weight = table_of(70, 96, made), random_tensor("w", kind, 70, 96, made)
        product = Product(table, weight, isa, threads=3)
        alone = product.rows(np.arange(70))
        tokens = made.integers(0, 70, 500)
        assert np.array_equal(product.rows(tokens), alone[tokens])


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "IQ4_NL", "BF16"])
def test_rows_of_the_identity_give_back_the_weights(isa: str, kind: str) -> None:
    made = np.random.default_rng(1)
    weight = random_tensor("w", kind, 64, 64, made)
    product = Product(np.eye(64, dtype=np.float32), weight, isa)
    assert product.changed == 0
    np.testing.assert_allclose(product.rows(np.arange(64)).T, decode(weight), rtol=3e-7, atol=1e-7 * np.abs(decode(weight)).max())


def test_q4_k_is_nearer_in_4_bits_than_in_8(isa: str) -> None:
    """Its scales and minima are rounded to float16, which moves a value less than half a step of 8 bits would."""
    made = np.random.default_rng(4)
    weight = random_tensor("w", "Q4_K", 256, 256, made)
    product = Product(np.eye(256, dtype=np.float32), weight, isa)
    assert packable(weight).layout is Layout.INT4
    assert product.changed > 0
    values = decode(weight).astype(np.float64)
    error = product.rows(np.arange(256)).T - values
    most = np.abs(values).reshape(256, -1, 32).max(axis=2, keepdims=True)
    in_8_bits = np.rint(values.reshape(most.shape[0], -1, 32) / (most / 127)) * (most / 127) - values.reshape(most.shape[0], -1, 32)
    assert np.sqrt(np.mean(error**2)) < 0.25 * np.sqrt(np.mean(in_8_bits**2))
    assert np.all(np.abs(error).reshape(in_8_bits.shape) <= 3 * most / 2048)


def test_a_kind_without_a_layout_is_rounded_to_half_a_step(isa: str) -> None:
    made = np.random.default_rng(2)
    weight = random_tensor("w", "Q6_K", 256, 256, made)
    product = Product(np.eye(256, dtype=np.float32), weight, isa)
    assert product.changed > 0
    values = decode(weight).reshape(256, -1, 32)
    error = np.abs(product.rows(np.arange(256)).T.reshape(values.shape) - values)
    assert np.all(error <= np.abs(values).max(axis=2, keepdims=True) / 250)


def test_the_lowest_signed_byte(isa: str) -> None:
    """A file may hold −128, though no quantizer writes it: against activations of one sign its sums are the largest there can be."""
    blocks = np.full((48, 3, 34), 0x80, np.uint8)
    blocks[..., :2] = np.array([1.0], np.float16).view(np.uint8)
    blocks[16:32, :, 2:] = 0x7F
    blocks[32:, :, 2::2] = 0x7F
    weight = CheckpointTensor("w", "Q8_0", (48, 96), blocks.reshape(48, -1))
    table = np.where(np.arange(48)[:, None] % 2 == 0, 1, -1) * np.ones((48, 96), np.float32)
    table[40:] *= np.where(np.arange(96) % 2 == 0, 1, -1)
    wanted = table.astype(np.float64) @ decode(weight).astype(np.float64).T
    np.testing.assert_allclose(Product(table, weight, isa).rows(np.arange(48)), wanted, rtol=1e-6, atol=1e-3)


def test_the_highest_nibble(isa: str) -> None:
    blocks = np.full((32, 2, 20), 0xFF, np.uint8)
    blocks[..., :4] = np.array([1.0, -3.0], np.float16).view(np.uint8)
    weight = CheckpointTensor("w", "Q4_1", (32, 64), blocks.reshape(32, -1))
    table = np.where(np.arange(32)[:, None] % 2 == 0, 1, -1) * np.ones((32, 64), np.float32)
    assert np.allclose(Product(table, weight, isa).rows(np.arange(32)), table[:, :1] * 64 * 12, rtol=1e-6)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_spoil_their_own_row_alone(isa: str, kind: str, value: float) -> None:
    made = np.random.default_rng(4)
    table, weight = table_of(40, 96, made), random_tensor("w", kind, 40, 96, made)
    clean = Product(table, weight, isa).rows(np.arange(40))
    for place in (0, 31, 70):
        spoiled = table.copy()
        spoiled[7, place] = value
        rows = Product(spoiled, weight, isa).rows(np.arange(40))
        assert not np.any(np.isfinite(rows[7]))
        assert np.array_equal(np.delete(rows, 7, axis=0), np.delete(clean, 7, axis=0))


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_activations_near_the_ends_of_float32(isa: str, kind: str) -> None:
    """The tiniest are taken for zero; the largest stay finite as long as the result is."""
    weight = random_tensor("w", kind, 32, 32, np.random.default_rng(5))
    table = bf16(np.outer(10.0 ** np.linspace(-45, 37, 32), np.ones(32)).astype(np.float32))
    rows = Product(table, weight, isa).rows(np.arange(32)).astype(np.float64)
    wanted, size = expected(table, packed(weight), True)
    assert np.all(np.abs(rows - wanted) <= 2e-6 * size + 1e-34)
