"""How long the text of a value is, before it is written."""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, Mapping, Set, ValuesView
from dataclasses import dataclass
from typing import Any

# Far beyond any context; a template that writes more is running away.
MAX_RENDERED_CHARS = 16 * 2**20
_CONTAINERS = (list, tuple, Set, KeysView, ItemsView, ValuesView)


def check_size(size: Any, most: int = MAX_RENDERED_CHARS) -> None:
    """Raises OverflowError for a `size`, of a text by default, that is over `most`. What is no number is for others to refuse."""
    if isinstance(size, (int, float)) and size > most:
        raise OverflowError("a text or list that it makes is too long")


@dataclass(frozen=True, slots=True)
class Extent:
    """About how many characters a value has as text, how many values it holds, itself too, and how deep they are nested."""

    chars: int
    items: int = 1
    depth: int = 0


def extent_of(value: Any) -> Extent:
    """The extent of what Jinja or JSON would write; a value that stands in several places is looked at once."""
    return _extent(value, {})


def check_text(value: Any) -> None:
    """Raises OverflowError for a `value` whose text would be huge."""
    if isinstance(value, str):
        check_size(len(value))
    elif isinstance(value, (Mapping, *_CONTAINERS)):
        check_size(extent_of(value).chars)


def _extent(value: Any, known: dict[int, Extent]) -> Extent:
    if isinstance(value, (str, bytes)):
        return Extent(len(value) + 2)
    if isinstance(value, int):
        return Extent(1 + value.bit_length() // 3)
    if isinstance(value, Mapping):
        parts: Any = (part for pair in value.items() for part in pair)
    elif isinstance(value, _CONTAINERS):
        parts = value
    else:
        return Extent(1)
    if (found := known.get(id(value))) is not None:
        return found
    chars, items, depth = 2, 1, 0
    for part in parts:
        inner = _extent(part, known)
        chars, items, depth = chars + inner.chars + 2, items + inner.items, max(depth, inner.depth)
    known[id(value)] = Extent(chars, items, depth + 1)
    return known[id(value)]
