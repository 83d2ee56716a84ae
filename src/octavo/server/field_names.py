"""The names that an object within a request's body may have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec


def names_at(kind: type[msgspec.Struct], path: Sequence[str]) -> list[str]:
    """The names of the fields of the object at `path` (`["tools", "0", "function"]`) in a `kind`, of all types that it may be of."""
    kinds: list[Any] = [kind]
    for step in path:
        if step and not step.isdigit():
            kinds = [found for each in kinds for found in _of_field(each, step)]
    return [name for each in kinds for name in each.__struct_encode_fields__]


def without_unknown_nulls(value: Any, kinds: Collection[type[msgspec.Struct]]) -> Any:
    """`value`, an object of one of `kinds` or a list of such, without the nulls under names that none of them has, at any depth. What
    stands where no type says which names there are, such as a JSON schema, stays as it is."""
    if isinstance(value, list):
        return [without_unknown_nulls(each, kinds) for each in value]
    if not isinstance(value, dict) or not kinds:
        return value
    kinds = [kind for kind in kinds if _tag(kind, value) == kind.__struct_config__.tag] or kinds
    tags = {kind.__struct_config__.tag_field for kind in kinds} - {None}
    known = {name for kind in kinds for name in kind.__struct_encode_fields__}
    inner = {name: {found for kind in kinds for found in _of_field(kind, name)} for name in known & value.keys()}
    return {
        name: without_unknown_nulls(held, inner.get(name, ())) for name, held in value.items() if held is not None or name in known | tags
    }


def _tag(kind: type[msgspec.Struct], value: dict[str, Any]) -> Any:
    """What `value` holds where a `kind` says which of several it is."""
    tag_field = kind.__struct_config__.tag_field
    return None if tag_field is None else value.get(tag_field)


@cache
def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind)


def _of_field(kind: type[msgspec.Struct], name: str) -> Iterator[type[msgspec.Struct]]:
    """The types of objects that the field `name` may hold, by itself or in a list."""
    for attribute, encoded in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        if encoded == name:
            yield from _structs(_hints(kind)[attribute])


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for inner in get_args(hint):
        yield from _structs(inner)
