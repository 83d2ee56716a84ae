"""A model's tokens as bytes."""

from __future__ import annotations

import msgspec


class Vocabulary(msgspec.Struct, array_like=True):
    """What each token adds to a text, by id (nothing for an id that is no token). `special_ids` are tokens that stand for no text of their
    own, and `end_ids` those of the model that end an answer."""

    tokens: list[bytes]
    special_ids: list[int]
    end_ids: list[int]
