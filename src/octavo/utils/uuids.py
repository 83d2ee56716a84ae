"""Names that nobody else has."""

from __future__ import annotations

import uuid


def random_uuid() -> str:
    """32 hexadecimal digits, as vLLM's helper of this name gives them for request ids."""
    return uuid.uuid4().hex
