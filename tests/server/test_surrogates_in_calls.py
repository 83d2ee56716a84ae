"""Calls whose JSON holds half of a surrogate pair: every route answers them, whole and as a stream, and in the same words."""

from __future__ import annotations

import json

import pytest
from chat_stream import USER, ask_both, typed_events
from fake_llm import FakeLLM

HERMES = {"tool_call_parser": "hermes"}
PARAMETERS = {"type": "object"}
# The name, the arguments, and what is told of them.
CALLS = [
    (r"f\ud800", r'{"x": 1}', "f\ufffd", '{"x": 1}'),
    ("f", r'{"x": ["\udfff"]}', "f", r'{"x": ["\ufffd"]}'),
    ("f", r'"{\"x\": \"\ud800\"}"', "f", '{"x": "\ufffd"}'),
    ("f", r'"\ud800"', "f", "\ufffd"),
]


@pytest.fixture(params=CALLS, ids=["name", "value", "string", "no-object"])
def told(request: pytest.FixtureRequest, llm: FakeLLM) -> tuple[str, str]:
    name, arguments, told_name, told_arguments = request.param
    llm.reply = f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
    return told_name, told_arguments


async def test_in_chats(connect, told: tuple[str, str]) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
    message = (await ask_both(connect(**HERMES), tools=tools))["message"]
    assert [call["function"] for call in message["tool_calls"]] == [dict(zip(("name", "arguments"), told, strict=True))]


async def test_in_responses(connect, told: tuple[str, str]) -> None:
    body = {"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": PARAMETERS}]}
    client = connect(**HERMES)
    whole = await client.post("/v1/responses", json=body)
    assert whole.status_code == 200, whole.text
    last = typed_events(await client.post("/v1/responses", json=body | {"stream": True}))[-1]
    assert last["type"] == "response.completed"
    for response in (whole.json(), last["response"]):
        assert [(item["name"], item["arguments"]) for item in response["output"]] == [told]


async def test_in_messages(connect, told: tuple[str, str]) -> None:
    body = {"messages": [USER], "max_tokens": 150, "tools": [{"name": "f", "input_schema": PARAMETERS}]}
    client = connect(**HERMES)
    whole = await client.post("/v1/messages", json=body)
    assert whole.status_code == 200, whole.text
    (block,) = whole.json()["content"]
    name, arguments = told
    assert (block["name"], block["input"]) == (name, json.loads(arguments) if arguments.startswith("{") else {})
    events = typed_events(await client.post("/v1/messages", json=body | {"stream": True}))
    assert events[-1]["type"] == "message_stop"
    deltas = [each["delta"]["partial_json"] for each in events if each["type"] == "content_block_delta"]
    assert "".join(deltas) == arguments
