"""How the `tokenizers` library fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.loading.wording import one_line


class TokenizersError(Exception):
    """Any failure inside the library, its words on one line."""


@contextmanager
def library_failures() -> Iterator[None]:
    """Turns what the library raises, which is plain Exception or, for a panic of its Rust code, not even that, into TokenizersError.

    A TypeError, which is how it refuses an argument, passes.
    """
    try:
        yield
    except TypeError:
        raise
    except BaseException as error:
        # The panic's class can't be imported from anywhere.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise TokenizersError(one_line(str(error))) from error
        raise
