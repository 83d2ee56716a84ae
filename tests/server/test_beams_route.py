"""Beam search and best_of over HTTP: what is asked of the model, and what of its results is returned."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_llm import REPLY, FakeLLM

from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.outputs import CompletionOutput, RequestOutput
from octavo.protocol.sampling import SamplingParams
from octavo.server.best_of import best

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SIZE = len(REPLY.encode()) + 1


def body(path: str, **fields: object) -> dict[str, Any]:
    start: dict[str, Any] = {"prompt": "Hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "Hi"}]}
    return start | fields


async def post(client: httpx.AsyncClient, path: str, **fields: object) -> dict[str, Any]:
    reply = await client.post(path, json=body(path, **fields))
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def texts(reply: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(reply["choices"])))
    return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in reply["choices"]]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_n_is_the_number_of_beams(client: httpx.AsyncClient, llm: FakeLLM, path: str) -> None:
    reply = await post(client, path, use_beam_search=True, n=3, max_tokens=100)
    assert texts(reply) == [REPLY, REPLY[:-1], REPLY[:-2]]
    assert {choice["finish_reason"] for choice in reply["choices"]} == {"stop"}
    assert reply["usage"]["completion_tokens"] == 3 * SIZE - 3
    assert llm.calls[0].sampling == BeamSearchParams(3, 100)
    assert llm.calls[0].closed


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_every_field_reaches_the_search(client: httpx.AsyncClient, llm: FakeLLM, path: str) -> None:
    llm.default_sampling = {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.2}
    fields = {"length_penalty": -0.5, "early_stopping": "never", "ignore_eos": True, "include_stop_str_in_output": True}
    allowed = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "stop": [], "seed": 5, "min_tokens": 0, "repetition_penalty": 1}
    await post(client, path, use_beam_search=True, max_tokens=7, skip_special_tokens=False, cache_salt="s", priority=2, **fields, **allowed)
    (call,) = llm.calls
    assert call.sampling == BeamSearchParams(1, 7, True, 0.0, -0.5, True, False, "never")
    assert (call.cache_salt, call.priority) == ("s", 2)


async def test_lengths_that_are_not_given(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    await post(client, COMPLETIONS, use_beam_search=True)
    await post(client, CHAT, use_beam_search=True)
    assert [call.sampling.max_tokens for call in llm.calls] == [16, llm.max_model_len - len(llm.calls[1].prompt)]


async def test_beams_of_several_prompts(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await post(client, COMPLETIONS, prompt=["a", "b"], use_beam_search=True, n=2, max_tokens=60)
    assert texts(reply) == [REPLY, REPLY[:-1]] * 2
    assert [bytes(call.prompt) for call in llm.calls] == [b"a", b"b"]


async def test_best_of_beams_returns_the_first(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await post(client, COMPLETIONS, use_beam_search=True, n=2, best_of=4, max_tokens=100)
    assert texts(reply) == [REPLY, REPLY[:-1]]
    assert reply["usage"]["completion_tokens"] == 4 * SIZE - 6
    assert llm.calls[0].sampling == BeamSearchParams(4, 100)


@pytest.mark.parametrize("count", [None, 0, 2])
async def test_logprobs_of_beams(client: httpx.AsyncClient, count: int | None) -> None:
    reply = await post(client, COMPLETIONS, use_beam_search=True, n=2, max_tokens=5, logprobs=count)
    for choice in reply["choices"]:
        if count is None:
            assert choice["logprobs"] is None
        else:
            assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [1 + count] * 5
    chat = await post(client, CHAT, use_beam_search=True, n=2, max_tokens=5, logprobs=count is not None, top_logprobs=count)
    for choice in chat["choices"]:
        assert (choice["logprobs"] is None) == (count is None)


async def test_best_of_returns_the_highest_mean_logprobs(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    """Each sample's tokens cost alike, so that the mean is what one costs."""
    llm.logprob_steps = (-0.3, -0.1, 0.0, -0.2)
    llm.reply = "abc"
    reply = await post(client, COMPLETIONS, n=2, best_of=4, temperature=1, max_tokens=9)
    (call,) = llm.calls
    assert isinstance(call.sampling, SamplingParams)
    assert (call.sampling.n, call.sampling.logprobs) == (4, 0)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert [choice["logprobs"] for choice in reply["choices"]] == [None, None]
    assert reply["usage"]["completion_tokens"] == 4 * 4


def test_best_of_ranks_by_token_and_not_by_sum() -> None:
    def made(index: int, tokens: int, total: float) -> CompletionOutput:
        return CompletionOutput(index, f"{index}", [0] * tokens, cumulative_logprob=total, logprobs=[])

    outputs = [made(2, 1, -1.0), made(0, 10, -5.0), made(3, 4, -float("inf")), made(1, 2, -1.0)]
    ranked = best(RequestOutput("r", None, [1], outputs, True), 3)
    # Means of −0.5 and −0.5, of which the lower index comes first, then −1.
    assert [choice.text for choice in ranked] == ["0", "1", "2"]
    assert [choice.index for choice in ranked] == [0, 1, 2]
    with pytest.raises(ValueError, match="without logprobs"):
        best(RequestOutput("r", None, [1], [CompletionOutput(0, "", []), CompletionOutput(1, "", [])], True), 1)


async def test_best_of_with_logprobs_and_several_prompts(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.logprob_steps = (-0.3, -0.1, 0.0)
    reply = await post(client, COMPLETIONS, prompt=["a", "b"], best_of=3, temperature=1, max_tokens=4, logprobs=2)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    for choice in reply["choices"]:
        assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [3] * 4
        assert choice["logprobs"]["token_logprobs"] == [llm.logprob_floor] * 4
    assert reply["usage"]["completion_tokens"] == 2 * 3 * 4
    reply = await post(client, COMPLETIONS, n=2, best_of=3, temperature=1, max_tokens=4, logprobs=0)
    told = [choice["logprobs"]["token_logprobs"][0] for choice in reply["choices"]]
    assert told == [llm.logprob_floor, llm.logprob_floor - 0.1]


async def test_best_of_as_many_as_are_returned_may_be_streamed(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await client.post(COMPLETIONS, json=body(COMPLETIONS, n=2, best_of=2, temperature=1, stream=True))
    assert reply.status_code == 200
    assert llm.calls[0].sampling.logprobs is None
