"""/v1/messages: blocks and events as Anthropic's client reads them, over the fake model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest
from chat_stream import typed_events
from fake_llm import REPLY, FakeLLM
from live_server import LiveServer
from test_chat_tools import CALL

from octavo.config.server import ServerOptions
from octavo.protocol.errors import InvalidRequestError

USER = {"role": "user", "content": "Hi"}
WEATHER = {"name": "get_weather", "description": "The weather.", "input_schema": {"type": "object"}}
PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "deepseek_r1"}
THOUGHT = f"<think>Hm, ö.</think>I look.{CALL}"
BASE = {"model": "fake-model", "messages": [USER], "max_tokens": 150}


async def ask(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    reply = await client.post("/v1/messages", json=BASE | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def ask_events(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    reply = await client.post("/v1/messages", json={**BASE, "stream": True, **fields})
    return typed_events(reply)


def refused(reply: httpx.Response, status: int, kind: str, *words: str) -> None:
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert body["type"] == "error"
    assert set(body) == {"type", "error"}
    assert body["error"]["type"] == kind
    for word in words:
        assert word in body["error"]["message"], body


@pytest.fixture
async def remote(llm: FakeLLM) -> AsyncIterator[anthropic.AsyncAnthropic]:
    llm.max_model_len = llm.info.max_model_len = 1000
    async with (
        LiveServer(llm, ServerOptions(api_key=("secret",), **PARSERS)) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="secret", max_retries=0, timeout=10) as client,
    ):
        yield client


async def test_shape_of_a_message(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await ask(client, system="Be brief.", temperature=0.5, top_k=3, metadata={"user_id": "me"})
    assert reply.pop("id").startswith("msg_")
    prompt, count = len("<system>Be brief.<user>Hi<assistant>"), len(REPLY.encode()) + 1
    assert reply == {
        "type": "message",
        "role": "assistant",
        "model": "fake-model",
        "content": [{"type": "text", "text": REPLY, "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": prompt - 1, "cache_read_input_tokens": 1, "cache_creation_input_tokens": 0, "output_tokens": count},
    }
    assert (llm.calls[0].sampling.temperature, llm.calls[0].sampling.top_k) == (0.5, 3)


async def test_why_a_message_ends(client: httpx.AsyncClient) -> None:
    assert (await ask(client, max_tokens=3))["stop_reason"] == "max_tokens"
    reply = await ask(client, stop_sequences=["wör", "x"])
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "wör")


async def test_blocks_in_the_order_of_the_answer(connect, llm: FakeLLM) -> None:
    llm.reply = THOUGHT
    reply = await ask(connect(**PARSERS), tools=[WEATHER])
    assert reply["content"][2].pop("id")
    assert reply["content"] == [
        {"type": "thinking", "thinking": "Hm, ö.", "signature": ""},
        {"type": "text", "text": "I look.", "citations": None},
        {"type": "tool_use", "name": "get_weather", "input": {"city": "Bodø"}},
    ]
    assert reply["stop_reason"] == "tool_use"
    function = {"name": "get_weather", "description": "The weather.", "parameters": {"type": "object"}}
    assert llm.rendered[0]["tools"] == [{"type": "function", "function": function}]
    assert "tools" not in llm.rendered[-1] or await ask(connect(**PARSERS), tools=[WEATHER], tool_choice={"type": "none"})
    assert "tools" not in llm.rendered[-1]


async def test_events_in_anthropics_order(connect, llm: FakeLLM) -> None:
    llm.reply = THOUGHT
    events = await ask_events(connect(**PARSERS), tools=[WEATHER])
    kinds = [each.get("delta", {}).get("type") or each["type"] for each in events]
    kinds = [kind for place, kind in enumerate(kinds) if not place or kinds[place - 1] != kind]
    assert kinds == [
        "message_start",
        *["content_block_start", "thinking_delta", "content_block_stop"],
        *["content_block_start", "text_delta", "content_block_stop"],
        *["content_block_start", "input_json_delta", "content_block_stop"],
        *["message_delta", "message_stop"],
    ]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    # Of the prompt all is known by then; a token of it was found in the cache.
    begun, ended = events[0]["message"]["usage"], events[-2]["usage"]
    assert {**begun, "output_tokens": ended["output_tokens"]} == ended
    assert (begun["input_tokens"], begun["cache_read_input_tokens"]) == (len(llm.calls[0].prompt) - 1, 1)
    assert [each["index"] for each in events if each["type"] == "content_block_start"] == [0, 1, 2]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == len(THOUGHT.encode()) + 1


async def test_anthropics_client_reads_and_sends_back(remote: anthropic.AsyncAnthropic, llm: FakeLLM) -> None:
    llm.reply = THOUGHT
    whole = await remote.messages.create(tools=[WEATHER], **BASE)
    async with remote.messages.stream(tools=[WEATHER], **BASE) as stream:
        assert "".join([text async for text in stream.text_stream]) == "I look."
        final = await stream.get_final_message()
    strip = [block.model_dump(exclude={"id"}) for block in whole.content]
    assert [block.model_dump(exclude={"id"}) for block in final.content] == strip
    use = whole.content[-1]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "Rain."}]}
    history = [
        USER,
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    await remote.messages.create(**{**BASE, "messages": history, "max_tokens": 1})
    function = {"name": "get_weather", "arguments": {"city": "Bodø"}}
    assert llm.rendered[-1]["messages"] == [
        USER,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm, ö.",
            "tool_calls": [{"type": "function", "id": use.id, "function": function}],
        },
        {"role": "tool", "tool_call_id": use.id, "content": "Rain."},
        {"role": "user", "content": "So?"},
    ]
    beta = await remote.beta.messages.create(**BASE)
    assert beta.content[1].text.startswith("I look.")
    count = await remote.messages.count_tokens(model="fake-model", messages=[USER], system="Be brief.")
    assert count.input_tokens == len("<system>Be brief.<user>Hi<assistant>")


async def test_a_last_message_of_the_assistant_is_continued(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    await ask(client, messages=[USER, {"role": "assistant", "content": "Once"}])
    assert llm.rendered[-1]["continue_final_message"] is True


async def test_a_last_message_that_can_not_be_continued_is_named(
    client: httpx.AsyncClient, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise InvalidRequestError("continue_final_message: there is nothing to continue", param="continue_final_message")

    monkeypatch.setattr(type(llm), "render_chat", refuse)
    reply = await client.post("/v1/messages", json=BASE | {"messages": [USER, {"role": "assistant", "content": ""}]})
    refused(reply, 400, "invalid_request_error", "messages: there is nothing to continue")


async def test_results_of_tools_may_be_errors(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "No such city.", "is_error": True}
    await ask(client, messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, result]}])
    assert [each["content"] for each in llm.rendered[-1]["messages"]] == ["a", "Error: No such city."]


async def test_a_failure_on_the_way_is_the_last_event(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.fail_after = 3
    *_, last = await ask_events(client)
    assert last["type"] == "error"
    assert last["error"]["type"] == "api_error"
    assert "not finite" in last["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, ["max_tokens", "integer"]),
        ({"max_tokens": 500}, ["max_tokens: 500", "200"]),
        ({"messages": []}, ["messages"]),
        ({"messages": [{"role": "tool", "content": "a"}]}, ["messages.0.role", "'tool'"]),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, ["messages.0.content.0.type", "image"]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]}, ["messages.0.content.0.x", "unknown"]),
        ({"messages": [{"role": "user", "content": []}]}, ["messages.0.content"]),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}]}, ["messages.0.content.0.input"]),
        ({"messages": [{"role": "user", "contnt": "a"}]}, ["messages.0.contnt: unknown field; did you mean content?"]),
        ({"tools": [{"name": "f", "inpt_schema": {}}]}, ["tools.0", "did you mean input_schema?"]),
        ({"system": [{"type": "image"}]}, ["system.0.type"]),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, ["thinking.type", "'enabled'", "no budget is held to"]),
        ({"thinking": {"type": "adaptive"}}, ["thinking.type", "'adaptive'", "Leave thinking out"]),
        ({"thinking": {"type": "on"}}, ["thinking.type"]),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, ["tools.0"]),
        ({"tools": [WEATHER, {"name": "f", "input_schema": {"type": "string"}}]}, ["tools.1.input_schema: must", "object"]),
        ({"tools": [WEATHER, WEATHER]}, ["tools.1.name", "another tool"]),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "g"}}, ["tool_choice.name", "'g'"]),
        ({"max_token": 3}, ["max_token: unknown field", "max_tokens"]),
        ({"stop_sequences": [""]}, ["stop_sequences.0"]),
    ],
)
async def test_refused_messages(connect, fields: dict[str, Any], words: list[str]) -> None:
    refused(await connect(**PARSERS).post("/v1/messages", json=BASE | fields), 400, "invalid_request_error", *words)


async def test_a_message_has_a_deadline(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.hold.clear()
    refused(await client.post("/v1/messages", json=BASE | {"timeout": 0.5}), 408, "timeout_error", "time")
    assert llm.calls[-1].closed
    refused(await client.post("/v1/messages", json=BASE | {"timeout": 0}), 400, "invalid_request_error", "timeout")


async def test_other_errors_have_the_same_shape(connect, llm: FakeLLM) -> None:
    client = connect(api_key=("secret",))
    refused(await client.post("/v1/messages", json=BASE), 401, "authentication_error", "API key")
    refused(await client.post("/v1/messages", json=BASE, headers={"x-api-key": "wrong"}), 401, "authentication_error", "wrong")
    assert (await client.post("/v1/messages", json=BASE, headers={"x-api-key": "secret"})).status_code == 200
    keyed = {"x-api-key": "secret"}
    refused(await client.post("/v1/messages", json=BASE | {"model": "x"}, headers=keyed), 404, "not_found_error", "'x'")
    refused(await client.get("/v1/messages", headers=keyed), 405, "invalid_request_error", "GET")
    llm.die()
    refused(await client.post("/v1/messages", json=BASE, headers=keyed), 503, "overloaded_error", "engine")


@pytest.mark.parametrize(
    ("field", "value", "name", "reached"),
    [
        ("temperature", 0.5, "temperature", 0.5),
        ("top_p", 0.4, "top_p", 0.4),
        ("top_k", 7, "top_k", 7),
        ("max_tokens", 33, "max_tokens", 33),
        ("stop_sequences", ["zzz"], "stop", ["zzz"]),
    ],
)
async def test_what_samples_reaches_the_model(
    client: httpx.AsyncClient, llm: FakeLLM, field: str, value: Any, name: str, reached: Any
) -> None:
    await ask(client, **{field: value})
    assert getattr(llm.calls[-1].sampling, name) == reached
