"""Fields of another API than the one that checks them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from octavo.protocol.errors import InvalidRequestError


@contextmanager
def own_paths(paths: Mapping[str, str]) -> Iterator[None]:
    """Names fields at fault as the client has them: of `paths`, from one API's to the other's, the first that the field's path is or
    begins with. A `*` is the place in a list."""
    try:
        yield
    except InvalidRequestError as error:
        param = error.param or ""
        for theirs, ours in paths.items():
            begin = re.escape(theirs).replace(r"\*", r"(\d+)")
            if found := re.match(rf"{begin}(?=\.|\Z)", param):
                error.param = ours.replace("*", found[found.lastindex or 0]) + param[found.end() :]
                error.message = error.message.replace(param, error.param, 1)
                break
        raise
