"""Rows keep their bits whatever stands beside them, and the measurement that sees to it notices a BLAS that breaks the promise."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import ThreadpoolController

from octavo.backends.reference import products
from octavo.backends.reference.products import ProductShape, Threads, invariant_tile, linear, output_ranges, product_shapes

SHAPE = ProductShape(24, 40, transposed=True)
plain_matmul = np.matmul


class Numpy:
    """numpy with a product of another BLAS."""

    def __init__(self, matmul: Any) -> None:
        self.matmul = matmul

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def nudged(rows: slice) -> Any:
    """A product whose rows at these places of a tile come out one bit higher."""

    def matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        result = plain_matmul(a, b, out=out)
        result[rows] = np.nextafter(result[rows], np.float32(np.inf))
        return result

    return matmul


@pytest.mark.parametrize("transposed", [True, False])
def test_a_sound_product_keeps_its_bits(monkeypatch: pytest.MonkeyPatch, transposed: bool) -> None:
    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.stack([np.array([np.sum(row * column) for column in b.T], np.float32) for row in a])

    monkeypatch.setattr(products, "np", Numpy(matmul))
    shape = ProductShape(5, 3, transposed)
    assert products.rows_keep_their_bits(4, shape)
    assert invariant_tile([shape]) == products.TILE_HEIGHTS[0]


@pytest.mark.parametrize(("first_bad", "tile"), [(12, 8), (7, 4), (4, 4), (2, 1), (1, 1)])
def test_a_product_that_treats_high_places_of_a_tile_otherwise(monkeypatch: pytest.MonkeyPatch, first_bad: int, tile: int) -> None:
    """As OpenBLAS's Haswell kernel, which computes twelve rows one way and the next four another."""
    monkeypatch.setattr(products, "np", Numpy(nudged(slice(first_bad, None))))
    assert invariant_tile([SHAPE]) == tile


def test_one_bad_shape_among_many_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return nudged(slice(8, None))(a, b) if b.shape == (7, 5) and not b.flags.c_contiguous else plain_matmul(a, b)

    monkeypatch.setattr(products, "np", Numpy(matmul))
    good = ProductShape(7, 5, transposed=False)
    assert products.rows_keep_their_bits(8, good)
    assert products.rows_keep_their_bits(8, ProductShape(7, 5, transposed=True))
    assert products.rows_keep_their_bits(16, good)
    assert not products.rows_keep_their_bits(16, ProductShape(7, 5, transposed=True))


def test_a_product_that_depends_on_the_rows_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that skips over rows of zeros, say."""

    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result = plain_matmul(a, b)
        return result if a[1:].any() else np.nextafter(result, np.float32(np.inf))

    monkeypatch.setattr(products, "np", Numpy(matmul))
    assert not products.rows_keep_their_bits(16, SHAPE)
    assert invariant_tile([SHAPE]) == 1


def test_no_products_take_the_tallest_tile() -> None:
    assert invariant_tile([]) == products.TILE_HEIGHTS[0]


@given(st.integers(1, 5000))
def test_output_ranges_cover_everything_once(outputs: int) -> None:
    ranges = output_ranges(outputs)
    assert [place for start, stop in ranges for place in range(start, stop)] == list(range(outputs))
    assert all(stop - start <= products.OUTPUTS_A_PRODUCT for start, stop in ranges)
    assert {shape.outputs for shape in product_shapes(outputs, 3)} == {stop - start for start, stop in ranges}


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.integers(1, 70), st.integers(1, 600), st.data())
def test_rows_do_not_depend_on_the_batch(seed: int, rows: int, inner: int, outputs: int, data: st.DataObject) -> None:
    made = np.random.default_rng(seed)
    x, weight = (made.standard_normal(shape).astype(np.float32) for shape in ((rows, inner), (outputs, inner)))
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        tile = invariant_tile(product_shapes(outputs, inner))
        one, three = Threads(1), Threads(3)
        whole = linear(x, weight, None, tile, one)
        assert linear(x, weight, None, tile, three).tobytes() == whole.tobytes()
        first = data.draw(st.integers(0, rows - 1))
        last = data.draw(st.integers(first + 1, rows))
        assert linear(x[first:last], weight, None, tile, one).tobytes() == whole[first:last].tobytes()
        order = made.permutation(rows)
        assert linear(x[order], weight, None, tile, one).tobytes() == whole[order].tobytes()
        three.close()


def test_a_row_of_nan_harms_no_other() -> None:
    made = np.random.default_rng(3)
    x, weight = (made.standard_normal(shape).astype(np.float32) for shape in ((20, 33), (50, 33)))
    wanted = linear(x, weight, None, 8, Threads(1))
    x[5] = np.nan
    x[11, 4] = np.inf
    result = linear(x, weight, None, 8, Threads(1))
    assert np.isnan(result[5]).all()
    keep = [row for row in range(20) if row not in (5, 11)]
    assert result[keep].tobytes() == wanted[keep].tobytes()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_threads_call_everything_once(count: int) -> None:
    threads = Threads(count)
    done: list[int] = []
    lock = threading.Lock()

    def work(item: int) -> None:
        with lock:
            done.append(item)

    threads.run(work, range(200))
    threads.run(work, [])
    assert sorted(done) == list(range(200))
    assert threads.count == count
    threads.close()


@pytest.mark.parametrize("count", [1, 3])
def test_threads_raise_what_a_call_raised(count: int) -> None:
    threads = Threads(count)

    def work(item: int) -> None:
        if item == 7:
            raise ZeroDivisionError("seven")

    with pytest.raises(ZeroDivisionError, match="seven"):
        threads.run(work, range(20))
    threads.run(work, range(5))  # and go on afterwards
    threads.close()


def test_close_ends_the_threads() -> None:
    before = threading.active_count()
    threads = Threads(3)
    barrier = threading.Barrier(3)
    threads.run(lambda item: barrier.wait(10), range(3))
    assert threading.active_count() == before + 3
    threads.close()
    threads.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError):
        threads.run(print, range(2))


def test_zero_threads_mean_the_machine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "usable_cores", lambda: 3)
    threads = Threads(0)
    assert threads.count == 3
    threads.close()


def test_overflow_on_a_thread_is_no_warning() -> None:
    """Warnings are errors in these tests."""
    threads = Threads(2)
    result = np.zeros(2, np.float32)

    def work(item: int) -> None:
        result[item] = np.array([3e38], np.float32) @ np.array([3e38], np.float32)

    threads.run(work, range(2))
    assert np.isinf(result).all()
    threads.close()
