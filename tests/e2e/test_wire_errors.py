"""Bad requests over the wire: a clear error for each, and the next request is answered."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import patient
from serve_process import LiveServer

CHAT, COMPLETION, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
LIMIT = 100_000
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[LiveServer]:
    with LiveServer(tiny_llama, "--served-model-name", "tiny", "--max-body-size", str(LIMIT)) as live:
        yield live
        assert live.stop() == 0
        assert "Traceback" not in live.stderr


def check(reply: httpx.Response, status: int, param: str | None, *words: str, code: str | None = None) -> None:
    """The reply is an error in OpenAI's shape that names its field and says these words."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert list(body) == ["error"]
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["type"] == {401: "authentication_error", 404: "not_found_error"}.get(status, "invalid_request_error")
    assert code is None or error["code"] == code
    for word in words:
        assert word in error["message"]
    assert "\n" not in error["message"]
    assert len(error["message"]) < 400


def check_still_serves(http: httpx.Client) -> None:
    reply = http.post(COMPLETION, json={"model": "tiny", "prompt": "The cat", "temperature": 0, "max_tokens": 3, "ignore_eos": True})
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["text"] == "mand:low"


FIELDS: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"temperature": -1}, "temperature", ["-1"]),
    ({"temperature": 2.5}, "temperature", ["2.5"]),
    ({"top_p": 0}, "top_p", ["0"]),
    ({"top_p": 2}, "top_p", ["2"]),
    ({"max_tokens": 0}, "max_tokens", ["0"]),
    ({"max_tokens": -3}, "max_tokens", ["-3"]),
    ({"max_tokens": 100_000}, "max_tokens", ["100000", "512"]),
    ({"min_p": 1.5}, "min_p", []),
    ({"top_k": -2}, "top_k", []),
    ({"presence_penalty": 3}, "presence_penalty", []),
    ({"repetition_penalty": 0}, "repetition_penalty", []),
    ({"n": 0}, "n", []),
    ({"n": 2, "temperature": 0}, "n", []),
    ({"seed": 1.5}, "seed", ["integer"]),
    ({"stop": [""]}, "stop.0", []),
    ({"stop": 7}, "stop", []),
    ({"stop_token_ids": [512]}, "stop_token_ids", ["512"]),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", ["9", "8"]),
    ({"min_tokens": 1, "stop_token_ids": list(range(512))}, "min_tokens", ["no token to choose"]),
    ({"temperature": "hot"}, "temperature", ["a number", "hot"]),
    ({"temperature": True}, "temperature", ["a number"]),
    ({"max_tokens": "10"}, "max_tokens", ["an integer"]),
    ({"max_tokens": 1.5}, "max_tokens", ["an integer"]),
    ({"stream": "yes"}, "stream", ["true or false"]),
    ({"stream_options": {"include_usage": True}}, "stream_options", ["stream"]),
    ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour", ["unknown"]),
    ({"temprature": 1}, "temprature", ["unknown field", "temperature"]),
    ({"whatever": None}, "whatever", ["unknown field"]),
    ({"thinking_token_budget": 5}, "thinking_token_budget", ["not supported"]),
    ({"repetition_detection": {"min_count": 2}}, "repetition_detection", ["not supported"]),
    ({"model": 5}, "model", ["a string"]),
]


NO_TOKEN = [
    ({"allowed_token_ids": [2], "structured_outputs": {"regex": "[a-z]+"}}, "structured_outputs and allowed_token_ids leave"),
    ({"bad_words": ["q"], "structured_outputs": {"choice": ["q"]}}, "structured_outputs and bad_words leave"),
    ({"allowed_token_ids": [2], "min_tokens": 1, "stop_token_ids": [2]}, "min_tokens leaves"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETION, CHAT])
@pytest.mark.parametrize(("fields", "words"), NO_TOKEN)
def test_fields_that_leave_no_token_are_the_fault_of_the_request(
    http: httpx.Client, path: str, fields: dict[str, Any], words: str, stream: bool
) -> None:
    body = {"model": "tiny", **({"messages": HELLO} if path == CHAT else {"prompt": "x"}), "stream": stream, **fields}
    reply = http.post(path, json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert f"{words} no token to choose" in error["message"]
    check_still_serves(http)


@pytest.mark.parametrize("path", [COMPLETION, CHAT])
@pytest.mark.parametrize(("fields", "param", "words"), FIELDS, ids=lambda value: json.dumps(value) if isinstance(value, dict) else "")
def test_fields(http: httpx.Client, path: str, fields: dict[str, Any], param: str, words: list[str]) -> None:
    body = {"model": "tiny", **({"messages": HELLO} if path == CHAT else {"prompt": "x"}), **fields}
    check(http.post(path, json=body), 400, param, param, *words)
    check_still_serves(http)


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        (COMPLETION, {}, "prompt", ["required"]),
        (COMPLETION, {"prompt": ""}, "prompt", ["empty"]),
        (COMPLETION, {"prompt": []}, "prompt", ["empty"]),
        (COMPLETION, {"prompt": ["x", ""]}, "prompt.1", ["empty"]),
        (COMPLETION, {"prompt": 5}, "prompt", []),
        (COMPLETION, {"prompt": [1, 512]}, "prompt.1", ["512"]),
        (COMPLETION, {"prompt": [-1]}, "prompt.0", ["-1"]),
        (COMPLETION, {"prompt": [[1], [2, 99_999]]}, "prompt.1.1", ["99999"]),
        (COMPLETION, {"prompt": [10**30]}, "prompt.0", []),
        (COMPLETION, {"prompt": [1, "x"]}, "prompt.1", []),
        (COMPLETION, {"prompt": [7] * 600}, "prompt", ["600", "512"]),
        (COMPLETION, {"prompt": [7] * 512}, "prompt", ["512"]),
        (COMPLETION, {"prompt": "x " * 4000}, "prompt", ["512"]),
        (COMPLETION, {"prompt": "x", "messages": HELLO}, "messages", []),
        (COMPLETION, {"prompt": "x", "logprobs": 21}, "logprobs", ["20", "21"]),
        (COMPLETION, {"prompt": "x", "suffix": "y"}, "suffix", ["not supported"]),
        (CHAT, {}, "messages", ["required"]),
        (CHAT, {"messages": []}, "messages", []),
        (CHAT, {"messages": "Hello"}, "messages", ["a list"]),
        (CHAT, {"messages": [{"role": "user", "content": "x " * 4000}]}, "messages", ["512"]),
        (CHAT, {"messages": [{"content": "x"}]}, "messages.0.role", []),
        (CHAT, {"messages": [*HELLO, {"role": "wizard", "content": "x"}]}, "messages.1.role", ["wizard"]),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content", []),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type", ["image_url"]),
        (CHAT, {"messages": HELLO, "tools": [{"type": "function"}]}, "tools.0.function", ["required"]),
        (CHAT, {"messages": HELLO, "top_logprobs": 2}, "top_logprobs", ["logprobs"]),
        (CHAT, {"messages": HELLO, "prompt": "x"}, "prompt", []),
        (TOKENIZE, {}, "prompt", []),
        (TOKENIZE, {"prompt": 5}, "prompt", ["a string"]),
        (DETOKENIZE, {"tokens": [512]}, "tokens.0", ["512"]),
        (DETOKENIZE, {}, "tokens", ["required"]),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_prompts_and_messages(http: httpx.Client, path: str, fields: dict[str, Any], param: str, words: list[str]) -> None:
    check(http.post(path, json={"model": "tiny", **fields}), 400, param, *words)
    check_still_serves(http)


def test_a_prompt_longer_than_the_context_says_both_lengths(http: httpx.Client) -> None:
    text = "The cat " * 300
    count = http.post(TOKENIZE, json={"prompt": text}).json()["count"]
    assert count > 512
    reply = http.post(COMPLETION, json={"prompt": text})
    check(reply, 400, "prompt", f"{count} tokens", "512 tokens", code="context_length_exceeded")
    check_still_serves(http)


@pytest.mark.parametrize("path", [COMPLETION, CHAT, TOKENIZE, DETOKENIZE])
def test_an_unknown_model(http: httpx.Client, path: str) -> None:
    fields = {COMPLETION: {"prompt": "x"}, CHAT: {"messages": HELLO}, TOKENIZE: {"prompt": "x"}, DETOKENIZE: {"tokens": [1]}}[path]
    check(http.post(path, json={"model": "gpt-9", **fields}), 404, "model", "'gpt-9'", "tiny", code="model_not_found")
    check_still_serves(http)


GOOD = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
NESTED = b'{"prompt": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"
OBJECTS = b'{"a": ' * 10_000 + b"1" + b"}" * 10_000


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ["empty"]),
        (b"   ", ["empty"]),
        (b'{"prompt": "x"', ["JSON"]),
        (b'{"prompt": "x",}', ["JSON"]),
        (b"{'prompt': 'x'}", ["JSON"]),
        (b'{"prompt": NaN}', ["JSON"]),
        (b"prompt=x", ["JSON"]),
        (GOOD + b"x", ["JSON"]),
        (b'{"prompt": "\xff\xfe"}', ["JSON", "UTF-8"]),
        (b'{"prompt": "\xc3"}', ["JSON", "UTF-8"]),
        (b'{"prompt": "\\ud800"}', ["JSON"]),
        (b"[1, 2]", ["object", "list"]),
        (b'"text"', ["object", "string"]),
        (b"null", ["object", "null"]),
        (b"12", ["object", "number"]),
        (NESTED, ["nested"]),
        (OBJECTS, ["nested"]),
        (b"[" * 10_000, []),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else "",
)
@pytest.mark.parametrize("path", [COMPLETION, CHAT])
def test_malformed_bodies(http: httpx.Client, path: str, body: bytes, words: list[str]) -> None:
    check(http.post(path, content=body, headers={"Content-Type": "application/json"}), 400, None, *words)
    check_still_serves(http)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", None])
def test_a_wrong_content_type(http: httpx.Client, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    check(http.post(COMPLETION, content=GOOD, headers=headers), 400, "content-type", "application/json")
    check_still_serves(http)


@pytest.mark.parametrize("charset", ["application/json; charset=utf-8", "Application/JSON"])
def test_content_types_that_are_fine(http: httpx.Client, charset: str) -> None:
    assert http.post(COMPLETION, content=GOOD, headers={"Content-Type": charset}).status_code == 200


@pytest.mark.parametrize("size", [LIMIT + 1, 5_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit(http: httpx.Client, size: int, chunked: bool) -> None:
    body = b'{"prompt": "' + b"x" * (size - 14) + b'"}'
    content: Any = (body[at : at + 65536] for at in range(0, size, 65536)) if chunked else body
    reply = http.post(COMPLETION, content=content, headers={"Content-Type": "application/json"})
    check(reply, 413, None, str(LIMIT))
    assert reply.elapsed.total_seconds() < patient(1.5)
    check_still_serves(http)


def test_a_length_over_the_limit_is_refused_before_the_body_comes(server: LiveServer, http: httpx.Client) -> None:
    head = f"POST {COMPLETION} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 999999999999\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413 ")
    check_still_serves(http)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"\x00" * 100,
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    ],
)
def test_bytes_that_are_no_http(server: LiveServer, http: httpx.Client, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(data)
        reply = connection.recv(1 << 16)
        assert reply == b"" or reply.startswith(b"HTTP/1.1 400 ")
    check_still_serves(http)


def test_a_client_that_leaves_in_the_midst_of_its_body(server: LiveServer, http: httpx.Client) -> None:
    head = f'POST {COMPLETION} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"prompt": "'
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(head.encode())
    check_still_serves(http)


def test_other_paths_and_methods(http: httpx.Client) -> None:
    check(http.get("/nothing"), 404, None, "/nothing")
    reply = http.get(COMPLETION)
    check(reply, 405, None, "GET")
    assert reply.headers["allow"] == "POST"
    check(http.get("/v1/models/other"), 404, "model", "'other'")
    check_still_serves(http)


def test_errors_before_a_stream_have_a_status(http: httpx.Client) -> None:
    check(http.post(COMPLETION, json={"prompt": [7] * 600, "stream": True}), 400, "prompt", "600")
    check(http.post(CHAT, json={"messages": HELLO, "stream": True, "temperature": -1}), 400, "temperature", "-1")
    check_still_serves(http)


def test_fields_of_openai_that_cannot_change_the_text(http: httpx.Client) -> None:
    extra = {"user": "me", "metadata": {"a": "b"}, "service_tier": "auto", "store": False, "safety_identifier": "x", "logit_bias": None}
    reply = http.post(CHAT, json={"model": "tiny", "messages": HELLO, "max_tokens": 2, **extra})
    assert reply.status_code == 200, reply.text


def test_all_at_once(http: httpx.Client) -> None:
    """Errors beside good requests harm nobody."""

    def one(index: int) -> int:
        return http.post(COMPLETION, json={"prompt": "x", "max_tokens": 5, "temperature": -1 if index % 2 else 0}).status_code

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(64))) == [200, 400] * 32
    check_still_serves(http)
