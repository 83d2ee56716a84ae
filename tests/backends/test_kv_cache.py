"""What the reference backend's cache makes of a number, against each type's definition."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.backends.reference.kv_cache import FORMATS, Fp8, Side, bytes_per_token

Array = np.ndarray[Any, Any]

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
finite = st.one_of(numbers, st.floats(-500, 500, width=32), st.floats(-0.0625, 0.0625, width=32))
heads = st.lists(finite, min_size=1, max_size=24).map(lambda values: np.array(values, np.float32))


def through(name: str, x: Array) -> Array:
    """Stored and read again."""
    return FORMATS[name].decode(*FORMATS[name].encode(np.asarray(x, np.float32)))


def fp8_codes() -> dict[int, float]:
    """E4M3 by its definition: 1.m · 2^(e − 7), and 0.m · 2^-6 where e is 0; all ones are no number."""
    found = {}
    for code in range(256):
        sign, e, m = -1 if code & 128 else 1, code >> 3 & 15, code & 7
        found[code] = sign * (math.ldexp(m / 8, -6) if e == 0 else math.ldexp(1 + m / 8, e - 7))
    del found[127], found[255]
    return found


CODES = fp8_codes()


def nearest_fp8(x: float) -> int:
    """The code of the nearest number of the same sign, ties to the even one; ±448 beyond."""
    sign = 128 if math.copysign(1, x) < 0 else 0
    x = max(-448.0, min(x, 448.0))
    return min((abs(CODES[sign | code] - x), code % 2, sign | code) for code in range(127))[2]


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "fp8"])
def test_what_a_type_holds_stays_as_it_is(name: str) -> None:
    held = {
        "float32": np.array([0.0, -0.0, 1e-45, 3e38, np.inf, -1.5], np.float32),
        "bfloat16": (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32),
        "float16": np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32),
        "fp8": np.array(list(CODES.values()), np.float32),
    }[name]
    held = held[~np.isnan(held)]
    assert through(name, held).tobytes() == held.tobytes()


@given(heads)
def test_fp8_is_the_nearest_code(x: Array) -> None:
    codes, scales = Fp8().encode(x)
    assert scales is None
    assert codes.tolist() == [nearest_fp8(float(value)) for value in x]


def test_fp8_between_codes() -> None:
    """Halfway between two, and a hair to either side."""
    values = sorted(CODES[code] for code in range(127))
    middles = np.array([(a + b) / 2 for a, b in itertools.pairwise(values)], np.float32)
    for x in (middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf)), -middles):
        assert Fp8().encode(x)[0].tolist() == [nearest_fp8(float(value)) for value in x]


def test_fp8_saturates_and_keeps_nan() -> None:
    x = np.array([449.0, 464.0, 480.0, 1e9, np.inf, -1e9, -np.inf], np.float32)
    assert through("fp8", x).tolist() == [448.0] * 5 + [-448.0] * 2
    sick = np.array([[1.0, np.nan], [1.0, 2.0]], np.float32)
    assert np.isnan(through("fp8", sick)).tolist() == [[True, True], [False, False]]
    assert through("fp8", sick)[1].tolist() == [1.0, 2.0]


@given(heads)
def test_bfloat16_is_the_nearest(x: Array) -> None:
    """Both neighbours are at least as far away, and it has an even last bit if one is as near."""
    stored, _ = FORMATS["bfloat16"].encode(x)
    for value, code in zip(x.astype(np.float64), stored.astype(np.uint32), strict=True):

        def distance(bits: int, value: float = value) -> float:
            return abs(float(np.uint32(bits << 16).view(np.float32)) - value)

        if code & 0x7FFF == 0x7F80:  # what is halfway to 2^128, and beyond, is infinite
            assert abs(value) >= float.fromhex("0x1.FFp127")
            continue
        least = distance(int(code))
        magnitude = int(code) & 0x7FFF
        for other in (int(code) + 1,) + ((int(code) - 1,) if magnitude else ()):
            if other & 0x7FFF != 0x7F80:
                assert least < distance(other) or (least == distance(other) and code % 2 == 0)


@given(heads)
def test_float16_is_numpy_s(x: Array) -> None:
    with np.errstate(over="ignore"):
        assert through("float16", x).tobytes() == x.astype(np.float16).astype(np.float32).tobytes()


@given(st.lists(heads, min_size=1, max_size=4))
def test_int8_is_within_half_a_step(rows: list[Array]) -> None:
    for x in rows:
        whole, scale = FORMATS["int8"].encode(x)
        assert scale is not None
        most = np.abs(x).max()
        if most <= np.float32(2.0**-100):
            assert (scale, whole.any()) == (0, False)
            continue
        assert scale == most / np.float32(127)
        assert np.abs(whole.astype(int)).max() == 127
        assert np.abs(whole * scale.astype(np.float64) - x).max() <= scale * 0.5 * (1 + 1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_int8_row_with_one_that_is_no_number_is_none(bad: float) -> None:
    x = np.array([[1.0, 2.0, 4.0], [1.0, bad, 4.0], [0.0, 0.0, 0.0]], np.float32)
    read = through("int8", x)
    assert np.isnan(read[1]).all()
    assert read[0].tolist() == pytest.approx([1.0, 2.0, 4.0], rel=0.02)
    assert read[2].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_head_s_numbers_do_not_depend_on_other_heads(name: str) -> None:
    made = np.random.default_rng(1)
    x = made.standard_normal((5, 3 * 8)).astype(np.float32)
    x[2, 9] = np.nan
    slots = np.array([7, 0, 3, 11, 6])
    side = Side(FORMATS[name], 3, 4, 3, 8)
    side.write(slots, x)
    read = side.take(np.arange(3, dtype=np.int32)).reshape(12, 3, 8)
    for row, slot in zip(x.reshape(5, 3, 8), slots, strict=True):
        for head in range(3):
            assert read[slot, head].tobytes() == through(name, row[head]).tobytes()
    others = np.setdiff1d(np.arange(12), slots)
    assert not read[others].any()


@pytest.mark.parametrize(("name", "expected"), [("float32", 4096), ("bfloat16", 2048), ("float16", 2048), ("int8", 1056), ("fp8", 1024)])
def test_bytes_of_a_token(name: str, expected: int) -> None:
    """Four heads of 128, and for int8 a scale for each."""
    assert bytes_per_token(FORMATS[name], 4, 128) == expected
