"""Checks of single values, each with an error that names the field, its limits and what was given."""

from __future__ import annotations

import math
import numbers
import reprlib

from octavo.protocol.errors import InvalidRequestError

MAX_INT = 2**63 - 1


def show(value: object) -> str:
    """The value for an error message: short whatever it is. (Python refuses to print very long integers.)"""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


def integer(name: str, value: object, low: int, high: int = MAX_INT, what: str | None = None) -> int:
    """`value` as an int within [low, high]; a bool is not an integer, nor is 1.0. Raises InvalidRequestError."""
    number = int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None
    if number is not None and low <= number <= high:
        return number
    open_ended = high == MAX_INT and low >= -1 and (number is None or number < low)
    limit = f"of at least {low}" if open_ended else f"from {low} to {high}"
    raise InvalidRequestError(f"{what or name} must be an integer {limit}, got {show(value)}.", param=name)


def number(name: str, value: object, low: float, high: float | None, *, open_low: bool = False) -> float:
    """`value` as a finite float within [low, high], or above low if `open_low`. Raises InvalidRequestError."""
    given = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            given = float(value)
        except OverflowError:
            given = math.inf
    if math.isfinite(given) and (given > low if open_low else given >= low) and (high is None or given <= high):
        return given
    lower = f"above {low:g}" if open_low else f"from {low:g}"
    upper = " and finite" if high is None else f" and at most {high:g}" if open_low else f" to {high:g}"
    raise InvalidRequestError(f"{name} must be a number {lower}{upper}, got {show(value)}.", param=name)


def flag(name: str, value: object) -> bool:
    """`value` as a bool. Raises InvalidRequestError."""
    if isinstance(value, bool):
        return value
    raise InvalidRequestError(f"{name} must be true or false, got {show(value)}.", param=name)
