from __future__ import annotations

import json

import httpx
import pytest
from fake_llm import REPLY, FakeLLM

from octavo._version import __version__


def events(text: str) -> list[object]:
    """The server-sent events of a body; the last must be [DONE]."""
    lines = text.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def complete(client: httpx.AsyncClient, **fields: object) -> dict:
    reply = await client.post("/v1/completions", json={"model": "fake-model", "prompt": "Hi", **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def stream(client: httpx.AsyncClient, **fields: object) -> list[dict]:
    reply = await client.post("/v1/completions", json={"prompt": "Hi", "stream": True, **fields})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return events(reply.text)


async def test_shape_of_a_completion(client: httpx.AsyncClient) -> None:
    reply = await complete(client, max_tokens=100)
    assert reply.pop("id").startswith("cmpl-")
    assert isinstance(reply.pop("created"), int)
    count = len(REPLY.encode()) + 1
    assert reply == {
        "object": "text_completion",
        "model": "fake-model",
        "choices": [{"index": 0, "text": REPLY, "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": count,
            "total_tokens": count + 2,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
        "system_fingerprint": f"octavo-{__version__}-reference",
    }


async def test_default_is_sixteen_tokens(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await complete(client)
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 16
    assert llm.calls[0].sampling.max_tokens == 16


async def test_default_length_never_makes_a_fitting_prompt_too_long(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    await complete(client, prompt="x" * 195)
    assert llm.calls[0].sampling.max_tokens == 5


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi", [[72, 105]]),
        (["Hi", "!"], [[72, 105], [33]]),
        ([72, 105], [[72, 105]]),
        ([[72, 105], [33]], [[72, 105], [33]]),
    ],
)
async def test_forms_of_a_prompt(client: httpx.AsyncClient, llm: FakeLLM, prompt: object, expected: list[list[int]]) -> None:
    reply = await complete(client, prompt=prompt)
    assert [call.prompt for call in llm.calls] == expected
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(expected)))
    assert reply["usage"]["prompt_tokens"] == sum(map(len, expected))


async def test_choices_are_prompt_by_prompt(client: httpx.AsyncClient) -> None:
    reply = await complete(client, prompt=["a", "b", "c"], n=2, temperature=1, max_tokens=3)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3, 4, 5]
    assert reply["usage"]["prompt_tokens"] == 3
    assert reply["usage"]["completion_tokens"] == 18


async def test_sampling_fields_reach_the_model(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "seed": 7,
        "stop": ["##", "$$"],
        "stop_token_ids": [1, 2],
        "min_tokens": 2,
        "max_tokens": 9,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "n": 2,
    }
    await complete(client, **fields)
    sampling = llm.calls[0].sampling
    assert {name: getattr(sampling, name) for name in fields} == fields


async def test_request_wins_over_the_models_defaults_and_these_over_ours(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.default_sampling = {"temperature": 0.6, "top_k": 40, "top_p": 0.5}
    await complete(client, top_p=0.7, top_k=None)
    sampling = llm.calls[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.6, 40, 0.7, 0.0)


async def test_a_single_stop_string(client: httpx.AsyncClient) -> None:
    choice = (await complete(client, stop="l"))["choices"][0]
    assert choice["text"] == "He"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "l")


async def test_logprobs_in_the_legacy_shape(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.reply = "aö"
    logprobs = (await complete(client, logprobs=2))["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xb6", "<|end|>"],
        "token_logprobs": [-0.5] * 4,
        "text_offset": [0, 1, 1, 2],
        "top_logprobs": [{token: -0.5, "!": -0.1, '"': -2.0} for token in ["a", "bytes:\\xc3", "bytes:\\xb6", "<|end|>"]],
    }


async def test_zero_logprobs_give_the_sampled_token_alone(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.reply = "a"
    logprobs = (await complete(client, logprobs=0))["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"a": -0.5}, {"<|end|>": -0.5}]


async def test_an_impossible_token_has_a_finite_logprob(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.logprob_floor = float("-inf")
    logprobs = (await complete(client, logprobs=1, max_tokens=1))["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-9999.0]


async def test_stream_carries_the_same_text(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, max_tokens=100)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == REPLY
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


async def test_stream_leaves_out_chunks_that_say_nothing(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.reply = "ö"
    chunks = await stream(client)
    assert [(chunk["choices"][0]["text"], chunk["choices"][0]["finish_reason"]) for chunk in chunks] == [("ö", None), ("", "stop")]


async def test_stream_of_several_prompts_and_samples(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, prompt=["a", "b"], n=2, temperature=1, max_tokens=100)
    texts = ["", "", "", ""]
    ends = [0, 0, 0, 0]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        ends[choice["index"]] += choice["finish_reason"] is not None
    assert texts == [REPLY] * 4
    assert ends == [1] * 4


async def test_stream_usage(client: httpx.AsyncClient) -> None:
    *chunks, last = await stream(client, max_tokens=3, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    assert last["usage"]["total_tokens"] == 5


async def test_stream_continuous_usage(client: httpx.AsyncClient) -> None:
    *chunks, last = await stream(client, max_tokens=3, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3]
    assert last["usage"]["completion_tokens"] == 3


async def test_stream_logprobs_have_running_offsets(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.reply = "aöb"
    whole = (await complete(client, logprobs=1))["choices"][0]["logprobs"]
    joined = {name: [] for name in whole}
    for chunk in await stream(client, logprobs=1):
        for name, values in chunk["choices"][0]["logprobs"].items():
            joined[name] += values
    assert joined == whole


async def test_model_may_be_left_out(connect, llm: FakeLLM) -> None:
    client = connect(served_model_name=("small", "alias"))
    reply = await client.post("/v1/completions", json={"prompt": "Hi"})
    assert reply.json()["model"] == "small"
    reply = await client.post("/v1/completions", json={"prompt": "Hi", "model": "alias"})
    assert reply.json()["model"] == "alias"


@pytest.mark.parametrize(
    "fields",
    [
        {"echo": False, "best_of": 1, "suffix": None, "logit_bias": {}, "use_beam_search": False, "length_penalty": 1},
        {"use_beam_search": None, "early_stopping": False, "best_of": 2, "n": 2, "temperature": 1, "stream": False},
        {"best_of": 2, "n": 2, "temperature": 1, "logit_bias": None, "prompt_logprobs": None, "response_format": {"type": "text"}},
        {"user": "me", "metadata": {"a": "b"}, "service_tier": "auto", "store": True, "safety_identifier": "x", "prompt_cache_key": "k"},
        {"stop": None, "max_tokens": None, "n": None, "stream": None, "seed": None, "stream_options": None, "logprobs": None},
        {"stop": [], "stop_token_ids": [], "priority": 0, "stream_interval": 1},
    ],
)
async def test_fields_that_cannot_change_the_text_are_accepted(client: httpx.AsyncClient, fields: dict[str, object]) -> None:
    await complete(client, **fields)


async def test_the_engine_s_ids_are_unique_even_if_a_client_repeats_its_own(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    replies = [await client.post("/v1/completions", json={"prompt": ["a", "b"]}, headers={"X-Request-Id": "mine"}) for _ in range(2)]
    assert [reply.headers["x-request-id"] for reply in replies] == ["mine", "mine"]
    ids = [reply.json()["id"] for reply in replies]
    assert ids == ["cmpl-mine", "cmpl-mine"]
    assert len({call.request_id for call in llm.calls}) == 4
