"""The known name that a misspelled one most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# A name of megabytes would take seconds to compare.
LONGEST_NAME = 100


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean NAME?" with the nearest of `known`, or nothing where none is near."""
    close = difflib.get_close_matches(name, list(known), n=1) if len(name) <= LONGEST_NAME else []
    return f"; did you mean {close[0]}?" if close else ""
