"""A tool call that a stop string or max_tokens cuts: every API says so, whole and streamed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from chat_stream import USER, ask, ask_both, ask_chunks, typed_events
from fake_llm import FakeLLM

START = '<tool_call>\n{"name": "f", "arguments": {"unit'
CALL = f'{START}": "~"}}}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"unit": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
# What ends an answer of two calls, by its tokens or by a string: how many calls there are, the last one's arguments, and the reason.
WHOLE = '{"unit": "~"}'
CASES: list[tuple[str, int, str | None, int, str, str]] = [
    (CALL, len(START), None, 1, '{"unit', "length"),
    (CALL, 180, None, 1, WHOLE, "tool_calls"),
    (CALL, 180, "~", 1, '{"unit": "', "stop"),
    (CALL, 180, '~"}', 1, '{"unit": "~"', "stop"),
    (CALL, 180, "<", 0, "", "stop"),
    (CALL + " after", 180, "f", 0, "", "stop"),
    (CALL + " after.", 180, ".", 1, WHOLE, "tool_calls"),
    (CALL + CALL.replace("~", "!"), 180, "!", 2, '{"unit": "', "stop"),
    (CALL.replace(WHOLE, '"{}~"'), 180, "~", 1, "", "stop"),
]


@pytest.fixture
def client(connect, llm: FakeLLM) -> httpx.AsyncClient:
    llm.max_model_len = llm.info.max_model_len = 1000
    made: httpx.AsyncClient = connect(tool_call_parser="hermes")
    return made


@pytest.mark.parametrize(("text", "max_tokens", "stop", "count", "arguments", "reason"), CASES)
async def test_a_chat(
    client: httpx.AsyncClient, llm: FakeLLM, text: str, max_tokens: int, stop: str | None, count: int, arguments: str, reason: str
) -> None:
    llm.reply = text
    fields = {"tools": [TOOL], "max_tokens": max_tokens, "stop": stop}
    choice = await ask_both(client, **fields)
    calls = choice["message"].get("tool_calls", [])
    assert (len(calls), choice["finish_reason"]) == (count, reason)
    assert not calls or calls[-1]["function"]["arguments"] == arguments
    assert (await ask(client, **fields))["stop_reason"] == stop
    assert (await ask_chunks(client, **fields))[-1]["choices"][0]["stop_reason"] == stop


@pytest.mark.parametrize(("text", "max_tokens", "stop", "count", "arguments", "reason"), CASES)
async def test_a_response(
    client: httpx.AsyncClient, llm: FakeLLM, text: str, max_tokens: int, stop: str | None, count: int, arguments: str, reason: str
) -> None:
    llm.reply = text
    tools = [{"type": "function", "name": "f", "parameters": PARAMETERS}]
    body = {"input": "Hi", "tools": tools, "max_output_tokens": max_tokens, "stop": stop}
    whole = (await client.post("/v1/responses", json=body)).json()
    streamed = typed_events(await client.post("/v1/responses", json={**body, "stream": True}))[-1]["response"]
    for response in (whole, streamed):
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        assert (len(calls), response["status"]) == (count, "incomplete" if reason == "length" else "completed")
        if calls:
            state = "completed" if reason == "tool_calls" else "incomplete"
            assert (calls[-1]["arguments"], calls[-1]["status"]) == (arguments, state)


@pytest.mark.parametrize(("text", "max_tokens", "stop", "count", "arguments", "reason"), CASES)
async def test_a_message(
    client: httpx.AsyncClient, llm: FakeLLM, text: str, max_tokens: int, stop: str | None, count: int, arguments: str, reason: str
) -> None:
    llm.reply = text
    body: dict[str, Any] = {"messages": [USER], "tools": [{"name": "f", "input_schema": PARAMETERS}], "max_tokens": max_tokens}
    body["stop_sequences"] = [stop] if stop else None
    ends = {"length": "max_tokens", "tool_calls": "tool_use"}
    expected = {"stop_reason": "stop_sequence" if stop else ends[reason], "stop_sequence": stop}
    whole = (await client.post("/v1/messages", json=body)).json()
    events = typed_events(await client.post("/v1/messages", json={**body, "stream": True}))
    assert {name: whole[name] for name in expected} == expected == events[-2]["delta"]
    called = [block for block in whole["content"] if block["type"] == "tool_use"]
    assert len(called) == count
    told = [event["delta"]["partial_json"] for event in events if event.get("delta", {}).get("type") == "input_json_delta"]
    assert count != 1 or "".join(told) == arguments
