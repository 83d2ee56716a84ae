"""What stands behind the question mark of a URL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from octavo.config.values import shown
from octavo.protocol.errors import InvalidRequestError
from octavo.utils.nearest import did_you_mean

_VALUES = {"true": True, "1": True, "false": False, "0": False}
# What clients of OpenAI's and Anthropic's APIs, of Azure's, and Codex put there, whatever they ask for; it says nothing of the answer.
CLIENTS_OWN = ("api-version", "beta", "client_version")
_DIGITS = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Whole:
    """A parameter that is a whole number from `least` to `most`, and what it is where it is not given."""

    least: int
    most: int
    default: int


def read_flags(request: Request, names: Sequence[str]) -> dict[str, bool]:
    """The parameters `names`, true or false, as far as they are given. Raises InvalidRequestError that names another, one given twice, or a
    wrong value.
    """
    found: dict[str, bool] = {}
    for name, value in _parameters(request, names):
        if value.lower() not in _VALUES:
            raise InvalidRequestError(f"{name}: must be true or false, not {value!r}.", param=name)
        found[name] = _VALUES[value.lower()]
    return found


def read_wholes(request: Request, wholes: Mapping[str, Whole]) -> dict[str, int]:
    """All the parameters `wholes`. Raises InvalidRequestError that names another, one given twice, or a wrong value."""
    found: dict[str, int] = {}
    for name, value in _parameters(request, wholes):
        whole = wholes[name]
        if not _DIGITS.fullmatch(value) or not whole.least <= int(value) <= whole.most:
            raise InvalidRequestError(f"{name}: must be a whole number from {whole.least} to {whole.most}, not {shown(value)}.", param=name)
        found[name] = int(value)
    return {name: found.get(name, whole.default) for name, whole in wholes.items()}


def check_names(request: Request, names: Iterable[str]) -> None:
    """Raises InvalidRequestError for a parameter that is none of `names`."""
    known = list(names)
    for name in request.query_params:
        if name not in known:
            raise InvalidRequestError(f"{name}: unknown query parameter{did_you_mean(name, known) or '.'}", param=name)


def _parameters(request: Request, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    check_names(request, names)
    seen: set[str] = set()
    for name, value in request.query_params.multi_items():
        if name in seen:
            raise InvalidRequestError(f"{name}: is given twice.", param=name)
        seen.add(name)
        yield name, value
