from __future__ import annotations

import asyncio
import json
import logging

import httpx
import pytest
from error_shape import check
from fake_llm import FakeLLM

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(autouse=True)
async def next_request_works(client: httpx.AsyncClient):
    """Whatever a test did to the server, it answers the next request."""
    yield
    if client.context.llm.is_alive:
        reply = await client.post(COMPLETIONS, json={"prompt": "Hi", "max_tokens": 1})
        assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": -1}, "temperature", ["-1", "0"]),
        ({"temperature": 2.5}, "temperature", ["2.5"]),
        ({"temperature": "1"}, "temperature", ["number", '"1"']),
        ({"temperature": True}, "temperature", ["number", "true"]),
        ({"top_p": 0}, "top_p", ["0"]),
        ({"top_p": 2}, "top_p", ["2"]),
        ({"top_k": -2}, "top_k", ["-2"]),
        ({"min_p": 1.5}, "min_p", ["1.5"]),
        ({"presence_penalty": 3}, "presence_penalty", []),
        ({"frequency_penalty": -3}, "frequency_penalty", []),
        ({"repetition_penalty": 0}, "repetition_penalty", []),
        ({"repetition_penalty": 1e-40}, "repetition_penalty", []),
        ({"repetition_penalty": 1e39}, "repetition_penalty", []),
        ({"max_tokens": 0}, "max_tokens", ["0"]),
        ({"max_tokens": -1}, "max_tokens", ["-1"]),
        ({"max_tokens": "1"}, "max_tokens", ["integer", '"1"']),
        ({"max_tokens": 1.5}, "max_tokens", ["integer", "1.5"]),
        ({"max_tokens": 10**30}, "max_tokens", []),
        ({"max_tokens": 10000}, "max_tokens", ["10000", "200"]),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", []),
        ({"n": 0}, "n", []),
        ({"n": 129}, "n", ["129"]),
        ({"n": 2, "temperature": 0}, "n", []),
        ({"seed": 10**30}, "seed", []),
        ({"seed": "x"}, "seed", []),
        ({"stop": ""}, "stop", []),
        ({"stop": ["a", ""]}, "stop.1", []),
        ({"stop": ["a", 1]}, "stop.1", ["string", "1"]),
        ({"stop": ["a"] * 65}, "stop", ["65"]),
        ({"stop_token_ids": [1, 257]}, "stop_token_ids", ["257"]),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0", []),
        ({"stream": "yes"}, "stream", []),
        ({"stream_options": {"include_usage": True}}, "stream_options", ["stream"]),
        ({"stream": True, "stream_options": {"includ": True}}, "stream_options.includ", []),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", []),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats", []),
        ({"stream": True, "stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation", ["true or false"]),
        ({"user": 1}, "user", []),
        ({"metadata": {"a": 1}}, "metadata", ["each value"]),
        ({"service_tier": "gold"}, "service_tier", ["gold"]),
        ({"temprature": 1}, "temprature", ["temperature"]),
        ({"no_such_thing": 1}, "no_such_thing", ["unknown"]),
        ({"thinking_token_budget": 5}, "thinking_token_budget", ["not supported"]),
        ({"use_beam_search": 1}, "use_beam_search", ["true or false"]),
        ({"use_beam_search": True, "stream": True}, "stream", ["streamed"]),
        ({"use_beam_search": True, "n": 0}, "n", []),
        ({"use_beam_search": True, "n": 2.5}, "n", ["integer"]),
        ({"use_beam_search": True, "n": 129}, "n", ["129"]),
        ({"use_beam_search": True, "n": 9}, "n", ["beam_width 9 is too much"]),
        ({"use_beam_search": True, "length_penalty": 11}, "length_penalty", ["10"]),
        ({"use_beam_search": True, "length_penalty": "1"}, "length_penalty", ["number"]),
        ({"use_beam_search": True, "early_stopping": "always"}, "early_stopping", ['may be true or false or "never"']),
        ({"use_beam_search": True, "early_stopping": 1}, "early_stopping", []),
        ({"length_penalty": 0.5}, "length_penalty", ["use_beam_search"]),
        ({"early_stopping": True}, "early_stopping", ["use_beam_search"]),
        ({"early_stopping": "never", "use_beam_search": False}, "early_stopping", ["use_beam_search"]),
        *(
            ({"use_beam_search": True, name: value}, name, ["has no meaning with use_beam_search", "leave it out, or give "])
            for name, value in (
                *(("temperature", 0.7), ("top_p", 0.9), ("top_k", 5), ("min_p", 0.1), ("presence_penalty", 1), ("frequency_penalty", 1)),
                *(("repetition_penalty", 1.1), ("stop", "x"), ("stop", ["x"]), ("stop_token_ids", [3]), ("min_tokens", 1)),
                ("spaces_between_special_tokens", False),
            )
        ),
        ({"guided_json": {}}, "guided_json", ["not supported"]),
        ({"repetition_detection": {"min_count": 2}}, "repetition_detection", ["not supported"]),
        ({"priority": False}, "priority", ["an integer", "false"]),
        ({"priority": 2**63}, "priority", []),
        ({"cache_salt": ""}, "cache_salt", ["length", "1"]),
        ({"cache_salt": "x" * 129}, "cache_salt", ["128"]),
        ({"cache_salt": 5}, "cache_salt", ["a string", "5"]),
        ({"model": 3}, "model", ["string"]),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_bad_sampling_fields(client: httpx.AsyncClient, path: str, fields: dict, param: str, words: list[str]) -> None:
    body = {"prompt": "Hi"} if path == COMPLETIONS else {"messages": [USER]}
    error = check(await client.post(path, json=body | fields), 400, param, *words)
    assert error["type"] == "invalid_request_error"
    assert param.split(".")[0] in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "prompt", ["required"]),
        ({"prompt": None}, "prompt", ["required"]),
        ({"prompt": ""}, "prompt", ["empty"]),
        ({"prompt": []}, "prompt", ["empty"]),
        ({"prompt": ["a", ""]}, "prompt.1", ["empty"]),
        ({"prompt": [[1], []]}, "prompt.1", ["empty"]),
        ({"prompt": {}}, "prompt", ["string"]),
        ({"prompt": 3}, "prompt", ["string"]),
        ({"prompt": ["a", 1]}, "prompt.1", []),
        ({"prompt": ["a", [1]]}, "prompt.1", []),
        ({"prompt": [1, "a"]}, "prompt.1", ["token id"]),
        ({"prompt": [1.5]}, "prompt.0", []),
        ({"prompt": [True]}, "prompt.0", ["token id"]),
        ({"prompt": [1, 257]}, "prompt.1", ["257", "vocabulary"]),
        ({"prompt": [[1], [-1]]}, "prompt.1.0", ["-1"]),
        ({"prompt": [10**30]}, "prompt.0", ["huge"]),
        ({"prompt": "x" * 200}, "prompt", ["200"]),
        ({"prompt": [1] * 333}, "prompt", ["333", "200"]),
        ({"prompt": ["a", "x" * 250]}, "prompt.1", ["250", "200"]),
        ({"prompt": ["a"] * 1025}, "prompt", ["1024", "1025"]),
        ({"prompt": ["a"] * 1000, "n": 5, "temperature": 1}, "n", ["4096"]),
        ({"prompt": "a", "logprobs": 21}, "logprobs", ["20", "21"]),
        ({"prompt": "a", "logprobs": -1}, "logprobs", []),
        ({"prompt": "a", "logprobs": True}, "logprobs", []),
        ({"prompt": "a", "suffix": "b"}, "suffix", ["not supported"]),
        ({"prompt": "a", "best_of": 0}, "best_of", []),
        ({"prompt": "a", "best_of": 129}, "best_of", ["129"]),
        ({"prompt": "a", "best_of": "3"}, "best_of", ["integer"]),
        ({"prompt": "a", "best_of": 2, "n": 3}, "best_of", ["at least n (3)", "2"]),
        ({"prompt": "a", "best_of": 1, "n": 2}, "best_of", ["at least n (2)"]),
        ({"prompt": "a", "best_of": 3, "stream": True}, "best_of", ["streamed"]),
        ({"prompt": "a", "best_of": 3, "temperature": 0}, "best_of", ["greedy", "3"]),
        ({"prompt": "a", "best_of": 2, "n": 3, "use_beam_search": True}, "best_of", ["at least n (3)"]),
        ({"prompt": "a", "best_of": 9, "n": 3, "use_beam_search": True}, "best_of", ["beam_width 9"]),
        ({"prompt": ["a"] * 1000, "best_of": 5}, "best_of", ["4096"]),
        ({"prompt": ["a"] * 1000, "n": 5, "use_beam_search": True}, "n", ["4096"]),
        ({"messages": [USER], "prompt": "a"}, "messages", ["either"]),
        ({"messages": []}, "messages", []),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages.0.role", ["robot"]),
        ({"messages": [{"role": "user", "content": "x" * 200}]}, "messages", ["200"]),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", ["at least 1", "echo"]),
        ({"prompt": "a", "max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens", ["at most max_tokens (0)"]),
        ({"prompt": "a", "echo": True, "use_beam_search": True, "logprobs": 1}, "logprobs", ["beam search"]),
        ({"prompt": "a", "prompt_logprobs": 1, "use_beam_search": True}, "prompt_logprobs", ["use_beam_search"]),
        ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", ["streamed"]),
        ({"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs", ["20"]),
        ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs", ["0"]),
        ({"prompt": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", ["-1 or at least 1"]),
        ({"prompt": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", ["-1"]),
        ({"prompt": "a", "truncation_side": "left"}, "truncation_side", ["truncate_prompt_tokens"]),
        ({"prompt": "a", "request_id": "a b"}, "request_id", ["regex"]),
        ({"prompt": "a", "request_id": "a\n"}, "request_id", ["regex"]),
    ],
)
async def test_bad_completions(client: httpx.AsyncClient, fields: dict, param: str, words: list[str]) -> None:
    check(await client.post(COMPLETIONS, json=fields), 400, param, *words)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "messages", ["required"]),
        ({"messages": None}, "messages", []),
        ({"messages": []}, "messages", []),
        ({"messages": "Hi"}, "messages", ["list"]),
        ({"messages": ["Hi"]}, "messages.0", ["object"]),
        ({"messages": [{"content": "Hi"}]}, "messages.0.role", ["required"]),
        ({"messages": [USER, {"role": "robot", "content": "Hi"}]}, "messages.1.role", ["robot", "assistant"]),
        ({"messages": [{"role": 1, "content": "Hi"}]}, "messages.0.role", []),
        ({"messages": [{"role": ["user"], "content": "Hi"}]}, "messages.0.role", []),
        ({"messages": [{"role": "user"}]}, "messages.0.content", ["required"]),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", []),
        ({"messages": [{"role": "user", "content": 1}]}, "messages.0.content", []),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content", ["empty"]),
        ({"messages": [{"role": "user", "content": ["Hi"]}]}, "messages.0.content.0", []),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type", ["image_url"]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages.0.content.0.text", []),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}]}, "messages.0.content.0.b", []),
        ({"messages": [USER | {"name": 1}]}, "messages.0.name", []),
        ({"messages": [USER | {"colour": "red"}]}, "messages.0.colour", ["unknown"]),
        ({"messages": [USER | {"tool_calls": [{}]}]}, "messages.0.tool_calls", ["user"]),
        ({"messages": [USER | {"tool_call_id": "x"}]}, "messages.0.tool_call_id", ["user"]),
        ({"messages": [USER | {"refusal": "no"}]}, "messages.0.refusal", ["not supported"]),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages.0.tool_calls.0", []),
        ({"messages": [{"role": "assistant", "tool_calls": "f"}]}, "messages.0.tool_calls", ["list"]),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages.0.tool_calls.0.function.name", []),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "argumens": "{}"}}]}]},
            "messages.0.tool_calls.0.function.argumens",
            ["unknown field; did you mean arguments?"],
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"idx": "a", "function": {"name": "f"}}]}]},
            "messages.0.tool_calls.0.idx",
            ["unknown field"],
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": "f"}}]}]},
            "messages.0.tool_calls.0.id",
            ["string"],
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"x": ["\\ud800"]}'}}]}]},
            "messages.0.tool_calls.0.function.arguments",
            ["surrogate"],
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
            "messages.0.tool_calls.0.function.arguments",
            ["JSON"],
        ),
        ({"messages": [USER], "reasoning_effort": "high"}, "reasoning_effort", ["high", "enable_thinking"]),
        ({"messages": [USER], "reasoning_effort": "huge"}, "reasoning_effort", ["huge"]),
        ({"messages": [USER], "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", ["new one"]),
        ({"messages": [USER], "chat_template": "x"}, "chat_template", ["--trust-request-chat-template"]),
        ({"messages": [USER], "chat_template": ""}, "chat_template", []),
        ({"messages": [USER], "documents": [{"text": "a"}]}, "documents", ["no place"]),
        ({"messages": [USER], "documents": ["a"]}, "documents.0", ["object"]),
        ({"messages": [USER], "modalities": ["audio"]}, "modalities", ["not supported"]),
        ({"messages": [USER], "logprobs": 3}, "logprobs", ["true or false"]),
        ({"messages": [USER], "top_logprobs": 3}, "top_logprobs", ["logprobs"]),
        ({"messages": [USER], "logprobs": True, "top_logprobs": 21}, "top_logprobs", ["20", "21"]),
        ({"messages": [USER], "max_completion_tokens": 0}, "max_completion_tokens", ["0"]),
        ({"messages": [USER], "max_completion_tokens": 190}, "max_completion_tokens", ["190", "200"]),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "messages", ["317", "200"]),
        ({"messages": [USER], "chat_template_kwargs": {"explode": True}}, "messages", ["refused"]),
        ({"messages": [USER], "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools", []),
        ({"messages": [USER], "chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self", []),
        ({"messages": [USER], "chat_template_kwargs": [1]}, "chat_template_kwargs", ["object"]),
        ({"prompt": "Hi"}, "prompt", ["/v1/completions"]),
    ],
)
async def test_bad_chats(client: httpx.AsyncClient, fields: dict, param: str, words: list[str]) -> None:
    check(await client.post(CHAT, json=fields), 400, param, *words)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"prompt": "Hi"', ["valid JSON", "ends early"]),
        (b"nonsense", ["valid JSON"]),
        (b"", ["empty"]),
        (b" \n", ["empty"]),
        (b"[1]", ["object", "a list"]),
        (b'"Hi"', ["object", "a string"]),
        (b"null", ["object", "null"]),
        (b"3", ["object", "a number"]),
        (b'{"prompt": "Hi\xff"}', ["UTF-8", "byte 14"]),
        (b'{"prompt": "Hi", "temperature": NaN}', ["valid JSON"]),
        (b'{"prompt": "Hi", "temperature": Infinity}', ["valid JSON"]),
        (b'{"prompt": "Hi", "temperature": 1e999}', ["valid JSON"]),
        (b'{"prompt": "\\ud800"}', ["valid JSON", "surrogate"]),
        (b'{"prompt": "\\udc00 and so on"}', ["valid JSON", "surrogate"]),
        (b'{"prompt": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", ["nested"]),
        (b'{"prompt": ' + b"[" * 200 + b"]" * 200 + b"}", ["nested"]),
        (b'{"prompt": "Hi", "metadata": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}", ["nested"]),
        (b'{"prompt": "Hi", "max_tokens": ' + b"9" * 5000 + b"}", ["valid JSON"]),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
async def test_bodies_that_are_no_json_object(client: httpx.AsyncClient, path: str, body: bytes, words: list[str]) -> None:
    check(await client.post(path, content=body, headers={"Content-Type": "application/json"}), 400, None, *words)


async def test_duplicate_keys_and_many_brackets_are_fine(client: httpx.AsyncClient) -> None:
    body = b'{"prompt": "a", "prompt": ' + json.dumps([[1]] * 300).encode() + b', "max_tokens": 1}'
    reply = await client.post(COMPLETIONS, content=body, headers={"Content-Type": "application/json"})
    assert len(reply.json()["choices"]) == 300


@pytest.mark.parametrize(
    ("headers", "param", "word"),
    [
        ({"Content-Type": "application/x-www-form-urlencoded"}, "content-type", "urlencoded"),
        ({"Content-Type": "text/plain"}, "content-type", "application/json"),
        ({"Content-Type": "nonsense"}, "content-type", "nonsense"),
        ({}, "content-type", "missing"),
        ({"Content-Type": "application/json; charset=utf-16"}, "content-type", "utf-16"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "content-encoding", "gzip"),
    ],
)
async def test_wrong_content_type(client: httpx.AsyncClient, headers: dict[str, str], param: str, word: str) -> None:
    check(await client.post(COMPLETIONS, content=b'{"prompt": "Hi"}', headers=headers), 400, param, word)


async def test_content_type_with_a_charset_is_fine(client: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    assert (await client.post(COMPLETIONS, content=b'{"prompt": "Hi"}', headers=headers)).status_code == 200


async def test_body_over_the_limit(connect) -> None:
    client = connect(max_body_bytes=1000)
    check(await client.post(COMPLETIONS, json={"prompt": "x" * 1000}), 413, None, "1000")

    async def pieces():
        for _ in range(20):
            yield b"x" * 100

    reply = await client.post(COMPLETIONS, content=pieces(), headers={"Content-Type": "application/json"})
    assert "content-length" not in reply.request.headers
    check(reply, 413, None, "1000")


async def test_unknown_model(client: httpx.AsyncClient) -> None:
    for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": [USER]}), ("/tokenize", {"prompt": "a"})):
        error = check(await client.post(path, json=body | {"model": "gpt-9"}), 404, "model", "gpt-9", "fake-model")
        assert error["code"] == "model_not_found"
    check(await client.get("/v1/models/org/gpt-9"), 404, "model", "org/gpt-9", "fake-model")


async def test_unknown_path_and_method(client: httpx.AsyncClient) -> None:
    check(await client.get("/v1/nothing"), 404, None, "/v1/nothing")
    check(await client.get("/v1/models/"), 404, "model")
    reply = await client.get(COMPLETIONS)
    check(reply, 405, None, COMPLETIONS, "GET")
    assert reply.headers["allow"] == "POST"
    check(await client.delete("/v1/models"), 405, None, "DELETE")


async def test_unexpected_failure_is_plain_and_logged(client: httpx.AsyncClient, llm: FakeLLM, caplog, monkeypatch) -> None:
    def broken(*_: object, **__: object) -> str:
        raise KeyError("secret detail")

    monkeypatch.setattr(llm, "render_chat", broken)
    with caplog.at_level(logging.ERROR, "octavo.server"):
        reply = await client.post(CHAT, json={"messages": [USER]})
    error = check(reply, 500, None)
    assert "secret" not in reply.text
    assert error["type"] == "internal_error"
    assert "secret detail" in caplog.text
    assert "Traceback" in caplog.text


async def test_failed_request(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    llm.fail_after = 2
    check(await client.post(COMPLETIONS, json={"prompt": ["a", "b"]}), 500, None, "not finite")
    assert all(call.closed for call in llm.calls)
    llm.fail_after = None


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_failure_before_the_first_token_of_a_stream_is_a_status(client: httpx.AsyncClient, llm: FakeLLM, path: str) -> None:
    llm.fail_after = 0
    body = {"prompt": "Hi"} if path == COMPLETIONS else {"messages": [USER]}
    check(await client.post(path, json=body | {"stream": True}), 500, None, "not finite")
    llm.fail_after = None


@pytest.mark.parametrize("failure", [None, RuntimeError("secret detail")])
async def test_failure_in_mid_stream_is_an_event(client: httpx.AsyncClient, llm: FakeLLM, failure: Exception | None) -> None:
    llm.fail_after = 3
    llm.failure = failure or llm.failure
    reply = await client.post(COMPLETIONS, json={"prompt": "Hi", "stream": True})
    assert reply.status_code == 200
    *chunks, error, done, rest = reply.text.split("\n\n")
    assert (len(chunks), done, rest) == (3, "data: [DONE]", "")
    body = json.loads(error.removeprefix("data: "))["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["type"] == "internal_error"
    assert "secret" not in reply.text
    assert llm.calls[0].closed
    llm.fail_after = None


async def test_prompt_that_the_engine_refuses_names_the_field(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    from octavo.protocol.errors import InvalidRequestError

    llm.fail_after = 0
    for path, body, param in ((COMPLETIONS, {"prompt": "Hi"}, "prompt"), (CHAT, {"messages": [USER]}, "messages")):
        for stream in (False, True):
            llm.failure = InvalidRequestError("the prompt is larger than the KV cache", param="prompt")
            check(await client.post(path, json=body | {"stream": stream}), 400, param, "KV cache")
    llm.fail_after = None


async def test_dead_engine(client: httpx.AsyncClient, llm: FakeLLM, until) -> None:
    llm.hold.clear()
    waiting = [
        asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "Hi"})),
        asyncio.create_task(client.post(CHAT, json={"messages": [USER], "stream": True})),
    ]
    await until(lambda: len(llm.calls) == 2)
    llm.die()
    for reply in await asyncio.gather(*waiting):
        assert check(reply, 503, None, "engine")["type"] == "service_unavailable"
    check(await client.get("/health"), 503, None, "engine")
    check(await client.post(COMPLETIONS, json={"prompt": "Hi"}), 503, None, "engine")
    check(await client.post(CHAT, json={"messages": [USER], "stream": True}), 503, None, "engine")


async def test_closing_server_ends_what_runs(client: httpx.AsyncClient, llm: FakeLLM, until) -> None:
    llm.endless, llm.max_model_len, llm.delay = True, 10**9, 0.01
    llm.info.max_model_len = 10**9
    whole = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "Hi", "max_tokens": 10**6}))
    stream = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "Hi", "max_tokens": 10**6, "stream": True}))
    await until(lambda: len(llm.calls) == 2 and all(call.tokens > 1 for call in llm.calls))
    client.context.closing.set()
    check(await whole, 503, None, "shutting down")
    *_, error, done, _ = (await stream).text.split("\n\n")
    assert "shutting down" in error
    assert done == "data: [DONE]"
    assert all(call.closed and not call.finished for call in llm.calls)
    client.context.closing.clear()


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [USER]}, "prompt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"messages": [{"role": "x", "content": ""}]}, "messages.0.role"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"messages": [USER], "tools": [{}]}, "tools.0.type"),
        ("/tokenize", {"prompt": "a", "media_io_kwargs": {"a": 1}}, "media_io_kwargs"),
        ("/tokenize", {"prompt": "a", "promt": 1}, "promt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, 257]}, "tokens.1"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
        ("/detokenize", {"tokens": ["a"]}, "tokens.0"),
        ("/detokenize", {"tokens": [10**30]}, "tokens.0"),
    ],
)
async def test_bad_tokenize_requests(client: httpx.AsyncClient, path: str, fields: dict, param: str) -> None:
    check(await client.post(path, json=fields), 400, param)
