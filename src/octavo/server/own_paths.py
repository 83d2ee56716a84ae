"""Fields of another API than the one that checks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from octavo.protocol.errors import InvalidRequestError


@contextmanager
def own_paths(paths: Mapping[str, str]) -> Iterator[None]:
    """Names fields at fault as the client has them: of `paths`, from one API's to the other's, the first that the field's path is or
    begins with."""
    try:
        yield
    except InvalidRequestError as error:
        param = error.param or ""
        for theirs, ours in paths.items():
            if param == theirs or param.startswith(f"{theirs}."):
                error.param = ours + param[len(theirs) :]
                error.message = error.message.replace(param, error.param, 1)
                break
        raise
