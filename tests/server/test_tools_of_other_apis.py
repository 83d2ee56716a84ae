"""What requests of /v1/responses and /v1/messages say of tools and thinking: each value changes what is asked or answered."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_llm import FakeLLM

CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"], "additionalProperties": False}
USER = {"role": "user", "content": "Hi"}
CALLS = "".join(f'<tool_call>\n{{"name": "{name}", "arguments": {{"city": "Oslo"}}}}\n</tool_call>' for name in ("f", "g"))
TOOLS: dict[str, list[dict[str, Any]]] = {
    "/v1/responses": [{"type": "function", "name": name, "parameters": CITY} for name in ("f", "g")],
    "/v1/messages": [{"name": name, "input_schema": CITY} for name in ("f", "g")],
}
BASES: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [USER], "max_tokens": 180},
    "/v1/messages/count_tokens": {"messages": [USER]},
}
PATHS = list(TOOLS)


@pytest.fixture
def calling(connect, llm: FakeLLM) -> httpx.AsyncClient:
    llm.reply, llm.max_model_len = CALLS, 1000
    llm.info.max_model_len = 1000
    return connect(tool_call_parser="hermes")


async def names(client: httpx.AsyncClient, path: str, **fields: Any) -> list[str]:
    """The functions that an answer calls, which are the same whole and streamed."""
    body = {**BASES[path], "tools": TOOLS[path], **fields}
    whole = await client.post(path, json=body)
    assert whole.status_code == 200, whole.text
    items = whole.json()["output" if path == "/v1/responses" else "content"]
    called = [item["name"] for item in items if item["type"] in ("function_call", "tool_use")]
    streamed = await client.post(path, json={**body, "stream": True})
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
    begun = [event.get("item", event.get("content_block", {})) for event in events if event["type"].endswith((".added", "_block_start"))]
    assert [each["name"] for each in begun if "name" in each] == called
    return called


@pytest.mark.parametrize(
    ("path", "fields", "called"),
    [
        ("/v1/responses", {}, ["f", "g"]),
        ("/v1/responses", {"parallel_tool_calls": True}, ["f", "g"]),
        ("/v1/responses", {"parallel_tool_calls": False}, ["f"]),
        ("/v1/responses", {"tool_choice": "none"}, []),
        ("/v1/messages", {}, ["f", "g"]),
        ("/v1/messages", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": False}}, ["f", "g"]),
        ("/v1/messages", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, ["f"]),
        ("/v1/messages", {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, ["f"]),
        ("/v1/messages", {"tool_choice": {"type": "none"}}, []),
    ],
)
async def test_how_many_calls_there_are(calling: httpx.AsyncClient, path: str, fields: dict[str, Any], called: list[str]) -> None:
    assert await names(calling, path, **fields) == called


@pytest.mark.parametrize(
    ("path", "fields", "rules"),
    [
        ("/v1/responses", {"tool_choice": "auto"}, None),
        ("/v1/responses", {"tool_choice": "none"}, None),
        ("/v1/responses", {"tool_choice": "required"}, ["f", "g"]),
        ("/v1/responses", {"tool_choice": {"type": "function", "name": "g"}}, ["g"]),
        ("/v1/messages", {"tool_choice": {"type": "auto"}}, None),
        ("/v1/messages", {"tool_choice": {"type": "none"}}, None),
        ("/v1/messages", {"tool_choice": {"type": "any"}}, ["f", "g"]),
        ("/v1/messages", {"tool_choice": {"type": "tool", "name": "g"}}, ["g"]),
    ],
)
async def test_what_holds_an_answer_to_calls(
    calling: httpx.AsyncClient, llm: FakeLLM, path: str, fields: dict[str, Any], rules: list[str] | None
) -> None:
    reply = await calling.post(path, json={**BASES[path], "tools": TOOLS[path], **fields})
    assert reply.status_code == 200, reply.text
    held = llm.calls[-1].sampling.structured_outputs
    told = llm.rendered[-1].get("tools", [])
    assert [tool["function"]["name"] for tool in told] == ([] if "none" in str(fields) else ["f", "g"])
    if rules is None:
        assert held is None
        return
    lines = [line for line in held.grammar.splitlines() if line.startswith("call_")]
    assert [line.split('"name\\": \\"')[1][0] for line in lines] == rules
    assert all('"enum":["Oslo"]' in line for line in lines)
    # Of several calls there may be more where any will do, and no more than one where one is named.
    assert ("call)*" in held.grammar) == (len(rules) > 1)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_thinking_is_switched_off_in_the_words_of_the_template(connect, llm: FakeLLM, path: str) -> None:
    client = connect(chat_template="{{ messages }}{{ enable_thinking }}")
    for fields, given in (({}, None), ({"thinking": None}, None), ({"thinking": {"type": "disabled"}}, False)):
        assert (await client.post(path, json={**BASES[path], **fields})).status_code == 200
        assert llm.rendered[-1].get("enable_thinking") is given


@pytest.mark.parametrize("path", BASES)
async def test_variables_reach_the_template(client: httpx.AsyncClient, llm: FakeLLM, path: str) -> None:
    assert (await client.post(path, json={**BASES[path], "chat_template_kwargs": {"loud": [1]}})).status_code == 200
    assert llm.rendered[-1]["loud"] == [1]
    reply = await client.post(path, json={**BASES[path], "chat_template_kwargs": {"messages": []}})
    assert reply.status_code == 400
    assert "chat_template_kwargs.messages" in reply.text


async def test_tools_are_counted_as_the_template_writes_them(connect, llm: FakeLLM) -> None:
    client = connect(tool_call_parser="hermes")
    llm.render_chat = lambda messages, **told: json.dumps(told.get("tools", []))  # type: ignore[method-assign]

    async def count(**fields: Any) -> int:
        reply = await client.post("/v1/messages/count_tokens", json={"messages": [USER], "tools": TOOLS["/v1/messages"], **fields})
        assert reply.status_code == 200, reply.text
        return int(reply.json()["input_tokens"])

    functions = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("f", "g")]
    assert await count() == await count(tool_choice={"type": "any"}) == len(json.dumps(functions))
    assert await count(tool_choice={"type": "none"}) == await count(tools=[]) == len("[]")


async def test_tools_are_counted_whoever_reads_the_calls(connect, llm: FakeLLM) -> None:
    llm.render_chat = lambda messages, **told: json.dumps(told.get("tools", []))  # type: ignore[method-assign]
    counts = []
    for client in (connect(tool_call_parser="hermes"), connect(), connect(enable_auto_tool_choice=False)):
        reply = await client.post("/v1/messages/count_tokens", json={"messages": [USER], "tools": TOOLS["/v1/messages"]})
        assert reply.status_code == 200, reply.text
        counts.append(reply.json()["input_tokens"])
    assert len(set(counts)) == 1
    assert counts[0] > 100
    for fields, words in (
        ({"tools": TOOLS["/v1/messages"], "tool_choice": {"type": "tool", "name": "h"}}, "no tool of the name"),
        ({"tool_choice": {"type": "any"}}, "no tools to choose from"),
    ):
        reply = await connect().post("/v1/messages/count_tokens", json={"messages": [USER], **fields})
        assert reply.status_code == 400
        assert words in reply.text
