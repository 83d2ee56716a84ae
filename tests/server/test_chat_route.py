from __future__ import annotations

import httpx
import pytest
from fake_llm import REPLY, FakeLLM
from test_completions_route import events

from octavo._version import __version__

USER = {"role": "user", "content": "Hi"}


async def chat(client: httpx.AsyncClient, **fields: object) -> dict:
    reply = await client.post("/v1/chat/completions", json={"model": "fake-model", "messages": [USER], **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def stream(client: httpx.AsyncClient, **fields: object) -> list[dict]:
    reply = await client.post("/v1/chat/completions", json={"messages": [USER], "stream": True, **fields})
    assert reply.status_code == 200, reply.text
    return events(reply.text)


async def test_shape_of_a_chat_completion(client: httpx.AsyncClient) -> None:
    reply = await chat(client)
    assert reply.pop("id").startswith("chatcmpl-")
    assert isinstance(reply.pop("created"), int)
    prompt, count = len("<user>Hi<assistant>"), len(REPLY.encode()) + 1
    assert reply == {
        "object": "chat.completion",
        "model": "fake-model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": REPLY, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": count,
            "total_tokens": prompt + count,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
        "system_fingerprint": f"octavo-{__version__}-reference",
    }


async def test_output_may_fill_the_rest_of_the_context(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.endless = True
    reply = await chat(client)
    assert reply["usage"]["total_tokens"] == llm.max_model_len
    assert reply["choices"][0]["finish_reason"] == "length"


async def test_the_models_own_limit_holds_by_default(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.default_sampling = {"max_tokens": 7}
    assert (await chat(client))["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [({"max_tokens": 3}, 3), ({"max_completion_tokens": 4}, 4), ({"max_tokens": 3, "max_completion_tokens": 4}, 4)],
)
async def test_limits_of_the_output(client: httpx.AsyncClient, fields: dict[str, int], tokens: int) -> None:
    assert (await chat(client, **fields))["usage"]["completion_tokens"] == tokens


async def test_messages_reach_the_template(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [], "annotations": []},
        {"role": "assistant", "content": "so", "reasoning": "ah"},
    ]
    await chat(client, messages=messages, add_generation_prompt=False, chat_template_kwargs={"enable_thinking": False})
    assert llm.rendered == [
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "one\ntwo", "name": "Ann"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}, "id": "c1"}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
                {"role": "assistant", "content": "ok", "reasoning_content": "hm"},
                {"role": "assistant", "content": "so", "reasoning": "ah", "reasoning_content": "ah"},
            ],
            "add_generation_prompt": False,
            "enable_thinking": False,
        }
    ]


async def test_developer_role_reaches_a_template_that_knows_it(connect, llm: FakeLLM) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, USER]
    await chat(connect(chat_template="{% if m.role == 'developer' %}{% endif %}"), messages=messages, max_tokens=1)
    llm.tokenizer.chat_template = "developer"
    await chat(connect(), messages=messages, max_tokens=1)
    await chat(connect(chat_template="{{ messages }}"), messages=messages, max_tokens=1)
    assert [call["messages"][0]["role"] for call in llm.rendered] == ["developer", "developer", "system"]


async def test_several_choices(client: httpx.AsyncClient) -> None:
    reply = await chat(client, n=3, temperature=1)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in reply["choices"]} == {REPLY}


async def test_logprobs(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.reply = "ö"
    content = (await chat(client, logprobs=True, top_logprobs=2))["choices"][0]["logprobs"]["content"]
    top = {"token": "!", "logprob": -0.1, "bytes": [33]}
    assert content[0] == {
        "token": "bytes:\\xc3",
        "logprob": -0.5,
        "bytes": [0xC3],
        "top_logprobs": [top, {"token": "bytes:\\xc3", "logprob": -0.5, "bytes": [0xC3]}],
    }
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xB6], list(b"<|end|>")]


async def test_logprobs_without_alternatives(client: httpx.AsyncClient) -> None:
    content = (await chat(client, logprobs=True, max_tokens=1))["choices"][0]["logprobs"]["content"]
    assert content == [{"token": "H", "logprob": -0.5, "bytes": [72], "top_logprobs": []}]
    assert (await chat(client, logprobs=False, top_logprobs=0))["choices"][0]["logprobs"] is None


async def test_stream_starts_with_the_role_and_ends_with_the_reason(client: httpx.AsyncClient) -> None:
    first, *middle, last = await stream(client)
    assert first.pop("id").startswith("chatcmpl-")
    assert isinstance(first.pop("created"), int)
    assert first == {
        "object": "chat.completion.chunk",
        "model": "fake-model",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}],
        "system_fingerprint": f"octavo-{__version__}-reference",
    }
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in middle) == REPLY
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None}]


async def test_stream_of_several_choices(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, n=2, temperature=1, stream_options={"include_usage": True})
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 2 * (len(REPLY.encode()) + 1)
    assert all(chunk["usage"] is None for chunk in chunks)
    roles = [chunk["choices"][0]["index"] for chunk in chunks if "role" in chunk["choices"][0]["delta"]]
    assert roles == [0, 1]
    for index in (0, 1):
        deltas = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in deltas) == REPLY
        assert deltas[-1]["finish_reason"] == "stop"


async def test_stream_continuous_usage(client: httpx.AsyncClient) -> None:
    *chunks, last = await stream(client, max_tokens=3, stream_options={"include_usage": True, "continuous_usage_stats": True})
    # The role comes with the first token, the end with the last.
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 1, 2, 3, 3]
    for chunk in (*chunks, last):
        usage = chunk["usage"]
        assert usage["prompt_tokens"] == len("<user>Hi<assistant>")
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)


async def test_stream_logprobs_cover_every_token(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.reply = "aö"
    chunks = await stream(client, logprobs=True, top_logprobs=1)
    entries = [entry for chunk in chunks if chunk["choices"][0]["logprobs"] for entry in chunk["choices"][0]["logprobs"]["content"]]
    assert [entry["bytes"] for entry in entries] == [[97], [0xC3], [0xB6], list(b"<|end|>")]


async def test_stop_string_is_named(client: httpx.AsyncClient) -> None:
    *_, last = await stream(client, stop=["ld"])
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["stop_reason"]) == ("stop", "ld")


async def test_role_of_answers_can_be_set(connect) -> None:
    client = connect(response_role="model")
    assert (await chat(client))["choices"][0]["message"]["role"] == "model"
    assert (await stream(client))[0]["choices"][0]["delta"]["role"] == "model"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "tool_choice": "none", "response_format": {"type": "text"}, "functions": [], "reasoning_effort": None},
        {"tools": [], "tool_choice": None, "parallel_tool_calls": True, "modalities": ["text"], "echo": False},
        {"user": "me", "metadata": {}, "store": False, "service_tier": "default", "prompt_cache_retention": "24h"},
        {"continue_final_message": False, "include_reasoning": True, "logit_bias": {}, "max_completion_tokens": None},
    ],
)
async def test_fields_that_ask_for_nothing_are_accepted(client: httpx.AsyncClient, fields: dict[str, object]) -> None:
    await chat(client, **fields)


@pytest.mark.parametrize("value", [True, False, None])
async def test_obfuscation_changes_no_text(client: httpx.AsyncClient, value: bool | None) -> None:
    chunks = await stream(client, stream_options={"include_obfuscation": value})
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == REPLY
    assert all(set(chunk["choices"][0]) <= {"index", "delta", "logprobs", "finish_reason", "stop_reason"} for chunk in chunks)
