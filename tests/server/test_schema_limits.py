"""What the document says of a number is what the engine holds to: no value that a body may have is refused later for its size."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.sampling import SamplingParams
from octavo.server.requests import GenerateRequest

PENALTIES = ["presence_penalty", "frequency_penalty", "repetition_penalty"]
NUMBERS = ["n", "temperature", "top_p", "top_k", "min_p", *PENALTIES, "seed", "max_tokens"]
SMALL = [-3, -2.5, -2, -1, -0.5, 0, 1e-9, 1e-6, 0.5, 1, 1.5, 2, 2.5, 3]
PROBES = [-(2**63), -(10**9), *SMALL, 128, 10**6, 10**9, 2**31 - 1, 2**31, 2**63 - 1]


def takes(kind: Any, value: Any) -> bool:
    with contextlib.suppress(msgspec.ValidationError, InvalidRequestError):
        kind(value)
        return True
    return False


@pytest.mark.parametrize("name", NUMBERS)
def test_a_body_may_have_what_can_be_sampled_with(name: str) -> None:
    by_schema = [value for value in PROBES if takes(lambda v: msgspec.convert({"prompt": "a", name: v}, GenerateRequest), value)]
    by_engine = [value for value in PROBES if takes(lambda v: SamplingParams(**{name: v}), value)]
    assert 0 < len(by_schema) < len(PROBES)
    assert set(by_schema) <= set(by_engine)
    # Over HTTP a few are bounded more narrowly: numbers of completions, and what JSON's readers hold in 32 bits.
    if name not in ("n", "top_k", "seed", "max_tokens"):
        assert by_schema == by_engine
