"""Whatever JSON arrives, the reply is an answer or a 4xx in the one error shape, never a failure of the server."""

from __future__ import annotations

import asyncio
import json

import httpx
from fake_llm import FakeLLM
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config.server import ServerOptions
from octavo.server.anthropic_fields import MessagesRequest
from octavo.server.app import build_app
from octavo.server.requests import ChatRequest, CompletionRequest, DetokenizeRequest, GenerateRequest, TokenizeRequest
from octavo.server.responses_fields import ResponsesRequest

PATHS = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/generate": GenerateRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
WORDS = ["", "a", "Hi", "user", "assistant", "tool", "system", "text", "fake-model", "auto", "json_object", "image_url", "\ufeff", "🙂"]
KEYS = ["role", "content", "type", "text", "name", "include_usage", "tool_calls", "function", "arguments", "include_obfuscation", "x"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.integers(-(2**70), 2**70),
    st.floats(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(WORDS),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)), max_leaves=8
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
        optional={"content": st.one_of(st.just("Hi"), VALUES), "name": VALUES, "tool_calls": VALUES},
    ),
    max_size=3,
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict]:
    """A path, and a body that is sound but for up to four fields."""
    path = draw(st.sampled_from(list(PATHS)))
    kind = PATHS[path]
    body: dict = {
        "/v1/completions": {"prompt": "Hi"},
        "/generate": {"prompt": "Hi"},
        "/tokenize": {"prompt": "Hi"},
        "/detokenize": {"tokens": [1]},
    }.get(path, {})
    if path in ("/v1/chat/completions", "/v1/messages"):
        body = {"messages": draw(MESSAGES), **({"max_tokens": 9} if path == "/v1/messages" else {})}
    if path == "/v1/responses":
        body = {"input": draw(st.one_of(st.just("Hi"), MESSAGES, VALUES))}
    names = [*kind.__struct_fields__, *kind.off_values, "unknown"]
    return path, body | draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=4))


@given(requests())
@settings(max_examples=400)
def test_any_body_gets_an_answer_or_a_named_refusal(request: tuple[str, dict]) -> None:
    path, body = request

    async def send() -> httpx.Response:
        app = build_app(FakeLLM(reply="ok"), ServerOptions())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://octavo") as client:
            return await client.post(path, json=body)

    reply = asyncio.run(send())
    assert reply.status_code in (200, 400, 404), reply.text
    if path == "/v1/messages" and reply.status_code != 200:
        assert set(reply.json()) == {"type", "error"}
    elif reply.status_code != 200:
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        assert reply.json()["error"]["param"]
    elif path == "/generate":
        assert all("text" in json.loads(line) for line in reply.text.splitlines())
    elif path in ("/v1/responses", "/v1/messages") and body.get("stream"):
        last = json.loads(reply.text.rstrip().rpartition("data: ")[2])
        assert last["type"] in ("response.completed", "response.incomplete", "message_stop")
    elif body.get("stream"):
        assert reply.text.endswith("data: [DONE]\n\n")
        assert "error" not in reply.text
    else:
        assert reply.headers["content-type"] == "application/json"
