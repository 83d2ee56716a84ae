"""What clients write that says nothing: nulls under names of their own, and texts that are empty."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from error_shape import check
from fake_llm import FakeLLM
from openai.types.responses import ResponseFunctionToolCall

USER = {"role": "user", "content": "Hi"}
NEW = {"caller": None, "namespace": None, "async": None, "async_": None}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "Rain."}
FUNCTION = {"name": "f", "parameters": {"type": "object", "default": None}}
TURN = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}


def calling(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", **function}}]}


def chat(message: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [USER, message]}


def turn(block: dict[str, Any]) -> dict[str, Any]:
    return {"max_tokens": 5, "messages": [{"role": "assistant", "content": [block]}, TURN]}


@pytest.fixture
def roomy(connect, llm: FakeLLM) -> httpx.AsyncClient:
    llm.max_model_len = llm.info.max_model_len = 1000
    return connect(tool_call_parser="hermes")


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("responses", {"input": [USER, {**CALL, "new": None}, OUTPUT]}, "input.1.new"),
    ("responses", {"input": [USER, CALL, {**OUTPUT, "new": None}]}, "input.2.new"),
    ("responses", {"input": [{**USER, "new": None}]}, "input.0.new"),
    ("responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "new": None}]}]}, "input.0.content.0.new"),
    ("responses", {"input": [{"type": "reasoning", "summary": [], "new": None}, USER]}, "input.0.new"),
    ("responses", {"input": "a", "tools": [{"type": "function", **FUNCTION, "new": None}]}, "tools.0.new"),
    ("responses", {"input": "a", "text": {"format": {"type": "text", "new": None}}}, "text.format.new"),
    ("responses", {"input": "a", "reasoning": {"new": None}}, "reasoning.new"),
    ("chat/completions", chat({**USER, "new": None}), "messages.1.new"),
    ("chat/completions", chat({"role": "user", "content": [{"type": "text", "text": "a", "new": None}]}), "messages.1.content.0.new"),
    ("chat/completions", chat(calling(new=None)), "messages.1.tool_calls.0.function.new"),
    (
        "chat/completions",
        chat({"role": "assistant", "tool_calls": [{"function": {"name": "f"}, "new": None}]}),
        "messages.1.tool_calls.0.new",
    ),
    ("chat/completions", {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION, "new": None}]}, "tools.0.new"),
    (
        "chat/completions",
        {"messages": [USER], "tools": [{"type": "function", "function": {**FUNCTION, "new": None}}]},
        "tools.0.function.new",
    ),
    ("chat/completions", {"messages": [USER], "stream": True, "stream_options": {"new": None}}, "stream_options.new"),
    ("chat/completions", {"messages": [USER], "response_format": {"type": "text", "new": None}}, "response_format.new"),
    ("messages", {"max_tokens": 5, "messages": [{**TURN, "new": None}]}, "messages.0.new"),
    ("messages", turn({"type": "text", "text": "a", "new": None}), "messages.0.content.0.new"),
    ("messages", turn({"type": "thinking", "thinking": "a", "new": None}), "messages.0.content.0.new"),
    ("messages", turn({"type": "tool_use", "id": "c", "name": "f", "input": {}, "new": None}), "messages.0.content.0.new"),
    ("messages", {"max_tokens": 5, "messages": [TURN], "tools": [{"name": "f", "input_schema": {}, "new": None}]}, "tools.0.new"),
]


def put(value: Any, names: list[str], held: Any) -> Any:
    """`value` with `held` at the place that `names` lead to."""
    if not names:
        return held
    first, *rest = names
    if isinstance(value, list):
        return [put(each, rest, held) if str(place) == first else each for place, each in enumerate(value)]
    return {**value, first: put(value[first], rest, held)}


@pytest.mark.parametrize(("route", "body", "place"), CASES)
async def test_a_null_under_a_name_that_nobody_knows_is_absent(roomy: httpx.AsyncClient, route: str, body: dict, place: str) -> None:
    reply = await roomy.post(f"/v1/{route}", json=body)
    assert reply.status_code == 200, reply.text
    reply = await roomy.post(f"/v1/{route}", json=put(body, place.split("."), False))
    assert reply.status_code == 400
    assert f"{place}: unknown field" in reply.text


async def test_a_choice_may_have_the_names_of_another_as_null(roomy: httpx.AsyncClient) -> None:
    body = {
        "max_tokens": 5,
        "messages": [TURN],
        "tools": [{"name": "f", "input_schema": {}}],
        "tool_choice": {"type": "auto", "name": None},
    }
    assert (await roomy.post("/v1/messages", json=body)).status_code == 200


async def test_nulls_of_a_schema_stay(roomy: httpx.AsyncClient, llm: FakeLLM) -> None:
    tool = {"type": "function", "function": {**FUNCTION, "new": None}}
    assert (await roomy.post("/v1/chat/completions", json={"messages": [USER], "tools": [tool]})).status_code == 200
    assert llm.rendered[-1]["tools"] == [{"type": "function", "function": FUNCTION}]


async def test_a_call_as_openais_client_dumps_it(roomy: httpx.AsyncClient, llm: FakeLLM) -> None:
    dumped = ResponseFunctionToolCall(**CALL).model_dump()
    assert None in dumped.values()
    for call in (dumped, {**CALL, **NEW}):
        reply = await roomy.post("/v1/responses", json={"input": [{**USER, "type": None}, call, OUTPUT]})
        assert reply.status_code == 200, reply.text
        assert llm.rendered[-1]["messages"][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


@pytest.mark.parametrize("function", [{"arguments": ""}, {"arguments": " \n"}, {"arguments": None}, {}])
async def test_blank_arguments_are_none(roomy: httpx.AsyncClient, llm: FakeLLM, function: dict[str, Any]) -> None:
    reply = await roomy.post("/v1/chat/completions", json=chat(calling(**function)))
    assert reply.status_code == 200, reply.text
    assert llm.rendered[-1]["messages"][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


async def test_blank_arguments_of_an_item_are_none(roomy: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await roomy.post("/v1/responses", json={"input": [USER, {**CALL, "arguments": ""}, OUTPUT]})
    assert reply.status_code == 200, reply.text
    assert llm.rendered[-1]["messages"][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


async def test_an_assistant_that_only_thought_said_nothing(roomy: httpx.AsyncClient, llm: FakeLLM) -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    for route, body in (
        ("responses", {"input": [thought, USER]}),
        ("chat/completions", {"messages": [{"role": "assistant", "reasoning_content": "Hm."}, USER]}),
        ("chat/completions", {"messages": [{"role": "assistant", "content": None, "reasoning": "Hm."}, USER]}),
    ):
        reply = await roomy.post(f"/v1/{route}", json=body)
        assert reply.status_code == 200, reply.text
        told, _ = llm.rendered[-1]["messages"]
        assert (told["role"], told["content"], told["reasoning_content"]) == ("assistant", "", "Hm.")
    check(await roomy.post("/v1/chat/completions", json=chat({"role": "assistant"})), 400, "messages.1.content", "required")
