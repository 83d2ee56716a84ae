"""A counter-based random generator: the number is a pure function of (seed, position), so nothing has to be kept or replayed.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A generator with a state would
make a token depend on how many numbers were drawn before it, and so on preemption and on the other requests.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit words from a counter of four and a key of two 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0 = _MULTIPLIER_0 * c0
        p1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def random_bits(seed: int, position: int) -> int:
    """64 random bits for the token at `position` of the sequence whose seed is `seed` (any integer; its low 64 bits count)."""
    low, high, _, _ = philox4x32((position & _MASK, (position >> 32) & _MASK, 0, 0), (seed & _MASK, (seed >> 32) & _MASK))
    return high << 32 | low
