"""What the openai package parses: answers that are held to a schema, and calls of tools, whole and streamed, against a live server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel
from serve_process import LiveServer


class Mood(BaseModel):
    """What the model may say: only choices, so that any model says it in a few tokens."""

    mood: Literal["good", "bad"]
    size: Literal["small", "large"]


MESSAGES: Any = [{"role": "user", "content": "Hello"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "set_mood", "strict": True, "parameters": {**Mood.model_json_schema(), "additionalProperties": False}},
}


@pytest.fixture(scope="module")
def tools_server(tiny_llama: Path) -> Iterator[LiveServer]:
    with LiveServer(tiny_llama, "--served-model-name", "tiny", "--tool-call-parser", "hermes") as live:
        yield live
        assert live.stop() == 0
        assert live.left_behind == []


@pytest.fixture
def remote(tools_server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tools_server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_chat_completions_parse(remote: openai.OpenAI) -> None:
    reply = remote.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Mood, temperature=0, max_tokens=100)
    assert isinstance(reply.choices[0].message.parsed, Mood)


def test_chat_completions_stream_of_a_schema(remote: openai.OpenAI) -> None:
    with remote.chat.completions.stream(model="tiny", messages=MESSAGES, response_format=Mood, temperature=0, max_tokens=100) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Mood)


def test_responses_parse(remote: openai.OpenAI) -> None:
    reply = remote.responses.parse(model="tiny", input="Hello", text_format=Mood, temperature=0, max_output_tokens=100)
    assert isinstance(reply.output_parsed, Mood)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "set_mood"}}])
def test_tools_are_called_alike_whole_and_streamed(remote: openai.OpenAI, choice: Any) -> None:
    common = {"model": "tiny", "messages": MESSAGES, "tools": [TOOL], "tool_choice": choice, "temperature": 0, "max_tokens": 100}
    (call,) = remote.chat.completions.create(**common).choices[0].message.tool_calls or ()
    assert call.function.name == "set_mood"
    assert Mood(**json.loads(call.function.arguments))
    name = arguments = ""
    for chunk in remote.chat.completions.create(**common, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
    assert (name, arguments) == (call.function.name, call.function.arguments)
