"""64 requests at once over HTTP give the same bits as in process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from serve_process import LiveServer
from sse import events
from workload import greedy, prompts, seeded

from octavo import LLM, RequestOutput, SamplingParams

FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("seed", "max_tokens", "min_tokens", "ignore_eos", "logprobs"),
)
# Text, tokens, their logprobs (JSON carries a float64 exactly), and how it ended.
Answer = tuple[str, list[str], list[float], list[dict[str, float]], str | None]


def body(prompt: list[int], params: SamplingParams) -> dict[str, Any]:
    return {"prompt": prompt, **{name: getattr(params, name) for name in FIELDS}}


def in_process(output: RequestOutput) -> Answer:
    """The answer as the legacy shape of logprobs has it: of two tokens that read alike, the likelier one stands."""
    (sample,) = output.outputs
    assert sample.logprobs is not None
    texts, values, tops = [], [], []
    for token, position in zip(sample.token_ids, sample.logprobs, strict=True):
        texts.append(position[token].decoded_token or "")
        values.append(position[token].logprob)
        top: dict[str, float] = {}
        for entry in position.values():
            text = entry.decoded_token or ""
            top[text] = max(entry.logprob, top.get(text, entry.logprob))
        tops.append(top)
    return sample.text, texts, values, tops, sample.finish_reason


def over_http(choices: list[dict[str, Any]]) -> Answer:
    """The answer that one choice, whole or in pieces, adds up to."""
    texts, values, tops = [], [], []
    for choice in choices:
        logprobs = choice["logprobs"] or {"tokens": [], "token_logprobs": [], "top_logprobs": []}
        texts += logprobs["tokens"]
        values += logprobs["token_logprobs"]
        tops += logprobs["top_logprobs"]
    return "".join(choice["text"] for choice in choices), texts, values, tops, choices[-1]["finish_reason"]


async def ask(client: httpx.AsyncClient, request: dict[str, Any], *, stream: bool) -> Answer:
    if not stream:
        reply = await client.post("/v1/completions", json=request)
        assert reply.status_code == 200, reply.text
        return over_http(reply.json()["choices"])
    async with client.stream("POST", "/v1/completions", json={**request, "stream": True}) as reply:
        lines = [line async for line in reply.aiter_lines()]
    return over_http([event["choices"][0] for event in events(lines)])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("make", [greedy, seeded])
async def test_64_at_once_as_in_process(
    server: LiveServer, llm_answers: Callable[[Any], list[Answer]], make: Callable[[], list[SamplingParams]], stream: bool
) -> None:
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, verify=False, limits=limits) as client, asyncio.timeout(120):
        requests = [body(prompt, params) for prompt, params in zip(prompts(), make(), strict=True)]
        answers = await asyncio.gather(*(ask(client, request, stream=stream) for request in requests))
    assert answers == llm_answers(make)


@pytest.fixture(scope="module")
def llm_answers(tiny_llama: Any) -> Callable[[Any], list[Answer]]:
    known: dict[Any, list[Answer]] = {}

    def answers(make: Callable[[], list[SamplingParams]]) -> list[Answer]:
        if make not in known:
            with LLM(str(tiny_llama), quiet=True) as llm:
                known[make] = [in_process(output) for output in llm.generate(prompts(), make(), use_tqdm=False)]
        return known[make]

    return answers


async def test_32_streams_at_once_as_32_in_turn(server: LiveServer) -> None:
    requests = [
        {"messages": [{"role": "user", "content": f"Question {index}"}], "seed": index, "max_tokens": 20 + index, "ignore_eos": True}
        for index in range(32)
    ]

    async def streamed(client: httpx.AsyncClient, request: dict[str, Any]) -> str:
        async with client.stream("POST", "/v1/chat/completions", json={**request, "stream": True}) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            lines = [line async for line in reply.aiter_lines()]
        return "".join(event["choices"][0]["delta"].get("content", "") for event in events(lines))

    async with httpx.AsyncClient(base_url=server.url, timeout=120, verify=False) as client, asyncio.timeout(120):
        together = await asyncio.gather(*(streamed(client, request) for request in requests))
        in_turn = [(await client.post("/v1/chat/completions", json=request)).json()["choices"][0] for request in requests]
    assert together == [choice["message"]["content"] for choice in in_turn]
    assert len(set(together)) == 32
