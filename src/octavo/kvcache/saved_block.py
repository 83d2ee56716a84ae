"""A cached block as it is told to another process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SavedBlock:
    """What a full block holds: `contents` are its token ids as little-endian int32, and `parent` is the place of the block that it follows
    in the list that both stand in, −1 for the first of a sequence. `adapter` and `salt` are those of its CacheScope; the rest of that is
    the same for all. One that is `gone` is told of for what blocks after it follow, and has no keys and values."""

    contents: bytes
    parent: int
    adapter: str | None = None
    salt: str | None = None
    gone: bool = False
