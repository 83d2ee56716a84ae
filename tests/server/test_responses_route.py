"""/v1/responses: items and events as OpenAI's client reads them, over the fake model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from chat_stream import typed_events
from error_shape import check
from fake_llm import REPLY, FakeLLM
from live_server import LiveServer
from pydantic import BaseModel
from test_chat_tools import CALL

from octavo.config.server import ServerOptions
from octavo.protocol.errors import EngineDeadError, InvalidRequestError, RequestTimeoutError

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": False}
PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "deepseek_r1"}
THOUGHT = f"<think>Hm, ö.</think>I look.{CALL}"


async def ask(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    reply = await client.post("/v1/responses", json={"input": "Hi", **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def ask_events(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    reply = await client.post("/v1/responses", json={"input": "Hi", "stream": True, **fields})
    found = typed_events(reply)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    return found


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in output]


@pytest.fixture
async def remote(llm: FakeLLM) -> AsyncIterator[openai.AsyncOpenAI]:
    llm.max_model_len = llm.info.max_model_len = 1000
    async with (
        LiveServer(llm, ServerOptions(**PARSERS)) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=10) as client,
    ):
        yield client


async def test_shape_of_a_response(client: httpx.AsyncClient) -> None:
    reply = await ask(client, instructions="Be brief.", metadata={"a": "b"}, store=True, max_output_tokens=50, user="me", top_p=0.5)
    (item,) = reply.pop("output")
    assert item.pop("id").startswith("msg_")
    part = {"type": "output_text", "text": REPLY, "annotations": [], "logprobs": []}
    assert item == {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
    assert reply.pop("id").startswith("resp_")
    assert reply.pop("completed_at") >= reply.pop("created_at") > 0
    prompt, count = len("<system>Be brief.<user>Hi<assistant>"), len(REPLY.encode()) + 1
    assert reply.pop("usage") == {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 1},
        "output_tokens": count,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + count,
    }
    told = {"instructions": "Be brief.", "metadata": {"a": "b"}, "max_output_tokens": 50, "user": "me", "top_p": 0.5, "temperature": 1.0}
    assert reply.items() >= {**told, "object": "response", "status": "completed", "model": "fake-model", "store": False}.items()
    assert reply["error"] is reply["incomplete_details"] is reply["previous_response_id"] is None
    assert reply["text"] == {"format": {"type": "text"}}


async def test_an_answer_that_is_cut(client: httpx.AsyncClient) -> None:
    reply = await ask(client, max_output_tokens=3)
    assert (reply["status"], reply["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert reply["output"][0]["status"] == "incomplete"
    assert (await ask_events(client, max_output_tokens=3))[-1]["type"] == "response.incomplete"


async def test_items_in_the_order_of_the_answer(connect, llm: FakeLLM) -> None:
    llm.reply = THOUGHT
    reply = await ask(connect(**PARSERS), tools=[WEATHER])
    assert without_ids(reply["output"]) == [
        {"type": "reasoning", "status": "completed", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm, ö."}]},
        {
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "name": "get_weather", "status": "completed", "arguments": '{"city": "Bodø"}'},
    ]
    assert reply["usage"]["output_tokens_details"]["reasoning_tokens"] == len("<think>Hm, ö.</think>".encode())
    assert reply["tools"] == [{**WEATHER, "description": None}]
    assert llm.rendered[0]["tools"][0] == {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object"}, "strict": False},
    }


async def test_events_tell_of_the_same_items(connect, llm: FakeLLM) -> None:
    llm.reply = THOUGHT
    client = connect(**PARSERS)
    events = await ask_events(client, tools=[WEATHER])
    kinds: list[str] = []
    for each in events:
        if not kinds or kinds[-1] != each["type"]:
            kinds.append(each["type"].removeprefix("response."))
        kinds = [kind for place, kind in enumerate(kinds) if not place or kinds[place - 1] != kind]
    part = ["content_part.done", "output_item.done"]
    assert kinds == [
        *["created", "in_progress"],
        *["output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", *part],
        *["output_item.added", "content_part.added", "output_text.delta", "output_text.done", *part],
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"],
        "completed",
    ]
    assert events[0]["response"]["output"] == []
    last = events[-1]["response"]
    assert [each["item"] for each in events if each["type"] == "response.output_item.done"] == last["output"]
    assert all(each["item"]["status"] == "in_progress" for each in events if each["type"] == "response.output_item.added")
    assert without_ids(last["output"]) == without_ids((await ask(client, tools=[WEATHER]))["output"])
    for kind, whole in (("output_text", "I look."), ("reasoning_text", "Hm, ö."), ("function_call_arguments", '{"city": "Bodø"}')):
        assert "".join(each["delta"] for each in events if each["type"] == f"response.{kind}.delta") == whole
        (done,) = (each for each in events if each["type"] == f"response.{kind}.done")
        assert done["arguments" if "arguments" in kind else "text"] == whole
        assert done.get("name") == ("get_weather" if "arguments" in kind else None)


async def test_openais_client_reads_responses(remote: openai.AsyncOpenAI, llm: FakeLLM) -> None:
    llm.reply = THOUGHT
    reply = await remote.responses.create(model="fake-model", input="Hi", tools=[WEATHER])
    assert reply.output_text == "I look."
    async with remote.responses.stream(model="fake-model", input="Hi", tools=[WEATHER]) as stream:
        kinds = {each.type async for each in stream}
        final = await stream.get_final_response()
    assert {"response.output_text.delta", "response.function_call_arguments.done", "response.completed"} <= kinds
    assert final.output_text == "I look."
    call = reply.output[-1]
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    await remote.responses.create(
        model="fake-model", input=[{"role": "user", "content": "Hi"}, *reply.output, answer], max_output_tokens=1, tools=[WEATHER]
    )
    assert llm.rendered[-1]["messages"][1:] == [
        {"role": "assistant", "content": "", "reasoning_content": "Hm, ö."}
        | {"content": "I look."}
        | {"tool_calls": [{"type": "function", "id": call.call_id, "function": {"name": "get_weather", "arguments": {"city": "Bodø"}}}]},
        {"role": "tool", "content": "Rain.", "tool_call_id": call.call_id},
    ]


async def test_sampling_fields_reach_the_engine(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 0.2, "frequency_penalty": 0.3}
    fields |= {"repetition_penalty": 1.1, "seed": 4, "stop": ["q"], "stop_token_ids": [9], "min_tokens": 2, "ignore_eos": True}
    fields |= {"include_stop_str_in_output": True, "skip_special_tokens": False}
    given = {"cache_salt": "s", "priority": 3, "structured_outputs": {"regex": "a"}, "chat_template_kwargs": {"x": 1}}
    reply = await ask(client, **fields, **given, max_output_tokens=5, timeout=30)
    (call,) = llm.calls
    assert {name: getattr(call.sampling, name) for name in fields} == fields
    assert (call.sampling.max_tokens, call.sampling.structured_outputs.regex) == (5, "a")
    assert (call.cache_salt, call.priority) == ("s", 3)
    assert llm.rendered[0]["x"] == 1
    assert (reply["temperature"], reply["top_p"]) == (0.5, 0.9)


async def test_thinking_may_be_left_out(connect, llm: FakeLLM) -> None:
    llm.reply = THOUGHT
    assert [item["type"] for item in (await ask(connect(**PARSERS), include_reasoning=False))["output"]] == ["message"]


class Answer(BaseModel):
    yes: bool


async def test_openais_client_parses_structured_text(remote: openai.AsyncOpenAI, llm: FakeLLM) -> None:
    llm.reply = '<think>Hm.</think>{"yes": true}'
    reply = await remote.responses.parse(model="fake-model", input="Hi", text_format=Answer)
    assert reply.output_parsed == Answer(yes=True)
    assert reply.text.format.type == "json_schema"
    # After thinking, which is free, the text is held to the schema.
    grammar = llm.calls[-1].sampling.structured_outputs.grammar
    assert "thought" in grammar
    assert '"yes":{' in grammar


async def test_what_the_text_must_be(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}}
    reply = await ask(client, text={"format": {"type": "json_schema", "name": "a", "schema": schema}, "verbosity": "medium"})
    assert llm.calls[-1].sampling.structured_outputs.json == schema
    assert reply["text"]["format"] == {"type": "json_schema", "name": "a", "schema": schema, "description": None, "strict": None}
    await ask(client, text={"format": {"type": "json_object"}})
    assert llm.calls[-1].sampling.structured_outputs.json_object is True
    await ask(client, text={"format": {"type": "text"}})
    assert llm.calls[-1].sampling.structured_outputs is None


async def test_messages_as_items(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}], "id": "msg_1", "status": "completed"},
        {"role": "assistant", "content": "d"},
    ]
    await ask(client, input=items, reasoning={"effort": "none"})
    assert [(each["role"], each["content"]) for each in llm.rendered[0]["messages"]] == [
        *[("system", "Be brief."), ("user", "a\nb"), ("assistant", "c"), ("assistant", "d")]
    ]


async def test_a_failure_on_the_way_ends_the_response(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.fail_after = 3
    *_, last = await ask_events(client)
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert "not finite" in last["response"]["error"]["message"]
    assert last["response"]["error"]["code"] == "server_error"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (InvalidRequestError("structured_outputs: the text can't go on", param="structured_outputs"), "invalid_prompt"),
        (InvalidRequestError("too long", code="context_length_exceeded"), "context_length_exceeded"),
        (RequestTimeoutError("over", code="timeout"), "timeout"),
        (EngineDeadError("gone"), "server_error"),
        (RuntimeError("a fault"), "server_error"),
    ],
)
async def test_a_failure_has_a_code(client: httpx.AsyncClient, llm: FakeLLM, failure: Exception, code: str) -> None:
    llm.fail_after, llm.failure = 3, failure
    *_, last = await ask_events(client)
    assert last["response"]["error"]["code"] == code


async def test_nothing_is_stored(client: httpx.AsyncClient) -> None:
    reply = await ask(client)
    check(await client.get(f"/v1/responses/{reply['id']}"), 404, "response_id", "stores no responses")


CALLED = {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": None}, "input", ["text or a list"]),
        ({"input": ""}, "input", []),
        ({"input": []}, "input", []),
        ({"input": [1]}, "input.0", ["object"]),
        ({"input": [{"role": "x", "content": "a"}]}, "input.0.role", ["developer"]),
        ({"input": [{"role": "user"}]}, "input.0.content", []),
        ({"instructions": "a", "input": [{"role": "user", "content": "a"}, {"role": "x", "content": "a"}]}, "input.1.role", ["'x'"]),
        ({"input": [{"role": "user", "content": "a"}, {"role": "tool", "content": "a"}]}, "input.1.role", ["function_call_output"]),
        ({"input": [{"role": "user", "content": "a"}, {**CALLED, "arguments": "{"}]}, "input.1.arguments", ["JSON object"]),
        ({"input": [CALLED, CALLED | {"arguments": '{"a": NaN}'}]}, "input.1.arguments", ["JSON object"]),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0.type", ["input_image"]),
        ({"input": [{"role": "user", "content": "a", "colour": 1}]}, "input.0.colour", ["unknown"]),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type", ["stored"]),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "a"}]}, "input.0.call_id", ["no function_call"]),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "f"}]}, "input.0.arguments", ["string"]),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input.0.encrypted_content", ["not supported"]),
        ({"input": "x" * 300}, "input", ["200"]),
        ({"max_output_tokens": 190}, "max_output_tokens", ["190", "200"]),
        ({"previous_response_id": "resp_1"}, "previous_response_id", ["not supported"]),
        ({"background": True}, "background", ["not supported"]),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", ["high"]),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary", []),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", ["web_search"]),
        ({"tools": [WEATHER, {**WEATHER, "name": "f", "parameters": {"type": "array"}}]}, "tools.1.parameters", ["object"]),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name", ["g"]),
        ({"max_tokens": 3}, "max_tokens", ["unknown", "max_output_tokens"]),
        ({"messages": []}, "messages", ["input"]),
        ({"input": [{"role": "user", "contents": "a"}]}, "input.0.contents", ["did you mean content?"]),
        ({"text": {"format": {"type": "json_schema", "name": "a", "shema": {}}}}, "text.format.shema", ["did you mean schema?"]),
        ({"tools": [{"type": "function", "name": "f", "strct": True}]}, "tools.0.strct", ["did you mean strict?"]),
        ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}, "text.format", ["structured_outputs"]),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", ["can't be 'xml'"]),
    ],
)
async def test_refused_responses(connect, fields: dict[str, Any], param: str, words: list[str]) -> None:
    check(await connect(**PARSERS).post("/v1/responses", json={"input": "Hi", **fields}), 400, param, *words)


@pytest.mark.parametrize(
    ("field", "value", "name", "reached"),
    [
        ("temperature", 0.5, "temperature", 0.5),
        ("top_p", 0.4, "top_p", 0.4),
        ("top_k", 7, "top_k", 7),
        ("seed", 5, "seed", 5),
        ("max_output_tokens", 33, "max_tokens", 33),
        ("logit_bias", {"5": 2}, "logit_bias", {5: 2.0}),
        ("stop", ["zzz"], "stop", ["zzz"]),
    ],
)
async def test_what_samples_reaches_the_model(
    client: httpx.AsyncClient, llm: FakeLLM, field: str, value: Any, name: str, reached: Any
) -> None:
    await ask(client, **{field: value})
    assert getattr(llm.calls[-1].sampling, name) == reached


async def test_a_request_names_itself_and_has_a_deadline(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    assert (await ask(client, request_id="mine"))["id"].endswith("mine")
    llm.hold.clear()
    reply = await client.post("/v1/responses", json={"input": "Hi", "timeout": 0.5})
    assert (reply.status_code, reply.json()["error"]["code"]) == (408, "timeout")
    assert llm.calls[-1].closed
