"""How long a test waits for what should come at once."""

from __future__ import annotations

import os

# A machine that CI shares with others may stand still for a second. There the bounds only tell what happens at once from what happens
# after some timeout or never; at home they are what is promised.
FACTOR = 5.0 if os.environ.get("CI") else 1.0


def patient(seconds: float) -> float:
    """The bound to hold to where `seconds` are promised."""
    return seconds * FACTOR
