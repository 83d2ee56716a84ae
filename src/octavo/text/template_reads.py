"""What a chat template reads of what it is given: whatever it never reads could not act, and is refused."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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


class NamedMessage(dict[str, Any]):
    """A message with a `name` that knows whether a template asked for that."""

    # A template's `message.word` would find any attribute before it looks for a key.
    __slots__ = ("_asked",)

    def __init__(self, message: Mapping[str, Any]) -> None:
        super().__init__(message)
        self._asked = False

    def __getitem__(self, key: str) -> Any:
        """As a dictionary's."""
        self._asked |= key == "name"
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        """As a dictionary's."""
        self._asked |= key == "name"
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        """As a dictionary's."""
        self._asked = True
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """As a dictionary's."""
        return self[key] if key in self else default  # noqa: SIM401 - which is this method

    def keys(self) -> Any:
        """As a dictionary's."""
        self._asked = True
        return super().keys()

    def values(self) -> Any:
        """As a dictionary's."""
        self._asked = True
        return super().values()

    def items(self) -> Any:
        """As a dictionary's."""
        self._asked = True
        return super().items()

    def copy(self) -> dict[str, Any]:
        """As a dictionary's."""
        return dict(self)


def watched(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`messages`, of which those with a `name` will know whether it was asked for."""
    return [NamedMessage(message) if message.get("name") is not None else message for message in messages]


def check_names(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises InvalidRequestError for a message that was watched and whose name was not asked for, unless it is the result of a call and
    names the function that was called, which the model has read in the call."""
    called: dict[Any, str] = {}
    for place, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            called[call.get("id")] = call["function"].get("name")
        if not isinstance(message, NamedMessage) or message._asked:
            continue
        name = dict.get(message, "name")
        names = called.values() if message.get("tool_call_id") is None else [called.get(message["tool_call_id"])]
        if message["role"] == "tool" and name in names:
            continue
        path = f"messages[{place}].name"
        raise InvalidRequestError(
            f"{path}: the model's chat template does not read names; leave it out, or say in the content who speaks.", param=path
        )
