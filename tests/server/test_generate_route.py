from __future__ import annotations

import itertools
import json

import httpx
import pytest
from fake_llm import REPLY, FakeLLM

from octavo.protocol.beam_search import BeamSearchParams


async def test_the_prompt_and_what_follows_it(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await client.post(
        "/generate", json={"prompt": "Say: ", "max_tokens": 100, "temperature": 0.5, "top_k": 7, "n": 2, "stream": False}
    )
    assert reply.json() == {"text": [f"Say: {REPLY}", f"Say: {REPLY}"]}
    sampling = llm.calls[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.n, sampling.max_tokens) == (0.5, 7, 2, 100)


async def test_default_is_sixteen_tokens_or_what_fits(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    await client.post("/generate", json={"prompt": "Hi"})
    await client.post("/generate", json={"prompt": "x" * 195})
    assert [call.sampling.max_tokens for call in llm.calls] == [16, 5]


async def test_a_stream_is_lines_of_all_the_text_so_far(client: httpx.AsyncClient) -> None:
    reply = await client.post("/generate", json={"prompt": "Hi ", "max_tokens": 100, "stream": True})
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    texts = [json.loads(line)["text"] for line in reply.text.splitlines()]
    assert all(after[0].startswith(before[0]) for before, after in itertools.pairwise(texts))
    assert len(texts) > 10
    assert texts[-1] == [f"Hi {REPLY}"]


async def test_an_error_on_the_way_is_the_last_line(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.fail_after = 3
    reply = await client.post("/generate", json={"prompt": "Hi", "stream": True})
    assert "not finite" in json.loads(reply.text.splitlines()[-1])["error"]["message"]


async def test_beams(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await client.post("/generate", json={"prompt": "Hi", "use_beam_search": True, "n": 3, "max_tokens": 40})
    assert len(reply.json()["text"]) == 3
    assert isinstance(llm.calls[0].sampling, BeamSearchParams)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "x" * 200}, "prompt"),
        ({"prompt": "a", "max_tokens": 200}, "max_tokens"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "logprobs": 1}, "logprobs"),
        ({"prompt": "a", "temprature": 1}, "temprature"),
        ({"prompt": "a", "stream_options": {"include_usage": True}, "stream": True}, "stream_options"),
        ({"prompt": "a", "length_penalty": 2}, "length_penalty"),
        ({"prompt": "a", "model": "other"}, "model"),
    ],
)
async def test_bad_bodies(client: httpx.AsyncClient, fields: dict, param: str) -> None:
    reply = await client.post("/generate", json=fields)
    assert reply.status_code == (404 if param == "model" else 400)
    assert reply.json()["error"]["param"] == param
    if param == "temprature":
        assert reply.json()["error"]["message"] == "temprature: unknown field; did you mean temperature?"


async def test_messages_in_place_of_a_prompt(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100, "temperature": 0.8}
    reply = (await client.post("/v1/completions", json=body)).json()
    assert (reply["object"], reply["choices"][0]["text"]) == ("text_completion", REPLY)
    assert llm.calls[0].prompt == list(b"<user>Hi<assistant>")
    streamed = await client.post("/v1/completions", json={**body, "stream": True})
    assert '"text_completion"' in streamed.text
