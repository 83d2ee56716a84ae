"""Texts so long that they fit into no context, or that take longer to tokenize than the client waits."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest
from error_shape import check
from fake_llm import FakeLLM

LONG = "x" * 100_000
ROUTES = [
    ("/v1/completions", {"prompt": LONG}, "prompt"),
    ("/v1/completions", {"prompt": ["a", LONG]}, "prompt.1"),
    ("/v1/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
    ("/v1/embeddings", {"input": LONG}, "input"),
    ("/generate", {"prompt": LONG}, "prompt"),
]


@pytest.fixture
def encoded(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The long texts that are tokenized."""
    found = []
    encode = llm.tokenizer.encode

    def noting(text: str, add_special_tokens: bool = True) -> list[int]:
        if len(text) > 1000:
            found.append(text)
        return encode(text, add_special_tokens)

    monkeypatch.setattr(llm.tokenizer, "encode", noting)
    return found


@pytest.mark.parametrize(("path", "body", "param"), ROUTES)
async def test_a_text_that_fits_nowhere_is_not_tokenized(
    client: httpx.AsyncClient, encoded: list[str], path: str, body: dict[str, Any], param: str
) -> None:
    reply = await client.post(path, json=body)
    check(reply, 400, param)
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert "tokens or more" in reply.json()["error"]["message"]
    assert not encoded


@pytest.mark.parametrize(("path", "body", "param"), ROUTES)
async def test_where_it_is_truncated_it_is_tokenized(
    client: httpx.AsyncClient, encoded: list[str], path: str, body: dict[str, Any], param: str
) -> None:
    reply = await client.post(path, json={**body, "truncate_prompt_tokens": 5})
    assert reply.status_code == 200, reply.text
    assert len(encoded) == 1


async def test_tokenize_takes_what_is_longer_than_the_context(client: httpx.AsyncClient, encoded: list[str]) -> None:
    reply = await client.post("/tokenize", json={"prompt": LONG})
    assert reply.json()["count"] == len(LONG)
    assert len(encoded) == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/generate", "/tokenize"])
async def test_time_is_over_while_a_text_is_tokenized(connect: Any, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    go_on = threading.Event()

    def waiting(text: str, add_special_tokens: bool = True) -> list[int]:
        go_on.wait(60)
        return [1]

    monkeypatch.setattr(llm.tokenizer, "encode", waiting)
    monkeypatch.setattr(llm.tokenizer, "least_tokens", lambda text: 0)
    try:
        reply = await connect(request_timeout=0.1).post(path, json={"prompt": LONG})
    finally:
        go_on.set()
    check(reply, 408, None)
    assert not llm.calls
