import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.utils.sizes import format_size, parse_count, parse_size


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


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8192", 8192),
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25_600),
        ("1.5m", 1_500_000),
        ("2M", 2**21),
        ("3g", 3 * 10**9),
        ("-1", -1),
        ("-2k", -2000),
        (" 2K ", 2048),
    ],
)
def test_numbers_of_tokens_as_people_write_them(text: str, count: int):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text", ["", "k", "1.5", "1.0", "2.0K", "1.5K", "0.0001k", "2kb", "2KiB", "1 2", "--1", "+1", "1e3", "0x10", "\u0661", "inf", "9" * 31]
)
def test_what_is_no_number_of_tokens_is_refused_by_name(text: str):
    with pytest.raises(ValueError, match="is not a valid integer") as error:
        parse_count(text)
    assert repr(text) in str(error.value)
