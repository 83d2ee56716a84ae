from __future__ import annotations

import httpx
import pytest
from error_shape import check


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Basic key-one", "key-one", "Bearer", "Bearer kéy", "Bearer key-one2"])
async def test_missing_or_wrong_key(connect, authorization: str | None) -> None:
    client = connect(api_key=("key-one", "key-two"))
    headers = {} if authorization is None else {"Authorization": authorization.encode()}
    paths = ["/v1/models", "/version", "/metrics", "/docs", "/openapi.json", "/nothing", "/health/", "//health", "/v1/completions"]
    for path in paths:
        reply = await client.get(path, headers=headers)
        error = check(reply, 401, None, "API key")
        assert error["type"] == "authentication_error"
        assert reply.headers["www-authenticate"] == "Bearer"
    assert (await client.get("/health", headers=headers)).status_code == 200


@pytest.mark.parametrize("authorization", ["Bearer key-one", "Bearer key-two", "bearer  key-one"])
async def test_every_key_opens(connect, authorization: str) -> None:
    client = connect(api_key=("key-one", "key-two"), headers={"Authorization": authorization})
    for path in ("/v1/models", "/metrics", "/docs", "/openapi.json"):
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("given", ["", "has space", "x" * 129, "tab\t"])
async def test_request_id_that_is_not_printable_or_too_long(client: httpx.AsyncClient, given: str) -> None:
    reply = await client.get("/version", headers={"X-Request-Id": given})
    check(reply, 400, "x-request-id", "X-Request-Id")
    assert reply.headers["x-request-id"] != given


async def test_request_id_comes_back_and_is_made_when_missing(client: httpx.AsyncClient) -> None:
    assert (await client.get("/nothing", headers={"X-Request-Id": "a/b=c"})).headers["x-request-id"] == "a/b=c"
    made = {(await client.get("/version")).headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
