"""What stands behind the question mark of a URL."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from octavo.protocol.errors import InvalidRequestError

_VALUES = {"true": True, "1": True, "false": False, "0": False}


def read_flags(request: Request, names: Sequence[str]) -> dict[str, bool]:
    """The parameters `names`, true or false, as far as they are given. Raises InvalidRequestError that names another, or a wrong value."""
    found = {}
    for name, value in request.query_params.multi_items():
        if name not in names:
            raise InvalidRequestError(f"{name}: unknown query parameter.", param=name)
        if value.lower() not in _VALUES:
            raise InvalidRequestError(f"{name}: must be true or false, not {value!r}.", param=name)
        found[name] = _VALUES[value.lower()]
    return found
