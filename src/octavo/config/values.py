"""Brings what a caller gave to the plain type that a field declares, or says by name what the field wants."""

from __future__ import annotations

import dataclasses
import numbers
import os
import reprlib
from collections.abc import Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from octavo.protocol.errors import ConfigError
from octavo.utils.sizes import parse_size

_WORDS = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    tuple: "a list of strings",
}


def settle(options: Any, *, paths: Sequence[str] = (), sizes: Sequence[str] = ()) -> None:
    """Brings every field of the frozen dataclass `options` to its declared type; for its `__post_init__`.

    numpy's numbers become Python's, a list becomes a tuple, one string where a tuple of them is wanted a tuple of one. The fields `paths`
    also take an os.PathLike, and `sizes` an amount of memory as text ("2GiB"). Raises ConfigError that names the field, the value and what
    is wanted.
    """
    declared: dict[str, tuple[type, bool]] = _declared(type(options))
    for name, (kind, optional) in declared.items():
        value = settled(name, getattr(options, name), kind, optional=optional, path=name in paths, size=name in sizes)
        object.__setattr__(options, name, value)


def settled(name: str, value: object, kind: type, *, optional: bool = False, path: bool = False, size: bool = False) -> Any:
    """`value` as a `kind`, as `settle` does for a field. Raises ConfigError."""
    if value is None and optional:
        return None
    if path and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if size and isinstance(value, str):
        try:
            return parse_size(value)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}", param=name) from None
    result = _convert(value, kind)
    if result is None:
        wanted = _WORDS.get(kind, kind.__name__) + (" or a path" if path else "") + (' or text like "2GiB"' if size else "")
        raise ConfigError(f"{name}: must be {wanted}{', or None' if optional else ''}, not {shown(value)}", param=name)
    return result


def _convert(value: object, kind: type) -> Any:
    """`value` as a `kind`, or None if it is none."""
    if kind is int:
        return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None
    if kind is float:
        return _float(value)
    if kind is tuple:
        items = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else None
        return items if items is not None and all(isinstance(item, str) for item in items) else None
    return value if isinstance(value, kind) else None


def _float(value: object) -> float | None:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _declared(kind: Any) -> dict[str, tuple[type, bool]]:
    """The type of each field of a dataclass, and whether it may be None."""
    hints = get_type_hints(kind)
    found = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        members = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
        (member,) = (member for member in members if member is not type(None))
        found[field.name] = (get_origin(member) or member, len(members) > 1)
    return found


def shown(value: object) -> str:
    """The value for an error message, short whatever it is. (Python refuses to print very long integers.)"""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)
