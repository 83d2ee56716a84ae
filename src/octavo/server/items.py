"""Objects within a list that a request holds, of which each kind has keys of its own."""

from __future__ import annotations

from typing import Any

from octavo.protocol.errors import InvalidRequestError
from octavo.utils.nearest import did_you_mean


def check_keys(item: dict[str, Any], known: tuple[str, ...], path: str) -> None:
    """Raises InvalidRequestError for a key that is none of `known`, unless it is null: newer clients write those that they know."""
    for key, value in item.items():
        if value is not None and key not in known:
            field = f"{path}.{key}"
            raise InvalidRequestError(f"{field}: unknown field{did_you_mean(key, known) or '.'}", param=field)


def string_of(item: dict[str, Any], key: str, path: str) -> str:
    """The string at `key`. Raises InvalidRequestError if there is none."""
    value = item.get(key)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{path}.{key}: must be a string.", param=f"{path}.{key}")
    return value
