"""A whole server: constrained texts, streamed and not, and grammars that are refused before the engine hears of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from octavo import AsyncLLM
from octavo.config.engine import BackendConfig, CacheConfig, EngineConfig, ModelConfig
from octavo.config.server import ServerOptions
from octavo.server.app import build_app

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(fixtures_dir: Path) -> AsyncIterator[httpx.AsyncClient]:
    config = EngineConfig(
        model=ModelConfig(str(fixtures_dir / "tiny-llama")),
        cache=CacheConfig(kv_cache_memory=64 << 20),
        backend=BackendConfig("reference"),
        seed=0,
    )
    llm = await AsyncLLM.start(config, quiet=True)
    try:
        transport = httpx.ASGITransport(build_app(llm, ServerOptions()))
        async with httpx.AsyncClient(transport=transport, base_url="http://octavo", timeout=60) as client:
            client.llm = llm  # type: ignore[attr-defined]
            yield client
    finally:
        await llm.close()


async def complete(server: httpx.AsyncClient, **fields: Any) -> str:
    reply = await server.post("/v1/completions", json={"prompt": "A", "max_tokens": 60, "temperature": 1, **fields})
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["text"])


async def test_many_at_once_and_streamed(server: httpx.AsyncClient) -> None:
    """The first requests of an engine come together, one of them with a grammar that another one brings too."""
    compact = {"json": SCHEMA, "disable_any_whitespace": True}
    kinds: list[tuple[dict[str, Any], str]] = [
        ({"structured_outputs": compact}, r'\{"ok":(true|false)\}'),
        ({"structured_outputs": compact, "seed": 4}, r'\{"ok":(true|false)\}'),
        ({"structured_outputs": {"regex": "[a-d]{3}-[0-9]{2}"}}, "[a-d]{3}-[0-9]{2}"),
        ({"structured_outputs": {"choice": ["tea", "töa"]}}, "t[eö]a"),
        ({"structured_outputs": {"grammar": 'start: "x" "y"'}}, "xy"),
    ]
    texts = await asyncio.gather(*(complete(server, **fields) for fields, _ in kinds))
    for text, (_, pattern) in zip(texts, kinds, strict=True):
        assert re.fullmatch(pattern, text)
    for fields, pattern in kinds:
        streamed = ""
        body = {"prompt": "A", "max_tokens": 60, "stream": True, "seed": 8, **fields}
        async with server.stream("POST", "/v1/completions", json=body) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    streamed += json.loads(line[6:])["choices"][0]["text"]
        assert re.fullmatch(pattern, streamed)
        assert streamed == await complete(server, **{**fields, "seed": 8})


async def test_response_format_of_chat(server: httpx.AsyncClient) -> None:
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "ok", "strict": True, "schema": {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}},
    }
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "response_format": wanted, "n": 3}
    reply = await server.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    for choice in reply.json()["choices"]:
        assert json.loads(choice["message"]["content"])["ok"] in (True, False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"structured_outputs": {"json": {"type": "objec"}}}, "structured_outputs.json", "Invalid type: objec"),
        ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json", "Unimplemented keys"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar", "unknown name"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed group"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objec"}}}},
            "response_format.json_schema.schema",
            "Invalid type: objec",
        ),
    ],
)
async def test_a_grammar_that_can_not_be_compiled_is_a_400(
    server: httpx.AsyncClient, fields: dict[str, Any], param: str, reason: str, stream: bool
) -> None:
    reply = await server.post("/v1/completions", json={"prompt": "A", "stream": stream, **fields})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert error["message"].startswith(f"{param} can't be used: ")
    assert reason in error["message"]
    assert server.llm.stats.running == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_becomes_too_much_work_is_its_client_s_fault(server: httpx.AsyncClient, stream: bool) -> None:
    """Where an unstreamed reply is a 400, a stream that began ends with the same error."""
    grammar = "start: " + "(A|B)? " * 520 + "\nA: /a+/\nB: /b+/"
    reply = await server.post(
        "/v1/completions", json={"prompt": "A", "stream": stream, "min_tokens": 9, "structured_outputs": {"grammar": grammar}}
    )
    assert reply.status_code == (200 if stream else 400)
    error = json.loads(reply.text.split("data: ")[-2])["error"] if stream else reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "structured_outputs: the text can't go on: Parser Error: Current row has" in error["message"]
    assert server.llm.stats.running == 0  # type: ignore[attr-defined]
