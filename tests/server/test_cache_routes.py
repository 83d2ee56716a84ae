"""Salts, priorities and the prefix cache over HTTP."""

from __future__ import annotations

import httpx
import pytest
from error_shape import check
from fake_llm import FakeLLM

from octavo.protocol.errors import PrefixCacheError

ROUTES = [("/v1/completions", {"prompt": ["Hi", "Ho"]}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})]


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("stream", [True, False])
async def test_salt_and_priority_reach_every_prompt(client: httpx.AsyncClient, llm: FakeLLM, path: str, body: dict, stream: bool) -> None:
    reply = await client.post(path, json={**body, "stream": stream, "cache_salt": "tenant", "priority": -7})
    assert reply.status_code == 200, reply.text
    assert {(call.cache_salt, call.priority) for call in llm.calls} == {("tenant", -7)}
    assert len(llm.calls) == len(body.get("prompt", [0]))


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_without_them(client: httpx.AsyncClient, llm: FakeLLM, path: str, body: dict) -> None:
    for fields in ({}, {"cache_salt": None, "priority": None}):
        assert (await client.post(path, json={**body, **fields})).status_code == 200
    assert {(call.cache_salt, call.priority) for call in llm.calls} == {(None, 0)}


async def test_reset(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await client.post("/reset_prefix_cache")
    assert (reply.status_code, reply.json()) == (200, {"success": True})
    llm.can_reset = False
    for query, asked in (("reset_running_requests=true", True), ("reset_running_requests=False", False)):
        reply = await client.post(f"/reset_prefix_cache?{query}")
        assert (reply.status_code, reply.json()) == (200, {"success": False})
        assert llm.resets[-1] is asked
    assert len(llm.resets) == 3
    assert (await client.get("/reset_prefix_cache")).status_code == 405


QUERIES = [("reset_external=true", "reset_external"), ("reset_running_requests=yes", "reset_running_requests")]


@pytest.mark.parametrize(("query", "param"), QUERIES)
async def test_a_query_that_is_not_understood(client: httpx.AsyncClient, llm: FakeLLM, query: str, param: str) -> None:
    check(await client.post(f"/reset_prefix_cache?{query}"), 400, param)
    assert llm.resets == []


async def test_save(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.info.saves_prefix_cache = True
    reply = await client.post("/save_prefix_cache")
    assert (reply.status_code, reply.json()) == (200, {"num_blocks": 7})
    assert llm.saves == 1
    assert (await client.get("/save_prefix_cache")).status_code == 405
    check(await client.post("/save_prefix_cache?wait=true"), 400, "wait")
    assert llm.saves == 1
    llm.save_error = PrefixCacheError("the prefix cache could not be saved to /x: No space left on device")
    reply = await client.post("/save_prefix_cache")
    assert reply.status_code == 500
    assert reply.json()["error"]["message"] == llm.save_error.message


async def test_save_without_a_folder(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await client.post("/save_prefix_cache")
    check(reply, 400, None)
    assert "start it with --prefix-cache-dir DIR" in reply.json()["error"]["message"]
    assert llm.saves == 0


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/save_prefix_cache"])
async def test_the_key_is_asked_for(connect, path: str) -> None:
    assert (await connect(api_key=("k",)).post(path)).status_code == 401


async def test_the_query_is_described(client: httpx.AsyncClient) -> None:
    entry = (await client.get("/openapi.json")).json()["paths"]["/reset_prefix_cache"]["post"]
    assert [(each["name"], each["in"], each["schema"]) for each in entry["parameters"]] == [
        ("reset_running_requests", "query", {"type": "boolean"})
    ]
