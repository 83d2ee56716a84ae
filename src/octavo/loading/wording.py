"""Text from files that nobody vouches for, as part of a message."""

from __future__ import annotations

MAX_CHARACTERS = 400


def one_line(text: str) -> str:
    """`text` without line breaks and control characters, cut to a length that a person still reads."""
    shown = text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "…"
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode() for character in shown)
