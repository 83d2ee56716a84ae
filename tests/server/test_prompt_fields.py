"""What a reply says of its prompt, how prompts are cut, and under what ids."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_llm import FakeLLM
from sse import events

PROMPT = "né🙂"
IDS = list(PROMPT.encode())
USER = {"role": "user", "content": "hi"}


async def complete(client: httpx.AsyncClient, **fields: object) -> dict[str, Any]:
    reply = await client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 3, **fields})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def stream(client: httpx.AsyncClient, path: str = "/v1/completions", **fields: object) -> list[dict[str, Any]]:
    body = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [USER]}
    reply = await client.post(path, json={**body, "max_tokens": 3, "stream": True, **fields})
    assert reply.status_code == 200, reply.text
    return list(events(reply.text.splitlines()))


@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT], IDS, [IDS]])
async def test_echo_puts_the_prompt_before_the_text(client: httpx.AsyncClient, prompt: object) -> None:
    (choice,) = (await complete(client, prompt=prompt, echo=True))["choices"]
    assert choice["text"] == PROMPT + "Hel"
    assert choice["logprobs"] is None


async def test_echo_of_several_prompts_and_samples(client: httpx.AsyncClient) -> None:
    choices = (await complete(client, prompt=["a", "b"], n=2, echo=True, temperature=1))["choices"]
    assert [choice["text"] for choice in choices] == ["aHel", "aHel", "bHel", "bHel"]


async def test_echo_with_logprobs_begins_with_those_of_the_prompt(client: httpx.AsyncClient) -> None:
    (choice,) = (await complete(client, echo=True, logprobs=2))["choices"]
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"] == [None, *(-float(place) for place in range(1, 7)), -0.5, -0.5, -0.5]
    assert logprobs["tokens"][0] == "n"
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {"bytes:\\xc3": -1.0, "!": -0.1, "#": -0.2}
    # A character counts where its last byte comes.
    assert logprobs["text_offset"] == [0, 1, 1, 2, 2, 2, 2, 3, 4, 5]


@pytest.mark.parametrize("streams", [False, True])
async def test_no_output_at_all(client: httpx.AsyncClient, llm: FakeLLM, streams: bool) -> None:
    fields = {"echo": True, "max_tokens": 0, "logprobs": 0, "return_token_ids": True}
    if streams:
        *chunks, last = await stream(client, **fields, stream_options={"include_usage": True})
        choices, usage = [choice for chunk in chunks for choice in chunk["choices"]], last["usage"]
    else:
        reply = await complete(client, **fields)
        choices, usage = reply["choices"], reply["usage"]
    (choice,) = choices
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (PROMPT, "length", None)
    assert len(choice["logprobs"]["tokens"]) == len(IDS)
    assert choice["token_ids"] == []
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(IDS), 0)
    assert llm.calls[0].sampling.max_tokens == 1


async def test_half_a_character_that_nothing_follows(client: httpx.AsyncClient) -> None:
    (whole,) = (await complete(client, prompt=IDS[:-1], echo=True, max_tokens=0))["choices"]
    assert whole["text"] == "né"
    (goes_on,) = (await complete(client, prompt=IDS[:-1], echo=True))["choices"]
    assert goes_on["text"] == "néHel"


async def test_streamed_echo_comes_with_the_first_piece(client: httpx.AsyncClient) -> None:
    chunks = [chunk["choices"][0] for chunk in await stream(client, echo=True, logprobs=1)]
    (whole,) = (await complete(client, echo=True, logprobs=1))["choices"]
    assert chunks[0]["text"].startswith(PROMPT)
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    for name in ("text_offset", "tokens", "token_logprobs", "top_logprobs"):
        assert [entry for chunk in chunks for entry in chunk["logprobs"][name]] == whole["logprobs"][name]


async def test_prompt_logprobs_have_vllm_s_shape(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    (choice,) = (await complete(client, prompt="né", prompt_logprobs=1))["choices"]
    likely = {"33": {"logprob": -0.1, "rank": 1, "decoded_token": "!"}}
    assert choice["prompt_logprobs"] == [
        None,
        {"195": {"logprob": -1.0, "rank": 2, "decoded_token": r"bytes:\xc3"}, **likely},
        {"169": {"logprob": -2.0, "rank": 2, "decoded_token": r"bytes:\xa9"}, **likely},
    ]
    assert llm.calls[0].sampling.prompt_logprobs == 1
    reply = await client.post("/v1/chat/completions", json={"messages": [USER], "prompt_logprobs": 0})
    assert [list(entry) for entry in reply.json()["prompt_logprobs"][1:3]] == [["117"], ["115"]]


async def test_echo_and_prompt_logprobs_may_want_different_numbers(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    (choice,) = (await complete(client, echo=True, logprobs=0, prompt_logprobs=2))["choices"]
    assert llm.calls[0].sampling.prompt_logprobs == 2
    assert choice["logprobs"]["top_logprobs"][1] == {"bytes:\\xc3": -1.0}
    assert len(choice["prompt_logprobs"][1]) == 3


async def test_nothing_is_said_of_the_prompt_unless_asked(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    (choice,) = (await complete(client, logprobs=1, echo=False, prompt_logprobs=None))["choices"]
    assert set(choice) == {"index", "text", "logprobs", "finish_reason", "stop_reason"}
    assert llm.calls[0].sampling.prompt_logprobs is None


async def test_token_ids_of_a_completion(client: httpx.AsyncClient) -> None:
    (choice,) = (await complete(client, return_token_ids=True))["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (IDS, list(b"Hel"))
    chunks = [chunk["choices"][0] for chunk in await stream(client, return_token_ids=True)]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [IDS, None, None]
    assert [token for chunk in chunks for token in chunk["token_ids"]] == list(b"Hel")


async def test_token_ids_of_a_chat(client: httpx.AsyncClient) -> None:
    prompt = list(b"<user>hi<assistant>")
    reply = (await client.post("/v1/chat/completions", json={"messages": [USER], "max_tokens": 3, "return_token_ids": True})).json()
    assert (reply["prompt_token_ids"], reply["choices"][0]["token_ids"]) == (prompt, list(b"Hel"))
    chunks = await stream(client, "/v1/chat/completions", return_token_ids=True)
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [prompt, *[None] * (len(chunks) - 1)]
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == list(b"Hel")


async def test_tokens_as_their_ids(client: httpx.AsyncClient) -> None:
    fields = {"return_tokens_as_token_ids": True, "max_tokens": 1}
    (choice,) = (await complete(client, echo=True, logprobs=1, prompt="a", **fields))["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:97", "token_id:72"]
    assert choice["logprobs"]["top_logprobs"][1] == {"token_id:72": -0.5, "token_id:33": -0.1}
    body = {"messages": [USER], "logprobs": True, "top_logprobs": 1, **fields}
    (entry,) = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == ("token_id:72", [72])
    assert entry["top_logprobs"][0]["token"] == "token_id:33"


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 4}, b"6789"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, b"6789"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "right"}, b"0123"),
        ({"truncate_prompt_tokens": 10}, b"0123456789"),
        ({"truncate_prompt_tokens": 11}, b"0123456789"),
        # A context of 200 tokens, of which the output takes what it was promised.
        ({"truncate_prompt_tokens": -1}, b"0123456789"),
        ({"truncate_prompt_tokens": -1, "max_tokens": 195}, b"56789"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
async def test_truncated_prompts(client: httpx.AsyncClient, llm: FakeLLM, path: str, fields: dict[str, object], kept: bytes) -> None:
    llm.render_chat = lambda messages, **others: "0123456789"
    body = {"messages": [USER]} if path == "/v1/chat/completions" else {"prompt": "0123456789"}
    reply = await client.post(path, json={**body, **fields})
    assert reply.status_code == 200, reply.text
    assert bytes(llm.calls[0].prompt) == kept


async def test_a_prompt_far_too_long_fits_when_truncated(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    (choice,) = (await complete(client, prompt="x" * 500 + "end", truncate_prompt_tokens=-1, echo=True))["choices"]
    assert choice["text"] == "x" * 194 + "end" + "Hel"
    (choice,) = (await complete(client, prompt=[120] * 500, truncate_prompt_tokens=-1, max_tokens=None))["choices"]
    assert len(llm.calls[1].prompt) == 199


async def test_the_request_s_own_id(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await client.post("/v1/completions", json={"prompt": "a", "request_id": "mine"})
    assert (reply.json()["id"], reply.headers["x-request-id"]) == ("cmpl-mine", "mine")
    reply = await client.post("/v1/chat/completions", json={"messages": [USER], "request_id": "mine"})
    assert (reply.json()["id"], reply.headers["x-request-id"]) == ("chatcmpl-mine", "mine")
    # As in vLLM, the header counts before the field.
    reply = await client.post("/v1/completions", json={"prompt": "a", "request_id": "mine"}, headers={"X-Request-Id": "header"})
    assert (reply.json()["id"], reply.headers["x-request-id"]) == ("cmpl-header", "header")
    assert len({call.request_id for call in llm.calls}) == 3
