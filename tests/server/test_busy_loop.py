"""Work that takes long never holds up the loop that everybody's tokens pass through."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest
from fake_llm import FakeLLM

MANY, FEW = 20_000, 2


@pytest.fixture
def threads(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads on which the model's text side was at work."""
    seen: set[int] = set()

    def watched(function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            seen.add(threading.get_ident())
            return function(*arguments, **keywords)

        return call

    monkeypatch.setattr(llm, "render_chat", watched(llm.render_chat))
    monkeypatch.setattr(llm.tokenizer, "token_text", watched(llm.tokenizer.token_text))
    return seen


@pytest.mark.parametrize("count", [MANY, FEW])
@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions"])
async def test_conversations_of_many_messages_are_written_elsewhere(
    client: httpx.AsyncClient, threads: set[int], path: str, count: int
) -> None:
    reply = await client.post(path, json={"messages": [{"role": "user", "content": "a"}] * count})
    fits = path == "/tokenize" or count == FEW
    assert reply.status_code == (200 if fits else 400), reply.text[:300]
    assert (threads == {threading.get_ident()}) is (count == FEW)


async def test_what_is_wrong_with_one_of_many_messages_is_still_named(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "a"}] * MANY + [{"role": "nobody", "content": "a"}]
    reply = await client.post("/v1/chat/completions", json={"messages": messages})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, f"messages.{MANY}.role")


@pytest.mark.parametrize("count", [MANY, FEW])
async def test_the_texts_of_many_tokens_are_made_elsewhere(client: httpx.AsyncClient, threads: set[int], count: int) -> None:
    reply = await client.post("/tokenize", json={"prompt": "a" * count, "return_token_strs": True})
    assert reply.json()["token_strs"] == ["a"] * count
    assert (threads == {threading.get_ident()}) is (count == FEW)


@pytest.mark.parametrize("bad", [-1, 257, True, 1.0, "a", None, 2**63])
async def test_the_one_bad_id_of_many_is_named(client: httpx.AsyncClient, bad: object) -> None:
    ids = [7] * 50
    reply = await client.post("/v1/completions", json={"prompt": [*ids, bad, *ids]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt.50")


async def test_a_conversation_with_much_for_its_template_is_written_elsewhere(client: httpx.AsyncClient, threads: set[int]) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {f"name{number}": number for number in range(MANY)}}
    assert (await client.post("/tokenize", json=body)).status_code == 200
    assert threads
    assert threading.get_ident() not in threads


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a", LONG: 1},
        {"prompt": "a", "model": LONG},
        {"prompt": "a", "stream": True, "stream_options": {LONG: 1}},
        {"prompt": "a", "service_tier": LONG},
    ],
    ids=["field", "model", "inner field", "value"],
)
async def test_an_error_repeats_no_megabytes(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    reply = await client.post("/v1/completions", json=body)
    assert reply.status_code in (400, 404)
    assert len(reply.content) < 5000
    assert "message" in reply.json()["error"]
