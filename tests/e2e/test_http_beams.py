"""Beam search and best_of over HTTP, from a live server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from octavo import LLM, BeamSearchParams, SamplingParams


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), quiet=True) as made:
        yield made


def test_beams_are_those_of_the_library(http: httpx.Client, llm: LLM) -> None:
    fields: dict[str, Any] = {"max_tokens": 10, "length_penalty": 0.5, "early_stopping": True}
    reply = http.post("/v1/completions", json={"prompt": "The cat", "use_beam_search": True, "n": 4, "logprobs": 0, **fields}).json()
    (found,) = llm.beam_search("The cat", BeamSearchParams(4, **fields))
    prompt = llm.get_tokenizer().encode("The cat")
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    for choice, sequence in zip(reply["choices"], found.sequences, strict=True):
        generated = sequence.tokens[len(prompt) :]
        told = [position[token].logprob for token, position in zip(generated, sequence.logprobs, strict=True)]
        assert choice["logprobs"]["token_logprobs"] == told
        assert choice["finish_reason"] == sequence.finish_reason
    assert reply["usage"]["completion_tokens"] == sum(len(sequence.tokens) - len(prompt) for sequence in found.sequences)
    assert reply["usage"]["prompt_tokens"] == len(prompt)


def test_beams_of_a_chat_with_the_openai_client(client: openai.OpenAI, llm: LLM) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    reply = client.chat.completions.create(
        model="tiny", messages=messages, n=3, max_completion_tokens=8, extra_body={"use_beam_search": True, "early_stopping": "never"}
    )
    prompt = llm.chat(messages, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)[0].prompt_token_ids
    (found,) = llm.beam_search(prompt, BeamSearchParams(3, 8, early_stopping="never"))
    start = len(llm.get_tokenizer().decode(prompt, True))
    assert [choice.message.content for choice in reply.choices] == [(sequence.text or "")[start:] for sequence in found.sequences]


def test_what_the_engine_refuses_names_the_field(http: httpx.Client) -> None:
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        reply = http.post(path, json={**body, "use_beam_search": True, "n": 65})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "n"
        assert "beam_width 65" in reply.json()["error"]["message"]


def test_best_of(http: httpx.Client, llm: LLM) -> None:
    body = {"prompt": "The cat", "n": 2, "best_of": 6, "seed": 7, "temperature": 1.0, "max_tokens": 9, "ignore_eos": True}
    reply = http.post("/v1/completions", json=body).json()
    params = SamplingParams(n=6, seed=7, temperature=1.0, max_tokens=9, ignore_eos=True, logprobs=0)
    outputs = llm.generate("The cat", params, use_tqdm=False)[0].outputs
    outputs.sort(key=lambda output: -(output.cumulative_logprob or 0.0) / len(output.token_ids))
    assert [choice["text"] for choice in reply["choices"]] == [output.text for output in outputs[:2]]
    assert reply["usage"]["completion_tokens"] == 6 * 9
    assert all(choice["logprobs"] is None for choice in reply["choices"])
