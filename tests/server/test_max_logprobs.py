"""The server's own limit on alternatives a token, which an option sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

Connect = Callable[..., httpx.AsyncClient]

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True}


async def ask(client: httpx.AsyncClient, field: str, count: int) -> httpx.Response:
    if field == "logprobs":
        return await client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2, "logprobs": count})
    return await client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2, "top_logprobs": count})


@pytest.mark.parametrize("field", ["logprobs", "top_logprobs"])
@pytest.mark.parametrize(("options", "limit"), [({}, 20), ({"max_logprobs": 3}, 3), ({"max_logprobs": 0}, 0)])
async def test_as_many_as_the_limit_and_no_more(connect: Connect, field: str, options: dict[str, Any], limit: int) -> None:
    client = connect(**options)
    assert (await ask(client, field, limit)).status_code == 200
    refused = await ask(client, field, limit + 1)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == f"{field}: may be at most {limit} on this server, not {limit + 1}."
    assert refused.json()["error"]["param"] == field
