"""Tools in /v1/chat/completions: told to the template, found in the text, refused by name."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from chat_stream import USER, ask, ask_both, ask_chunks
from error_shape import check
from fake_llm import FakeLLM
from live_server import LiveServer

from octavo.config.server import ServerOptions
from octavo.protocol.errors import ConfigError
from octavo.server.app import build_app

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOTHING = {"type": "function", "function": {"name": "nothing", "strict": True}}
TOOLS = [WEATHER, NOTHING]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bodø"}}\n</tool_call>'
HERMES = {"tool_call_parser": "hermes"}


def called(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


async def test_calls_are_told_from_content(connect, llm: FakeLLM) -> None:
    llm.reply = f"I look.\n{CALL}\n" + '<tool_call>{"name": "nothing"}</tool_call>'
    assert await ask_both(connect(**HERMES), tools=TOOLS) == {
        "message": {
            "role": "assistant",
            "content": "I look.",
            "refusal": None,
            "tool_calls": [called("get_weather", '{"city": "Bodø"}'), called("nothing", "{}")],
        },
        "finish_reason": "tool_calls",
    }
    assert llm.rendered[0]["tools"] == TOOLS


async def test_content_is_null_where_there_are_only_calls(connect, llm: FakeLLM) -> None:
    llm.reply = CALL
    assert (await ask(connect(**HERMES), tools=TOOLS))["message"]["content"] is None


async def test_one_call_where_only_one_is_wanted(connect, llm: FakeLLM) -> None:
    llm.reply = CALL + CALL
    choice = await ask_both(connect(**HERMES), tools=TOOLS, parallel_tool_calls=False)
    assert choice["message"]["tool_calls"] == [called("get_weather", '{"city": "Bodø"}')]
    assert len((await ask_both(connect(**HERMES), tools=TOOLS, parallel_tool_calls=True))["message"]["tool_calls"]) == 2


async def test_an_answer_without_calls(connect, llm: FakeLLM) -> None:
    choice = await ask_both(connect(**HERMES), tools=TOOLS, tool_choice="auto")
    assert choice == {"message": {"role": "assistant", "content": llm.reply, "refusal": None}, "finish_reason": "stop"}


async def test_a_call_that_is_cut_keeps_its_beginning(connect, llm: FakeLLM) -> None:
    llm.reply = CALL
    choice = await ask_both(connect(**HERMES), tools=TOOLS, max_tokens=len('<tool_call>\n{"name": "get_weather", "arguments": {"ci'))
    assert choice["message"]["tool_calls"] == [called("get_weather", '{"ci')]
    assert choice["finish_reason"] == "length"


async def test_without_choice_of_tools_the_text_is_content(connect, llm: FakeLLM) -> None:
    llm.reply = CALL
    for fields in ({"tools": TOOLS, "tool_choice": "none"}, {"tools": []}, {"tools": None, "parallel_tool_calls": False}):
        assert (await ask_both(connect(**HERMES), **fields))["message"]["content"] == CALL
    assert not any("tools" in rendered for rendered in llm.rendered)


async def test_arguments_stream_as_they_come(connect, llm: FakeLLM) -> None:
    llm.reply = CALL
    chunks = await ask_chunks(connect(**HERMES), tools=TOOLS)
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert calls[0]["id"].startswith("call_")
    assert (calls[0]["type"], calls[0]["index"], calls[0]["function"]["name"]) == ("function", 0, "get_weather")
    # A chunk for each character of the arguments, less those of the first.
    assert len(calls) == len('{"city": "Bodø"}')
    assert not any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)


async def test_every_choice_has_its_own_calls(connect, llm: FakeLLM) -> None:
    llm.reply = CALL
    reply = await connect(**HERMES).post("/v1/chat/completions", json={"messages": [USER], "tools": TOOLS, "n": 2, "temperature": 1})
    calls = [choice["message"]["tool_calls"] for choice in reply.json()["choices"]]
    assert [len(each) for each in calls] == [1, 1]
    assert calls[0][0]["id"] != calls[1][0]["id"]


async def test_logprobs_beside_held_text_are_of_every_token(connect, llm: FakeLLM) -> None:
    llm.reply = CALL
    chunks = await ask_chunks(connect(**HERMES), tools=TOOLS, logprobs=True)
    entries = [entry for chunk in chunks if chunk["choices"][0]["logprobs"] for entry in chunk["choices"][0]["logprobs"]["content"]]
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == CALL.encode() + b"<|end|>"


async def test_the_template_shows_the_format(connect, llm: FakeLLM) -> None:
    llm.reply = "[TOOL_CALLS]" + '[{"name": "nothing", "arguments": {}}]'
    llm.tokenizer.chat_template = "{{ messages }}"
    check(await connect().post("/v1/chat/completions", json={"messages": [USER], "tools": TOOLS}), 400, "tool_choice", "--tool-call-parser")
    llm.tokenizer.chat_template = "{{ tools }}[TOOL_CALLS]"
    choice = await ask(connect(), tools=TOOLS)
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "nothing", "arguments": "{}"}
    # The id is of the kind that the model's template takes.
    assert len(choice["message"]["tool_calls"][0]["id"]) == 9
    llm.tokenizer.chat_template, llm.tokenizer.named_templates = "{{ messages }}", {"tool_use": "{{ tools }}[TOOL_CALLS]"}
    assert (await ask(connect(), tools=TOOLS))["finish_reason"] == "tool_calls"
    # What the server was started with wins.
    assert (await ask(connect(tool_call_parser="json"), tools=TOOLS))["finish_reason"] == "stop"


async def test_tools_that_the_template_does_not_read(connect, llm: FakeLLM) -> None:
    llm.tokenizer.chat_template = "{{ messages }}"
    client = connect(**HERMES)
    for fields in ({}, {"tool_choice": "auto"}):
        body = {"messages": [USER], "tools": TOOLS, **fields}
        check(await client.post("/v1/chat/completions", json=body), 400, "tools", "chat template has no place for tools", "required")
    # These are held to by a grammar, and need no telling.
    for choice in ("required", "none", {"type": "function", "function": {"name": "nothing"}}):
        await ask(client, tools=TOOLS, tool_choice=choice)


async def test_auto_can_be_switched_off(connect) -> None:
    client = connect(enable_auto_tool_choice=False, **HERMES)
    body = {"messages": [USER], "tools": TOOLS}
    check(await client.post("/v1/chat/completions", json=body), 400, "tool_choice", "--no-enable-auto-tool-choice")
    await ask(client, tools=TOOLS, tool_choice="none")


async def test_special_tokens_that_mark_calls_stay_in_the_text(connect, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    await ask(connect(**HERMES), tools=TOOLS)
    assert llm.calls[-1].sampling.skip_special_tokens
    monkeypatch.setattr(llm.tokenizer, "special_tokens", {"<tool_call>": 256}, raising=False)
    await ask(connect(**HERMES), tools=TOOLS)
    assert not llm.calls[-1].sampling.skip_special_tokens


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "function"}]}, "tools.0.function", ["required"]),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", ["web_search"]),
        ({"tools": [WEATHER, WEATHER]}, "tools.1.function.name", ["get_weather"]),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", []),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name", []),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parametres": {}}}]},
            "tools.0.function.parametres",
            ["unknown", "parameters?"],
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools.0.function.parameters", ["object"]),
        (
            {"tools": [WEATHER, {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools.1.function.parameters",
            ["object", '"string"'],
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": ["array", "null"]}}}], "tool_choice": "none"},
            "tools.0.function.parameters",
            ["object"],
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": ["object", "null"]}, "strict": True}}]},
            "tools.0.function.parameters",
            ["strict", '["object", "null"]'],
        ),
        ({"tools": [{"type": "function", "function": {"name": "f\n"}}]}, "tools.0.function.name", []),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nothing\n"}}}, "tool_choice.function.name", []),
        ({"tools": "f"}, "tools", ["list"]),
        ({"tool_choice": "auto"}, "tool_choice", ["no tools"]),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", ["no tools"]),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", ["any"]),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice.function.name", ["other"]),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice.type", ["custom"]),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls", ["true or false"]),
    ],
)
async def test_refused_tools(connect, fields: dict[str, Any], param: str, words: list[str]) -> None:
    check(await connect(**HERMES).post("/v1/chat/completions", json={"messages": [USER], **fields}), 400, param, *words)


async def test_strict_tools_hold_what_the_model_chooses(connect, llm: FakeLLM) -> None:
    client = connect(**HERMES)
    for choice in (None, "auto"):
        await ask(client, tools=TOOLS, tool_choice=choice)
        held = llm.calls[-1].sampling.structured_outputs
        assert '"name": \\"nothing\\", \\"arguments\\": " %json' in held.grammar.replace('\\"name\\"', '"name"')
    await ask(client, tools=TOOLS, tool_choice="none")
    assert llm.calls[-1].sampling.structured_outputs is None
    loose = {"type": "function", "function": {"name": "nothing", "strict": False}}
    await ask(client, tools=[WEATHER, loose])
    assert llm.calls[-1].sampling.structured_outputs is None
    check(
        await client.post("/v1/chat/completions", json={"messages": [USER], "tools": TOOLS, "use_beam_search": True}),
        400,
        "tools.1.function.strict",
        "use_beam_search",
    )


async def test_null_in_place_of_arguments_is_refused_for_strict_functions_alone(connect, llm: FakeLLM) -> None:
    for strict, kind in ((True, "object"), (True, ["object"]), (False, ["object", "null"]), (None, ["null", "object"])):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": kind}, "strict": strict}}
        await ask(connect(**HERMES), tools=[tool])


async def test_strict_functions_of_responses_and_messages(connect, llm: FakeLLM) -> None:
    client = connect(**HERMES)
    function = {"type": "function", "name": "f", "strict": True}
    body = {"input": "Hi", "tools": [function]}
    assert (await client.post("/v1/responses", json=body)).status_code == 200
    tool = {"name": "f", "input_schema": {"type": "object"}, "strict": True}
    assert (await client.post("/v1/messages", json={"messages": [USER], "max_tokens": 9, "tools": [tool]})).status_code == 200
    assert [call.sampling.structured_outputs.grammar[:11] for call in llm.calls] == ["start: tail"] * 2
    given = {**body, "structured_outputs": {"grammar": 'start: "a"'}}
    check(await client.post("/v1/responses", json=given), 400, "tools.0.strict", "whole text")


async def test_refused_tools_of_prompts(client) -> None:
    body = {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]}
    check(await client.post("/tokenize", json=body), 400, "tools.0.function.parameters", "object")


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        ('{"a": "[TOOL_CALLS]nothing[ARGS]{}"}', None, 0),
        (' {"a": "[TOOL_CALLS]"} ', None, 0),
        ("[TOOL", None, 0),
        (" \n", None, 0),
        ("[1]", None, 0),
        ("[TOOL_CALLS]nothing[ARGS]{}", "", 1),
        ("\n[TOOL_CALLS]nothing[ARGS]{}[TOOL_CALLS]nothing[ARGS]{}", "", 2),
    ],
)
@pytest.mark.parametrize("thought", ["", "Hm [TOOL_CALLS]</think>"])
async def test_text_of_an_asked_form_has_no_calls_in_it(
    connect, llm: FakeLLM, reply: str, content: str | None, calls: int, thought: str
) -> None:
    """Such an answer is what was asked or calls; JSON may quote what looks like one."""
    thinking = {"reasoning_parser": "deepseek_r1"} if thought else {}
    client, llm.reply = connect(tool_call_parser="mistral", **thinking), thought + reply
    asked = {"tools": TOOLS, "response_format": {"type": "json_object"}, "max_tokens": 80}
    message = (await ask_both(client, **asked))["message"]
    assert len(message.get("tool_calls", [])) == calls
    kept = reply.lstrip() if thought else reply
    assert (message["content"] or "") == (kept if content is None else content)
    # Without a form of the text, calls may stand anywhere.
    del asked["response_format"]
    loose = [{"type": "function", "function": {"name": "nothing"}}]
    assert len((await ask_both(client, **{**asked, "tools": loose}))["message"].get("tool_calls", [])) == reply.count("nothing")


def test_unknown_parsers_are_named(llm: FakeLLM) -> None:
    with pytest.raises(ConfigError, match=r"tool_call_parser: must be one of hermes, .*not 'hermez'"):
        build_app(llm, ServerOptions(tool_call_parser="hermez"))
    with pytest.raises(ConfigError, match=r"reasoning_parser: must be one of deepseek_r1, .*not 'x'"):
        build_app(llm, ServerOptions(reasoning_parser="x"))


async def test_calls_that_a_client_sends_back_may_hold_what_it_read_in_them(connect, llm: FakeLLM) -> None:
    llm.max_model_len = llm.info.max_model_len = 1000
    function = called("f", '{"x": 1}')["function"]
    call = {"id": "a", "index": 0, "type": "function", "function": function | {"parsed_arguments": {"x": 1}}}
    history = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": "Rain."}]
    await ask(connect(), messages=history)
    assert llm.rendered[-1]["messages"][1:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "id": "a", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        history[-1],
    ]


async def test_openais_client_streams_calls_and_sends_them_back(llm: FakeLLM) -> None:
    llm.reply, llm.max_model_len = CALL, 1000
    async with (
        LiveServer(llm, ServerOptions(**HERMES)) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=10) as client,
    ):
        async with client.chat.completions.stream(model="fake-model", messages=[USER], tools=TOOLS) as stream:
            done = [each async for each in stream if each.type == "tool_calls.function.arguments.done"]
            message = (await stream.get_final_completion()).choices[0].message
        assert [(each.name, each.arguments) for each in done] == [("get_weather", '{"city": "Bodø"}')]
        (call,) = message.tool_calls
        answer = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
        await client.chat.completions.create(model="fake-model", messages=[USER, message, answer], tools=TOOLS, max_tokens=1)
    history = llm.rendered[-1]["messages"][1:]
    assert history[0]["tool_calls"] == [
        {"type": "function", "id": call.id, "function": {"name": "get_weather", "arguments": {"city": "Bodø"}}}
    ]
    assert history[1] == answer
