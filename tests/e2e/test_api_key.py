"""`--api-key` guards everything but /health."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from serve_process import LiveServer

from octavo.server.run import is_loopback


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


@pytest.mark.parametrize(
    ("arguments", "warns"),
    [
        (("--host", "0.0.0.0"), True),
        (("--host", "0.0.0.0", "--api-key", "secret"), False),
        (("--host", "127.0.0.1"), False),
        (("--host", "localhost"), False),
    ],
)
def test_a_server_that_is_open_to_the_network_says_so(tiny_llama: Path, arguments: tuple[str, ...], warns: bool) -> None:
    with LiveServer(tiny_llama, "--kv-cache-memory", "64MiB", *arguments) as live:
        warning = f"octavo: anyone who reaches this machine at port {live.port} may use the server; --api-key KEY asks for a key"
        assert (warning in live.stderr.splitlines()) is warns
        assert ("anyone" in live.stderr) is warns


@pytest.mark.parametrize(
    ("address", "alone"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.5", False),
        ("fe80::1%eth0", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(address: str, alone: bool) -> None:
    class Listener:
        def getsockname(self) -> tuple[str, int]:
            return address, 80

    assert is_loopback(Listener()) is alone  # type: ignore[arg-type]
