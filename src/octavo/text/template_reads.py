"""What a chat template reads of what it is given: a variable that it never reads could not act, and is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from octavo.protocol.errors import InvalidRequestError
from octavo.utils.nearest import did_you_mean

# Arguments of their own, of which an empty list asks for nothing.
_LISTS = ("tools", "documents")


def check_variables(given: Mapping[str, Any], read: Collection[str]) -> None:
    """Raises InvalidRequestError for the first variable `given` to a template that is none of those that it has `read`."""
    for name, value in given.items():
        if name in read or value is None or (name in _LISTS and not value):
            continue
        if name in _LISTS:
            raise InvalidRequestError(f"{name}: the model's chat template has no place for {name}.", param=name)
        path = f"chat_template_kwargs.{name}"
        hint = did_you_mean(name, read) or "; it would change nothing."
        raise InvalidRequestError(f"{path}: the model's chat template does not read it{hint}", param=path)
