from __future__ import annotations

import pytest

from octavo.worker.philox import philox4x32, random_bits

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_the_authors(counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    assert philox4x32(counter, key) == expected


def test_bits_depend_on_the_whole_seed_and_position() -> None:
    seeds = [0, 1, 2**32, 2**63 - 1, -1, -(2**63)]
    positions = [0, 1, 2, 2**32]
    bits = {random_bits(seed, position) for seed in seeds for position in positions}
    assert len(bits) == len(seeds) * len(positions)
    assert all(0 <= b < 2**64 for b in bits)
    assert random_bits(-1, 5) == random_bits(2**64 - 1, 5)


def test_each_bit_is_set_half_of_the_time() -> None:
    draws = [random_bits(7, position) for position in range(4000)]
    for bit in range(64):
        # 4000 coin flips have a standard deviation of 32.
        assert abs(sum(d >> bit & 1 for d in draws) - 2000) < 5 * 32
