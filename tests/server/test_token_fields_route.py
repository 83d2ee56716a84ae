"""`logit_bias`, `allowed_token_ids` and `bad_words` over HTTP: what reaches the engine, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_llm import FakeLLM

ROUTES = {"/v1/completions": {"prompt": "Hi"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]}}


@pytest.mark.parametrize("route", ROUTES)
async def test_what_reaches_the_engine(client: httpx.AsyncClient, llm: FakeLLM, route: str) -> None:
    fields = {"logit_bias": {"7": 1.5, "12": -200}, "allowed_token_ids": [3, 4], "bad_words": ["no"]}
    reply = await client.post(route, json={**ROUTES[route], **fields})
    assert reply.status_code == 200, reply.text
    sampling = llm.calls[0].sampling
    assert sampling.logit_bias == {7: 1.5, 12: -100.0}
    assert (sampling.allowed_token_ids, sampling.bad_words) == ([3, 4], ["no"])


@pytest.mark.parametrize("route", ROUTES)
async def test_what_asks_for_nothing_changes_nothing(client: httpx.AsyncClient, llm: FakeLLM, route: str) -> None:
    reply = await client.post(route, json={**ROUTES[route], "logit_bias": {}, "allowed_token_ids": None, "bad_words": []})
    assert reply.status_code == 200, reply.text
    assert not llm.calls[0].sampling.logit_bias
    assert llm.calls[0].sampling.allowed_token_ids is None


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"logit_bias": {"a": 1}}, "logit_bias", "must be token ids, like \"50256\", not 'a'"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "not '-1'"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "must be token ids"),
        ({"logit_bias": {"1": "x"}}, "logit_bias", "number"),
        ({"logit_bias": {"5": 100, "05": -100}}, "logit_bias", "names token 5 twice"),
        ({"logit_bias": {"257": 1}}, "logit_bias", "holds 257, but the vocabulary has 257 tokens"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias", "1024"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "length"),
        ({"allowed_token_ids": [257]}, "allowed_token_ids", "holds 257"),
        ({"bad_words": [""]}, "bad_words.0", "length"),
        ({"bad_words": "no"}, "bad_words", "list"),
        ({"bad_words": ["x" * 1001]}, "bad_words.0", "1000"),
        ({"bad_words": ["x"] * 1025}, "bad_words", "1024"),
        ({"bad_words": ["x" * 1000] * 66}, "bad_words", "together may have at most 65536 characters, got 66000"),
        ({"logit_bias": {"1": 1}, "use_beam_search": True, "n": 2}, "logit_bias", "use_beam_search"),
        ({"allowed_token_ids": [1], "use_beam_search": True, "n": 2}, "allowed_token_ids", "use_beam_search"),
        ({"bad_words": ["a"], "use_beam_search": True, "n": 2}, "bad_words", "use_beam_search"),
    ],
)
async def test_what_is_refused_by_name(
    client: httpx.AsyncClient, llm: FakeLLM, route: str, fields: dict[str, Any], param: str, text: str
) -> None:
    reply = await client.post(route, json={**ROUTES[route], **fields})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param
    assert text in error["message"]
    assert not llm.calls
