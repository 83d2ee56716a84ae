"""Amounts of memory and numbers of tokens as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SHORT = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# No machine's memory takes more digits.
_PATTERN = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*([a-zA-Z]*)", re.ASCII)

_COUNT = re.compile(r"(-?\d{1,30})\s*([KMGT]?)|(-?\d{1,30}(?:\.\d{1,30})?)\s*([kmgt])", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes in `text`: a number, then B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB or K, M, G, T (powers of 1024), or nothing.

    Raises ValueError, with a message that shows how to write it, for anything else.
    """
    match = _PATTERN.fullmatch(text.strip())
    unit = match[2] if match else ""
    scale = _SHORT.get(unit) or _UNITS.get(unit.lower())
    if match is None or scale is None:
        raise ValueError(f"{text!r} is not a size; write it like 2GiB, 512MiB, 1.5GB or 1073741824")
    return int(float(match[1]) * scale) if "." in match[1] else int(match[1]) * scale


def parse_count(text: str) -> int:
    """A whole number, or one with k, m, g, t (powers of 1000, which may follow a fraction: 25.6k) or K, M, G, T (powers of 1024), as vLLM
    takes numbers of tokens. A sign may come first.

    Raises ValueError, with a message that shows how to write it, for anything else.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is not None:
        whole, binary, decimal, unit = match.groups()
        if whole is not None:
            return int(whole) * _SHORT.get(binary, 1)
        count = Fraction(decimal) * _UNITS[f"{unit}b"]
        if count.denominator == 1:
            return int(count)
    raise ValueError(f"{text!r} is not a valid integer; write it like 8192, 8K (8192) or 25.6k (25600)")


def format_size(size: int) -> str:
    """`size` bytes in the largest binary unit that it fills: 1610612736 → "1.5 GiB"."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}" if value < 1000 else f"{value:.0f} {units[0]}"
