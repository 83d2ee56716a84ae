"""On every route that takes a body: fields that this version lacks, and those that nobody knows, are refused by name."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_llm import FakeLLM

from octavo.server.app import _routes
from octavo.server.fields import REFUSED_AT, SINCE, WITHOUT_EFFECT, is_off

BODIES = {operation.path: operation.request for operation, _, _ in _routes() if operation.request is not None}
# A value that asks for something, of any type.
ASKS = {"asks": "something"}
LACKING = [(path, name) for path, kind in BODIES.items() for name in kind.off_values]


def error_of(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 400, reply.text
    return dict(reply.json()["error"])


@pytest.mark.parametrize(("path", "name"), [*LACKING, *((path, name) for path, names in REFUSED_AT.items() for name in names)])
async def test_a_field_that_a_route_lacks_is_refused_by_name(client: httpx.AsyncClient, llm: FakeLLM, path: str, name: str) -> None:
    # Of fields that a route knows but refuses, the type is right.
    body = {name: ASKS} if (path, name) in LACKING else {"prompt": "a", name: {"include_usage": True}, "stream": True}
    error = error_of(await client.post(path, json=body))
    assert error["message"].startswith(name)
    assert error.get("param", name) == name
    assert not llm.calls


def test_what_asks_for_nothing() -> None:
    assert is_off(None, ())
    assert is_off(1.0, (0, 1))
    assert is_off({}, ([], {}))
    assert not is_off(0, (False,))
    assert not is_off(True, (1,))
    assert not is_off("", (False, 0, []))


@pytest.mark.parametrize("path", BODIES)
async def test_a_field_that_nobody_knows_is_refused_with_the_nearest_one(client: httpx.AsyncClient, path: str) -> None:
    for name in BODIES[path].__struct_fields__:
        misspelt = f"{name}x"
        error = error_of(await client.post(path, json={misspelt: None}))
        assert error["message"].startswith(f"{misspelt}: unknown field; did you mean {name}"), error["message"]
    error = error_of(await client.post(path, json={"zzzzzzzz": 1}))
    assert error["message"] == "zzzzzzzz: unknown field."


async def test_fields_without_effect_are_known_and_change_nothing(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    known = {name for kind in BODIES.values() for name in kind.__struct_fields__}
    assert known >= WITHOUT_EFFECT
    assert known >= set(SINCE)
    values: dict[str, Any] = {"metadata": {"a": "b"}, "service_tier": "auto", "store": True, "prompt_cache_retention": "24h"}
    asked = {name: values.get(name, "x") for name in WITHOUT_EFFECT - {"cache_control"}}
    for body in ({}, asked):
        reply = await client.post("/v1/completions", json={"prompt": "a", "temperature": 0, "seed": 1, **body})
        assert reply.status_code == 200, json.dumps(reply.json())
    first, second = llm.calls
    assert (first.prompt, first.sampling, first.cache_salt) == (second.prompt, second.sampling, second.cache_salt)
