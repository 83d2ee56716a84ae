"""`--api-key` guards everything but /health."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from serve_process import LiveServer


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[LiveServer]:
    with LiveServer(tiny_llama, "--api-key", "secret", "--api-key", "other") as live:
        yield live
        assert live.stop() == 0


PATHS = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/x"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/version"),
    ("GET", "/metrics"),
    ("GET", "/docs"),
    ("GET", "/redoc"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing"),
    ("POST", "/health/../v1/completions"),
    ("GET", "//health"),
    ("GET", "/health/"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_without_the_key(http: httpx.Client, method: str, path: str) -> None:
    check(http.request(method, path, json={"prompt": "x"}))
    check(http.request(method, path, json={"prompt": "x"}, headers={"Authorization": "Bearer wrong"}))


@pytest.mark.parametrize(
    "header", ["Bearer secre", "Bearer secret2", "Bearer Secret", "Bearer secret,other", "Basic secret", "secret", "Bearer", ""]
)
def test_what_is_no_key(http: httpx.Client, header: str) -> None:
    check(http.get("/v1/models", headers={"Authorization": header}))


def check(reply: httpx.Response) -> None:
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    error = reply.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("authentication_error", None, "invalid_api_key")
    assert "secret" not in error["message"]


def test_health_needs_no_key(http: httpx.Client) -> None:
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("key", ["secret", "other"])
def test_with_a_key(http: httpx.Client, key: str) -> None:
    http.headers["Authorization"] = f"Bearer {key}"
    assert http.get("/v1/models").status_code == 200
    assert http.get("/metrics").status_code == 200
    assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_the_openai_package(server: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
        assert client.models.list().data
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
