"""The server's own limit on alternatives a token, which an option sets."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_llm import VOCAB_SIZE, FakeLLM

from octavo.server import sampling

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True}


async def ask(client: httpx.AsyncClient, field: str, count: int) -> httpx.Response:
    if field == "logprobs":
        return await client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2, "logprobs": count})
    return await client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2, "top_logprobs": count})


@pytest.mark.parametrize("field", ["logprobs", "top_logprobs"])
@pytest.mark.parametrize("limit", [20, 3, 0, 25])
async def test_as_many_as_the_limit_and_no_more(client: httpx.AsyncClient, llm: FakeLLM, field: str, limit: int) -> None:
    assert llm.max_logprobs == 20
    llm.max_logprobs = limit
    assert (await ask(client, field, limit)).status_code == 200
    refused = await ask(client, field, limit + 1)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == f"{field}: may be at most {limit} on this server, not {limit + 1}."
    assert refused.json()["error"]["param"] == field


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_those_of_the_whole_vocabulary(client: httpx.AsyncClient, llm: FakeLLM, path: str) -> None:
    field = "logprobs" if path == "/v1/completions" else "top_logprobs"
    body = {"prompt": "Hi"} if path == "/v1/completions" else CHAT
    for limit in (20, VOCAB_SIZE):
        llm.max_logprobs = limit
        for name in (field, "prompt_logprobs"):
            reply = await client.post(path, json={**body, "max_tokens": 2, name: -1})
            assert reply.status_code == (400 if limit == 20 else 200)
            if limit == 20:
                words = f"{name}: may be at most 20 on this server, not -1 (the whole vocabulary, {VOCAB_SIZE})."
                assert reply.json()["error"]["message"] == words
    llm.max_logprobs = -1
    refused = await client.post(path, json={**body, "max_tokens": 2, field: VOCAB_SIZE + 1})
    assert refused.json()["error"]["message"] == f"{field}: may be at most {VOCAB_SIZE} on this server, not {VOCAB_SIZE + 1}."
    assert (await client.post(path, json={**body, field: -2})).status_code == 400
    llm.calls.clear()
    reply = (await client.post(path, json={**body, "max_tokens": 2, field: -1, "prompt_logprobs": -1})).json()
    asked = llm.calls[0].sampling
    assert (asked.logprobs, asked.prompt_logprobs) == (VOCAB_SIZE, VOCAB_SIZE)
    told = reply["choices"][0]["logprobs"]
    # The fake knows five alternatives.
    assert len(told["top_logprobs"][0] if field == "logprobs" else told["content"][0]["top_logprobs"]) == 6


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_many_at_many_tokens_are_refused(client: httpx.AsyncClient, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    llm.max_logprobs = -1
    monkeypatch.setattr(sampling, "MOST_LOGPROBS", 4 * VOCAB_SIZE)
    field = "logprobs" if path == "/v1/completions" else "top_logprobs"
    body = {"prompt": "Hi"} if path == "/v1/completions" else CHAT
    for fields, param in (
        ({field: -1, "max_tokens": 5}, field),
        ({field: -1, "max_tokens": 3, "n": 2}, field),
        ({"prompt_logprobs": -1, "max_tokens": 1, **({"prompt": "Hello"} if "prompt" in body else {})}, "prompt_logprobs"),
    ):
        refused = await client.post(path, json={**body, **fields})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert f"more than the {4 * VOCAB_SIZE} that a request may ask for" in refused.json()["error"]["message"]
    for fields in ({field: -1, "max_tokens": 4}, {field: -1, "max_tokens": 2, "n": 2}, {field: 20, "max_tokens": 64, "n": 16}):
        assert (await client.post(path, json={**body, **fields})).status_code == 200


async def test_half_a_character_is_written_as_bytes(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.reply = "wö🙂"
    body = {"max_tokens": 20, "temperature": 0, "logprobs": 0, "prompt_logprobs": 0}
    reply = (await client.post("/v1/completions", json={"prompt": "é", **body})).json()
    choice = reply["choices"][0]
    spelled = ["w", r"bytes:\xc3", r"bytes:\xb6", *(rf"bytes:\x{byte:02x}" for byte in "🙂".encode()), "<|end|>"]
    assert choice["logprobs"]["tokens"] == spelled
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2, 2, 2, 2, 3]
    assert [entry["decoded_token"] for entry in choice["prompt_logprobs"][1].values()] == [r"bytes:\xa9"]
    chat = (await client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 20})).json()
    content = chat["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == spelled
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == llm.reply + "<|end|>"
    tokens = (await client.post("/tokenize", json={"prompt": "é!", "return_token_strs": True})).json()
    assert tokens["token_strs"] == [r"bytes:\xc3", r"bytes:\xa9", "!"]
