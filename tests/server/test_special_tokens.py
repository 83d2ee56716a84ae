"""add_special_tokens, with a tokenizer that puts one before every text: on for prompts, off for what a chat template wrote."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_llm import EOS, FakeLLM

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(autouse=True)
def starting(llm: FakeLLM) -> None:
    llm.tokenizer.start = EOS


@pytest.mark.parametrize(("asked", "added"), [({}, True), ({"add_special_tokens": None}, True), ({"add_special_tokens": True}, True)])
@pytest.mark.parametrize("prompt", ["Hi", "Hi" * 20_000])
async def test_a_prompt_gets_them(client: httpx.AsyncClient, llm: FakeLLM, asked: dict[str, Any], added: bool, prompt: str) -> None:
    reply = await client.post("/tokenize", json={"prompt": prompt, **asked})
    assert reply.json()["tokens"] == [EOS] * added + list(prompt.encode())


@pytest.mark.parametrize("prompt", ["Hi", "Hi" * 20_000])
async def test_a_prompt_without_them(client: httpx.AsyncClient, prompt: str) -> None:
    reply = await client.post("/tokenize", json={"prompt": prompt, "add_special_tokens": False})
    assert reply.json()["tokens"] == list(prompt.encode())


@pytest.mark.parametrize(("asked", "added"), [({}, True), ({"add_special_tokens": True}, True), ({"add_special_tokens": False}, False)])
@pytest.mark.parametrize("stream", [False, True])
async def test_completions(client: httpx.AsyncClient, llm: FakeLLM, asked: dict[str, Any], added: bool, stream: bool) -> None:
    reply = await client.post("/v1/completions", json={"prompt": ["Hi", "Ho"], "stream": stream, **asked})
    assert reply.status_code == 200
    assert sorted(call.prompt for call in llm.calls) == [[EOS] * added + list(b"Hi"), [EOS] * added + list(b"Ho")]


@pytest.mark.parametrize(("asked", "added"), [({}, True), ({"add_special_tokens": True}, True), ({"add_special_tokens": False}, False)])
async def test_generate(client: httpx.AsyncClient, llm: FakeLLM, asked: dict[str, Any], added: bool) -> None:
    assert (await client.post("/generate", json={"prompt": "Hi", **asked})).status_code == 200
    assert [call.prompt for call in llm.calls] == [[EOS] * added + list(b"Hi")]


async def test_token_ids_are_taken_as_they_are(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    await client.post("/v1/completions", json={"prompt": [72, 105]})
    assert [call.prompt for call in llm.calls] == [[72, 105]]


@pytest.mark.parametrize(("asked", "added"), [({}, False), ({"add_special_tokens": True}, True), ({"add_special_tokens": False}, False)])
@pytest.mark.parametrize("stream", [False, True])
async def test_chat(client: httpx.AsyncClient, llm: FakeLLM, asked: dict[str, Any], added: bool, stream: bool) -> None:
    reply = await client.post("/v1/chat/completions", json={"messages": MESSAGES, "stream": stream, **asked})
    assert reply.status_code == 200
    assert [call.prompt for call in llm.calls] == [[EOS] * added + list(b"<user>Hi<assistant>")]


@pytest.mark.parametrize(("asked", "added"), [({}, False), ({"add_special_tokens": True}, True), ({"add_special_tokens": False}, False)])
async def test_tokenized_messages(client: httpx.AsyncClient, asked: dict[str, Any], added: bool) -> None:
    reply = await client.post("/tokenize", json={"messages": MESSAGES, **asked})
    assert reply.json()["tokens"] == [EOS] * added + list(b"<user>Hi<assistant>")
