"""Salts, priorities and the prefix cache over HTTP."""

from __future__ import annotations

import httpx
import pytest
from error_shape import check
from fake_llm import FakeLLM

from octavo.protocol.errors import PrefixCacheError
from octavo.server.kv_cache import IN_USE

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
        assert (reply.status_code, reply.json()) == (200, {"success": False, "reason": IN_USE})
        assert llm.resets[-1] is asked
    assert len(llm.resets) == 3
    assert (await client.get("/reset_prefix_cache")).status_code == 405


QUERIES = [
    ("reset_external=true", "reset_external"),
    ("reset_running_requests=yes", "reset_running_requests"),
    ("reset_running_requests=true&reset_running_requests=false", "reset_running_requests"),
]


@pytest.mark.parametrize(("query", "param"), QUERIES)
async def test_a_query_that_is_not_understood(client: httpx.AsyncClient, llm: FakeLLM, query: str, param: str) -> None:
    check(await client.post(f"/reset_prefix_cache?{query}"), 400, param)
    assert llm.resets == []


async def test_blocks(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await client.get("/kv/blocks")
    assert reply.status_code == 200
    body = reply.json()
    assert body["summary"] == {
        "num_blocks": 6,
        "block_size": 16,
        "used": 3,
        "cached": 2,
        "free": 1,
        "findable": 4,
        "tokens": 40,
        "unused_slots": 8,
        "utilization": 0.5,
        "waste": 8 / 48,
        "requests_running": 2,
        "requests_waiting": 1,
    }
    assert (body["offset"], body["limit"], body["next_offset"]) == (0, 100, None)
    assert body["blocks"][0] == {
        "block_id": 0,
        "layers": "all",
        "state": "used",
        "owners": ["a:0", "a:1"],
        "reference_count": 2,
        "hash": "001122334455",
        "idle_seconds": 0.0,
    }
    assert [(each["state"], each["hash"], each["idle_seconds"]) for each in body["blocks"][2:]] == [
        ("used", None, 0.0),
        ("cached", "f" * 12, 2.0),
        ("cached", "e" * 12, 1.5),
        ("free", None, None),
    ]
    assert llm.pages == [(0, 100)]


async def test_blocks_of_two_kinds_say_whose_they_are(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.info.num_blocks, llm.info.num_window_blocks = 4, 2
    body = (await client.get("/kv/blocks")).json()
    assert [each["layers"] for each in body["blocks"]] == ["full"] * 4 + ["window"] * 2


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 6, 7])
async def test_pages_of_blocks(client: httpx.AsyncClient, llm: FakeLLM, limit: int) -> None:
    seen, offset = [], 0
    while offset is not None:
        body = (await client.get(f"/kv/blocks?offset={offset}&limit={limit}")).json()
        seen += [each["block_id"] for each in body["blocks"]]
        offset = body["next_offset"]
    assert seen == [0, 1, 2, 3, 4, 5]
    assert llm.pages == [(first, limit) for first in range(0, 6, limit)]
    # Beyond the end there are none.
    body = (await client.get("/kv/blocks?offset=2147483647")).json()
    assert (body["blocks"], body["next_offset"], body["summary"]["used"]) == ([], None, 3)


BLOCK_QUERIES = [
    ("limit=0", "limit"),
    ("limit=1001", "limit"),
    ("limit=ten", "limit"),
    ("limit=", "limit"),
    ("limit=1.0", "limit"),
    ("limit=%D9%A1", "limit"),
    ("offset=-1", "offset"),
    ("offset=2147483648", "offset"),
    ("offset=" + "9" * 5000, "offset"),
    ("offset=1&offset=2", "offset"),
    ("state=used", "state"),
]


@pytest.mark.parametrize(("query", "param"), BLOCK_QUERIES)
async def test_a_page_that_is_not_understood(client: httpx.AsyncClient, llm: FakeLLM, query: str, param: str) -> None:
    check(await client.get(f"/kv/blocks?{query}"), 400, param)
    assert llm.pages == []


async def test_blocks_ask_for_the_key(connect) -> None:
    assert (await connect(api_key=("k",)).get("/kv/blocks")).status_code == 401


async def test_the_page_is_described(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    entry = document["paths"]["/kv/blocks"]["get"]
    assert [(each["name"], each["schema"]) for each in entry["parameters"]] == [
        ("offset", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1, "default": 0}),
        ("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}),
    ]
    reference = entry["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    assert reference.endswith("/KVBlocks")
    assert set(document["components"]["schemas"]["KVBlock"]["properties"]["state"]["enum"]) == {"used", "cached", "free"}


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
