"""Calls that a request forces, from a model that knows no tools, through every endpoint that has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from serve_process import LiveServer

SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA, "strict": True}} for name in ("get_weather", "get_forecast")
]
MESSAGES: Any = [{"role": "user", "content": "Hello"}]
ARGUMENTS: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 200, "seed": 5, "tools": TOOLS}


@pytest.fixture(scope="module")
def tool_server(tiny_llama: Path) -> Iterator[LiveServer]:
    with LiveServer(tiny_llama, "--served-model-name", "tiny", "--tool-call-parser", "hermes") as live:
        yield live
        assert live.stop() == 0


@pytest.fixture
def tool_client(tool_server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tool_server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def check(arguments: str) -> None:
    value = json.loads(arguments)
    assert set(value) == {"unit", "days"}
    assert value["unit"] in ("celsius", "fahrenheit")
    assert 1 <= value["days"] <= 9


@pytest.mark.parametrize("parsed", ["tool_client", "client"])
def test_a_named_tool_is_called(request: pytest.FixtureRequest, parsed: str) -> None:
    """Also by a server that knows no format of this model's, which is then JSON."""
    client: openai.OpenAI = request.getfixturevalue(parsed)
    choice: Any = {"type": "function", "function": {"name": "get_forecast"}}
    reply = client.chat.completions.create(**ARGUMENTS, tool_choice=choice).choices[0]
    assert (reply.finish_reason, reply.message.content) == ("tool_calls", None)
    assert reply.message.tool_calls is not None
    (call,) = reply.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_forecast"
    check(call.function.arguments)
    with client.chat.completions.stream(**ARGUMENTS, tool_choice=choice) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed is not None
    assert [(each.function.name, each.function.arguments) for each in streamed] == [(call.function.name, call.function.arguments)]


def test_some_tool_is_called(tool_client: openai.OpenAI) -> None:
    reply = tool_client.chat.completions.create(**ARGUMENTS, tool_choice="required", parallel_tool_calls=False, n=3, temperature=1)
    for choice in reply.choices:
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert call.function.name in ("get_weather", "get_forecast")
        check(call.function.arguments)


def test_a_response_calls_a_function(tool_client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
    choice: Any = {"type": "function", "name": "get_weather"}
    reply = tool_client.responses.create(model="tiny", input="Hello", tools=tools, tool_choice=choice, max_output_tokens=200)
    (item,) = reply.output
    assert item.type == "function_call"
    assert (item.name, item.status) == ("get_weather", "completed")
    check(item.arguments)


def test_a_message_uses_a_tool(tool_server: LiveServer) -> None:
    tools: Any = [{"name": tool["function"]["name"], "input_schema": SCHEMA} for tool in TOOLS]
    with anthropic.Anthropic(base_url=tool_server.url, api_key="none", max_retries=0, timeout=60) as client:
        choice: Any = {"type": "tool", "name": "get_weather"}
        reply = client.messages.create(model="tiny", messages=MESSAGES, max_tokens=200, tools=tools, tool_choice=choice)
    (block,) = reply.content
    assert block.type == "tool_use"
    assert (block.name, reply.stop_reason) == ("get_weather", "tool_use")
    check(json.dumps(block.input))


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, "Pointer '/nowhere' does not exist"),
        ({"properties": {"a": {"type": "x"}}}, "Invalid type: x"),
    ],
)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_schema_that_can_not_be_held_is_refused(tool_client: openai.OpenAI, parameters: dict[str, Any], reason: str, choice: Any) -> None:
    tools: Any = [TOOLS[0], {"type": "function", "function": {"name": "f", "parameters": parameters}}]
    with pytest.raises(openai.BadRequestError) as error:
        tool_client.chat.completions.create(**{**ARGUMENTS, "tools": tools}, tool_choice=choice)
    assert error.value.param == "tools.1.function.parameters"
    assert error.value.body["message"] == f"tools.1.function.parameters can't be used: {reason}"  # type: ignore[index]
