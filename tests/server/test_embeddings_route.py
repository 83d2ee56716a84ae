from __future__ import annotations

import asyncio
import base64

import httpx
import numpy as np
import pytest
from fake_llm import FakeLLM

from octavo.protocol.errors import OctavoError
from octavo.protocol.pooling import PoolingParams

PATH = "/v1/embeddings"


async def test_shape_of_an_answer(client: httpx.AsyncClient) -> None:
    reply = (await client.post(PATH, json={"model": "fake-model", "input": "Hi", "user": "me"})).json()
    assert reply.pop("id").startswith("embd-")
    assert isinstance(reply.pop("created"), int)
    assert reply == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [2.0, 105.0, 1.0]}],
        "model": "fake-model",
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["Hi", "!"], [[2, 105, 1], [1, 33, 1]]),
        ([72, 105], [[2, 105, 1]]),
        ([[72], [105, 33]], [[1, 72, 1], [2, 33, 1]]),
    ],
)
async def test_forms_of_an_input(client: httpx.AsyncClient, value: object, expected: list[list[float]]) -> None:
    reply = (await client.post(PATH, json={"input": value, "dimensions": 3})).json()
    assert [(entry["index"], entry["embedding"]) for entry in reply["data"]] == list(enumerate(expected))
    assert reply["usage"]["prompt_tokens"] == sum(int(vector[0]) for vector in expected)


async def test_base64_is_the_same_in_little_endian_float32(client: httpx.AsyncClient) -> None:
    reply = (await client.post(PATH, json={"input": "Hi", "encoding_format": "base64"})).json()
    assert np.frombuffer(base64.b64decode(reply["data"][0]["embedding"]), "<f4").tolist() == [2, 105, 1]


async def test_fields_reach_the_engine(connect, llm: FakeLLM) -> None:
    client = connect(pooling="mean")
    for fields in ({}, {"pooling": "last"}, {"normalize": False, "priority": 3}):
        assert (await client.post(PATH, json={"input": "Hi", **fields})).status_code == 200
    assert [call.sampling for call in llm.calls] == [PoolingParams("mean"), PoolingParams("last"), PoolingParams("mean", normalize=False)]
    assert [call.priority for call in llm.calls] == [0, 0, 3]
    llm.tokenizer.start = 1
    await client.post(PATH, json={"input": "Hi"})
    await client.post(PATH, json={"input": "Hi", "add_special_tokens": False})
    assert [call.prompt for call in llm.calls[3:]] == [[1, 72, 105], [72, 105]]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "input", "required"),
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "empty"),
        ({"input": ["a", ""]}, "input.1", "empty"),
        ({"input": 3}, "input", "string"),
        ({"input": [1, 257]}, "input.1", "vocabulary"),
        ({"input": "x" * 201}, "input", "has 201 tokens, but the model's context is 200"),
        ({"input": "a", "dimensions": 2}, "dimensions", "have 3"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "hex"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"input": "a", "pooling": "max"}, "pooling", "max"),
        ({"input": "a", "normalise": True}, "normalise", "did you mean normalize"),
        ({"input": "a", "temperature": 1}, "temperature", "unknown field"),
        ({"input": "a", "model": "other"}, "model", "not served"),
    ],
)
async def test_bad_bodies(client: httpx.AsyncClient, fields: dict, param: str, words: str) -> None:
    reply = await client.post(PATH, json=fields)
    assert reply.status_code == (404 if param == "model" else 400)
    assert reply.json()["error"]["param"] == param
    assert words in reply.json()["error"]["message"]


async def test_an_input_as_long_as_the_context(client: httpx.AsyncClient) -> None:
    assert (await client.post(PATH, json={"input": "x" * 200})).status_code == 200


@pytest.mark.parametrize(("count", "kept"), [(3, 3), (-1, 200), (250, None)])
async def test_the_last_tokens_are_kept(client: httpx.AsyncClient, llm: FakeLLM, count: int, kept: int | None) -> None:
    reply = await client.post(PATH, json={"input": "x" * 300 + "yz", "truncate_prompt_tokens": count})
    if kept is None:
        assert reply.json()["error"]["message"] == "input: has 250 tokens, but the model's context is 200."
    else:
        assert llm.calls[0].prompt == list((b"x" * 300 + b"yz")[-kept:])


async def test_one_failure_ends_all(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.fail_after, llm.failure = 0, OctavoError("generation failed: its numbers are broken")
    reply = await client.post(PATH, json={"input": ["a", "b", "c"]})
    assert reply.status_code == 500
    assert "its numbers are broken" in reply.json()["error"]["message"]
    assert all(call.closed for call in llm.calls)


async def test_a_full_queue_and_a_deadline(connect, llm: FakeLLM, until) -> None:
    llm.info.max_num_seqs = 2
    client = connect(max_queued_requests=1)
    llm.hold.clear()
    first = asyncio.create_task(client.post(PATH, json={"input": ["a", "b", "c"]}))
    await until(lambda: len(llm.calls) == 3)
    reply = await client.post(PATH, json={"input": "b"})
    assert reply.status_code == 503
    assert "queue is full" in reply.json()["error"]["message"]
    llm.hold.set()
    assert (await first).status_code == 200
    llm.hold.clear()
    assert (await client.post(PATH, json={"input": "b", "timeout": 0.01})).status_code == 408
    assert all(call.closed for call in llm.calls)


async def test_a_dead_engine(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.die()
    assert (await client.post(PATH, json={"input": "a"})).status_code == 503
