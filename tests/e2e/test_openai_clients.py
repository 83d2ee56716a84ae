"""The openai package, sync and async, against a live server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from serve_process import LiveServer

from octavo import LLM, SamplingParams

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
# Fields that OpenAI's client does not know go into extra_body.
IGNORE_EOS = {"ignore_eos": True}


@pytest.fixture(scope="module")
def expected(tiny_llama: Path) -> dict[str, str]:
    """What the model says in process, greedy, 12 tokens."""
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(str(tiny_llama), quiet=True) as llm:
        return {
            "completion": llm.generate("The cat", params, use_tqdm=False)[0].outputs[0].text,
            "chat": llm.chat(MESSAGES, params, use_tqdm=False)[0].outputs[0].text,
        }


@pytest.fixture
def completion() -> dict[str, Any]:
    return {"model": "tiny", "prompt": "The cat", "temperature": 0, "max_tokens": 12, "extra_body": IGNORE_EOS}


@pytest.fixture
def chat() -> dict[str, Any]:
    return {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 12, "extra_body": IGNORE_EOS}


def test_models(client: openai.OpenAI, tiny_llama: Path) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "octavo")
    assert client.models.retrieve("tiny") == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_completion(client: openai.OpenAI, completion: dict[str, Any], expected: dict[str, str]) -> None:
    reply = client.completions.create(**completion)
    assert reply.object == "text_completion"
    assert reply.id.startswith("cmpl-")
    assert reply.model == "tiny"
    (choice,) = reply.choices
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, expected["completion"], "length", None)
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (3, 12, 15)


def test_streamed_completion(client: openai.OpenAI, completion: dict[str, Any], expected: dict[str, str]) -> None:
    chunks = list(client.completions.create(**completion, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected["completion"]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.usage for chunk in chunks} == {None}
    # A dozen tokens may be ready before the first is sent; hundreds can't be.
    assert len(list(client.completions.create(**{**completion, "max_tokens": 400}, stream=True))) > 1


def test_chat(client: openai.OpenAI, chat: dict[str, Any], expected: dict[str, str]) -> None:
    reply = client.chat.completions.create(**chat)
    assert reply.object == "chat.completion"
    assert reply.id.startswith("chatcmpl-")
    (choice,) = reply.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert (choice.message.role, choice.message.content) == ("assistant", expected["chat"])
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 12


def test_streamed_chat(client: openai.OpenAI, chat: dict[str, Any], expected: dict[str, str]) -> None:
    chunks = list(client.chat.completions.create(**chat, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected["chat"]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_streaming_helper(client: openai.OpenAI, chat: dict[str, Any], expected: dict[str, str]) -> None:
    # The helper takes an answer that was cut at its length for an error.
    with client.chat.completions.stream(**chat, stop="``") as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == expected["chat"].partition("``")[0] != ""


@pytest.mark.parametrize("endpoint", ["completions", "chat.completions"])
def test_usage_of_streams(client: openai.OpenAI, completion: dict[str, Any], chat: dict[str, Any], endpoint: str) -> None:
    create, arguments = (client.completions.create, completion) if endpoint == "completions" else (client.chat.completions.create, chat)
    *chunks, last = list(create(**arguments, stream=True, stream_options={"include_usage": True}))
    assert {chunk.usage for chunk in chunks} == {None}
    assert last.choices == []
    assert last.usage is not None
    assert last.usage == create(**arguments).usage
    assert last.usage.completion_tokens == 12


def test_completion_logprobs(client: openai.OpenAI, completion: dict[str, Any]) -> None:
    logprobs = client.completions.create(**completion, logprobs=3).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens
    assert logprobs.tokens[:3] == ["mand", ":", "low"]
    assert logprobs.text_offset
    assert logprobs.text_offset[:4] == [0, 4, 5, 8]
    assert logprobs.top_logprobs
    assert logprobs.token_logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 12
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert len(top) in (3, 2)  # two ids may read alike
        assert max(top.values()) == value == top[token]


def test_chat_logprobs(client: openai.OpenAI, chat: dict[str, Any], expected: dict[str, str]) -> None:
    whole = client.chat.completions.create(**chat, logprobs=True, top_logprobs=4).choices[0].logprobs
    assert whole is not None
    assert whole.content
    assert len(whole.content) == 12
    for entry in whole.content:
        assert len(entry.top_logprobs) == 4
        assert entry.top_logprobs[0].logprob == entry.logprob
        assert entry.top_logprobs[0].bytes == entry.bytes
    # Special tokens are listed, but not part of the text.
    data = b"".join(bytes(entry.bytes or []) for entry in whole.content if entry.token != "<|endoftext|>")
    assert data.decode("utf-8", "replace") == expected["chat"]
    streamed = [
        entry
        for chunk in client.chat.completions.create(**chat, logprobs=True, top_logprobs=4, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == whole.content


def test_stop(client: openai.OpenAI, completion: dict[str, Any]) -> None:
    choice = client.completions.create(**completion, stop=["d:low", "never"]).choices[0]
    assert (choice.text, choice.finish_reason, choice.model_extra) == ("man", "stop", {"stop_reason": "d:low"})
    chunks = list(client.completions.create(**completion, stop="d:low", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "man"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_stop_token_ids(client: openai.OpenAI, completion: dict[str, Any]) -> None:
    completion["extra_body"] = {"stop_token_ids": [428]}
    choice = client.completions.create(**completion).choices[0]
    assert (choice.text, choice.finish_reason, choice.model_extra) == ("mand:", "stop", {"stop_reason": 428})


def test_seed(client: openai.OpenAI, completion: dict[str, Any]) -> None:
    completion["temperature"] = 1
    texts = [client.completions.create(**completion, seed=seed).choices[0].text for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]
    unseeded = {client.completions.create(**completion).choices[0].text for _ in range(3)}
    assert len(unseeded) == 3


def test_several_prompts_and_samples(client: openai.OpenAI, completion: dict[str, Any]) -> None:
    completion |= {"prompt": ["The cat", "Hello"], "temperature": 1, "n": 2, "seed": 3}
    reply = client.completions.create(**completion)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    pieces = ["", "", "", ""]
    for chunk in client.completions.create(**completion, stream=True):
        pieces[chunk.choices[0].index] += chunk.choices[0].text
    assert pieces == [choice.text for choice in reply.choices]
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 48


def test_token_ids_as_prompt(client: openai.OpenAI, completion: dict[str, Any], expected: dict[str, str], server: LiveServer) -> None:
    ids = client.post("/../tokenize", body={"prompt": "The cat"}, cast_to=dict[str, Any])["tokens"]
    completion["prompt"] = ids
    assert client.completions.create(**completion).choices[0].text == expected["completion"]
    completion["prompt"] = [ids, ids]
    assert [choice.text for choice in client.completions.create(**completion).choices] == [expected["completion"]] * 2


def test_errors_are_the_clients_own(client: openai.OpenAI, completion: dict[str, Any], chat: dict[str, Any]) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(**{**completion, "model": "other"})
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        client.chat.completions.create(**{**chat, "temperature": -1})
    assert bad.value.param == "temperature"
    assert client.completions.create(**completion).choices[0].text


async def test_async_clients(server: LiveServer, completion: dict[str, Any], chat: dict[str, Any], expected: dict[str, str]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        reply, answer = await asyncio.gather(client.completions.create(**completion), client.chat.completions.create(**chat))
        assert reply.choices[0].text == expected["completion"]
        assert answer.choices[0].message.content == expected["chat"]

        async def streamed_completion() -> str:
            return "".join([chunk.choices[0].text async for chunk in await client.completions.create(**completion, stream=True)])

        async def streamed_chat() -> str:
            stream = await client.chat.completions.create(**chat, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        texts = await asyncio.gather(*(streamed() for streamed in (streamed_completion, streamed_chat) for _ in range(16)))
        assert texts == [expected["completion"]] * 16 + [expected["chat"]] * 16
