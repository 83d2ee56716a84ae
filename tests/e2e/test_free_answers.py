"""What a live server holds an answer to where the model chooses, with a parser from a file, and all logprobs that it is asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import is_alive
from serve_process import LiveServer

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
# The format of plain JSON under a name of its own.
PLUGIN = """
from octavo.text.tools.plain_json import PlainJsonParser
from octavo.text.tools.registry import register_tool_parser

register_tool_parser("own")(PlainJsonParser)
"""
SCHEMA = {"type": "object", "properties": {"unit": {"enum": ["a", "b"]}}, "required": ["unit"], "additionalProperties": False}
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def free_server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    plugin = tmp_path_factory.mktemp("plugin") / "own.py"
    plugin.write_text(PLUGIN)
    options = ["--max-logprobs", "-1", "--chat-template", TEMPLATE, "--tool-parser-plugin", str(plugin), "--tool-call-parser", "own"]
    with LiveServer(tiny_llama, *options) as live:
        with live.client() as client:
            yield client
        assert live.stop() == 0
        assert not any(map(is_alive, live.pids))


def tokens(client: httpx.Client, text: str) -> list[int]:
    return list(client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"])


def test_a_model_drawn_into_a_call_makes_a_right_one(free_server: httpx.Client) -> None:
    """Biases draw it to the bracket of an object; only strict has it go on with a call, whose arguments are right."""
    (opening,), (listing,) = (tokens(free_server, text) for text in "{[")
    body: dict[str, Any] = {"messages": [USER], "temperature": 0, "max_tokens": 100, "logit_bias": {str(opening): 100, str(listing): 50}}
    for strict in (True, False):
        tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": strict}}
        reply = free_server.post("/v1/chat/completions", json={**body, "tools": [tool], "parallel_tool_calls": False})
        assert reply.status_code == 200, reply.text
        (choice,) = reply.json()["choices"]
        if not strict:
            assert choice["message"]["content"].startswith("{{")
            continue
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "f"
        assert json.loads(call["function"]["arguments"])["unit"] in ("a", "b")


def test_logprobs_of_the_whole_vocabulary(free_server: httpx.Client) -> None:
    body = {"prompt": "Hi", "max_tokens": 2, "temperature": 0, "logprobs": -1, "prompt_logprobs": -1}
    (choice,) = free_server.post("/v1/completions", json=body).json()["choices"]
    for position in choice["prompt_logprobs"][1:]:
        assert sum(math.exp(entry["logprob"]) for entry in position.values()) == pytest.approx(1, abs=1e-3)
    chat = {"messages": [USER], "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": -1}
    (choice,) = free_server.post("/v1/chat/completions", json=chat).json()["choices"]
    for entry in choice["logprobs"]["content"]:
        assert sum(math.exp(each["logprob"]) for each in entry["top_logprobs"]) == pytest.approx(1, abs=1e-3)
        assert entry["top_logprobs"][0]["token"] == entry["token"]


def test_what_its_template_does_not_read(free_server: httpx.Client) -> None:
    body = {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 1}
    reply = free_server.post("/v1/chat/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "chat_template_kwargs.enable_thinking")
