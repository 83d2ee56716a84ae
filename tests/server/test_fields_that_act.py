"""A field that could not act on this server is refused by name, and so is a parameter of the URL that nobody knows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_llm import FakeLLM

from octavo.server.app import _routes
from octavo.server.item_schemas import INPUT_SCHEMA, MESSAGE_SCHEMA, TURN_SCHEMA
from octavo.text.tokenizer import tokenizer_from_folder

USER = {"role": "user", "content": "Hi"}
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if thinks is defined %}{{ thinks }}{% endif %}"
NAMED = "{% for m in messages %}{{ m.name if m.role == 'user' and 'name' in m }}: {{ m.content }}\n{% endfor %}{{ tools }}{{ documents }}"
OPERATIONS = [operation for operation, _, _ in _routes()]


def refused(reply: httpx.Response, param: str, *words: str) -> None:
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error.get("param", param) == param
    assert error["message"].startswith(f"{param}:")
    for word in words:
        assert word in error["message"]


def write_by(llm: FakeLLM, template: str, fixtures_dir: Path) -> None:
    """Has the fake write conversations out as AsyncLLM does."""
    llm.tokenizer.chat_template = template
    real = tokenizer_from_folder(fixtures_dir / "tiny-llama")

    def render(messages: list[dict[str, Any]], **kwargs: Any) -> str:
        llm.rendered.append({"text": real.render_chat(messages, **{"chat_template": template, **kwargs})})
        return str(llm.rendered[-1]["text"])

    llm.render_chat = render  # type: ignore[method-assign]


@pytest.fixture
def plain(llm: FakeLLM, fixtures_dir: Path) -> None:
    write_by(llm, PLAIN, fixtures_dir)


@pytest.fixture
def named(llm: FakeLLM, fixtures_dir: Path) -> None:
    write_by(llm, NAMED, fixtures_dir)


CHATS = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [USER], "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": [USER]},
    "/tokenize": {"messages": [USER]},
}


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("path", CHATS)
async def test_a_variable_that_the_template_does_not_read(client: httpx.AsyncClient, llm: FakeLLM, path: str) -> None:
    ask = partial(client.post, path)
    refused(await ask(json={**CHATS[path], "chat_template_kwargs": {"think": 1}}), "chat_template_kwargs.think", "did you mean thinks?")
    refused(await ask(json={**CHATS[path], "chat_template_kwargs": {"x": 1}}), "chat_template_kwargs.x", "change nothing")
    assert not llm.rendered
    for value in ("loudly", None):
        assert (await ask(json={**CHATS[path], "chat_template_kwargs": {"thinks": value}})).status_code == 200
    assert [rendered["text"] for rendered in llm.rendered] == ["user: Hi\nloudly", "user: Hi\nNone"]


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("field", ["documents", "tools"])
async def test_what_the_template_has_no_place_for(client: httpx.AsyncClient, field: str) -> None:
    value = [{"text": "a"}] if field == "documents" else [{"type": "function", "function": {"name": "f"}}]
    refused(await client.post("/tokenize", json={"messages": [USER], field: value}), field, "no place")


@pytest.mark.usefixtures("plain")
async def test_a_name_is_a_label_where_the_template_does_not_read_it(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    for message in (USER, {**USER, "name": "Ann"}):
        assert (await client.post("/v1/chat/completions", json={"messages": [message]})).status_code == 200
    first, second = llm.rendered
    assert first == second


@pytest.mark.usefixtures("named")
async def test_a_name_that_the_template_reads(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    reply = await client.post("/v1/chat/completions", json={"messages": [{**USER, "name": "Ann"}, USER]})
    assert reply.status_code == 200
    assert llm.rendered[-1]["text"].startswith("Ann: Hi\n: Hi\n")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_thinking_can_be_left_out_only_where_it_is_told_apart(connect, llm: FakeLLM, path: str) -> None:
    body = {**CHATS[path], "include_reasoning": False}
    refused(await connect().post(path, json=body), "include_reasoning", "--reasoning-parser")
    assert not llm.calls
    assert (await connect(reasoning_parser="qwen3").post(path, json=body)).status_code == 200


async def test_an_echo_of_a_message_of_another_role(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    refused(await client.post("/v1/chat/completions", json={"messages": [USER], "echo": True}), "echo", "user", "assistant")
    assert not llm.calls


@pytest.mark.parametrize(("path", "field"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")])
async def test_no_special_tokens_are_added_to_token_ids(client: httpx.AsyncClient, llm: FakeLLM, path: str, field: str) -> None:
    for ids in ([1, 2], [[1, 2], [3]]):
        refused(await client.post(path, json={field: ids, "add_special_tokens": True}), "add_special_tokens", "token ids")
    assert not llm.calls
    assert (await client.post(path, json={field: [1, 2], "add_special_tokens": False})).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/responses", {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}]}, "input.0.summary"),
        (
            "/v1/messages",
            {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "citations": [{"url": "b"}]}]}]},
            "messages.0.content.0.citations",
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 1,
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}, "caller": {"type": "code_execution"}}],
                    }
                ],
            },
            "messages.0.content.0.caller",
        ),
    ],
)
async def test_parts_that_say_what_is_not_understood(client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str) -> None:
    refused(await client.post(path, json=body), param)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.path)
async def test_parameters_of_the_url(client: httpx.AsyncClient, llm: FakeLLM, operation: Any) -> None:
    async def send(name: str, value: str) -> httpx.Response:
        path = operation.path.replace("{model_id}", "fake-model")
        return await client.request(operation.method, f"{path}?{name}={value}", **({"json": {}} if operation.method == "post" else {}))

    reply = await send("streams", "1")
    if operation.path in ("/health", "/metrics", "/v1/responses/{response_id}"):
        assert reply.status_code == (404 if "responses" in operation.path else 200)
        return
    assert reply.status_code == 400
    assert "streams: unknown query parameter" in reply.text
    known = (*operation.flags, *operation.ignored)
    for name in known:
        assert f"{name}s: unknown query parameter; did you mean {name}?" in (await send(f"{name}s", "1")).text
        reply = await send(name, "true")
        assert "query parameter" not in reply.text
        assert operation.method == "post" or reply.status_code == 200
    assert not operation.path.startswith("/v1/") or known == ("api-version", "beta", "client_version")
    assert not llm.calls
    assert not llm.saves


def _blocks(kind: dict[str, Any]) -> dict[str, Any]:
    """The properties of the items of the list that a value may be."""
    return dict(next(each["items"]["properties"] for each in kind["anyOf"] if each.get("type") == "array"))


CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FUNCTION = MESSAGE_SCHEMA["properties"]["tool_calls"]["items"]["properties"]["function"]["properties"]
ITEM = {"type": "message", "role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("path", "fields", "base", "wrap"),
    [
        ("/tokenize", MESSAGE_SCHEMA["properties"], USER, lambda item: {"messages": [item]}),
        (
            "/tokenize",
            FUNCTION,
            CALLED["function"],
            lambda item: {"messages": [{"role": "assistant", "tool_calls": [{**CALLED, "function": item}]}]},
        ),
        (
            "/v1/messages/count_tokens",
            TURN_SCHEMA["properties"],
            {"role": "user", "content": "a"},
            lambda item: {"messages": [item]},
        ),
        ("/v1/responses", _blocks(INPUT_SCHEMA), ITEM, lambda item: {"input": [item]}),
    ],
    ids=["message", "function", "turn", "item"],
)
async def test_the_document_names_every_field_of_a_conversation(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any], base: dict[str, Any], wrap: Any
) -> None:
    """A field that it does not name is unknown; one that it names is known to some kind of item."""
    reply = await client.post(path, json=wrap({**base, "zzz": False}))
    assert reply.status_code == 400
    assert "zzz: unknown field" in reply.text
    kinds = (
        [base] if path != "/v1/responses" else [ITEM, *({"type": kind} for kind in ("function_call", "function_call_output", "reasoning"))]
    )
    for name in fields:
        replies = [await client.post(path, json=wrap({**kind, **({} if name in kind else {name: False})})) for kind in kinds]
        assert any("unknown field" not in reply.text for reply in replies), name
