import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.utils.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1073741824", 2**30),
        ("17B", 17),
        ("2GiB", 2 * 2**30),
        ("512MiB", 512 * 2**20),
        ("512mib", 512 * 2**20),
        ("1GB", 10**9),
        ("1.5GB", 1_500_000_000),
        ("3 TiB", 3 * 2**40),
        ("4K", 4096),
        ("2G", 2 * 2**30),
        (" 10 kb ", 10_000),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "-1GiB", "1e9", "1,5GB", "2 g", "2gigs", "0x10", "1 GiB 2", "\u0661GiB", "inf", "nan"])
def test_anything_else_is_refused_by_name(text: str):
    with pytest.raises(ValueError, match="is not a size") as error:
        parse_size(text)
    assert repr(text) in str(error.value)


@given(st.integers(0, 2**60))
def test_a_plain_number_is_itself(size: int):
    assert parse_size(str(size)) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1610612736, "1.5 GiB"), (1020 * 2**20, "1020 MiB"), (5 * 2**50, "5120 TiB")],
)
def test_sizes_for_people(size: int, text: str):
    assert format_size(size) == text
