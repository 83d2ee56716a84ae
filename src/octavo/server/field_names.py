"""The names that an object within a request's body may have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_type_hints

import msgspec


def names_at(kind: type[msgspec.Struct], path: Sequence[str]) -> list[str]:
    """The names of the fields of the object at `path` (`["tools", "0", "function"]`) in a `kind`, of all types that it may be of."""
    kinds: list[Any] = [kind]
    for step in path:
        if step and not step.isdigit():
            kinds = [found for each in kinds for found in _of_field(each, step)]
    return [name for each in kinds for name in each.__struct_encode_fields__]


def _of_field(kind: type[msgspec.Struct], name: str) -> Iterator[type[msgspec.Struct]]:
    """The types of objects that the field `name` may hold, by itself or in a list."""
    for attribute, encoded in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        if encoded == name:
            yield from _structs(get_type_hints(kind)[attribute])


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for inner in get_args(hint):
        yield from _structs(inner)
