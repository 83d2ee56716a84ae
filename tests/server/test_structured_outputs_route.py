"""`structured_outputs` and `response_format`: what reaches the engine, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_llm import FakeLLM

from octavo import StructuredOutputsParams
from octavo.protocol.errors import InvalidRequestError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ROUTES = {"/v1/completions": {"prompt": "Hi"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]}}


def of_schema(**others: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, **others}}}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"json": '{"type": "object"}'}}, {"json": '{"type": "object"}'}),
        ({"structured_outputs": {"regex": "a+", "json": None}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, {"grammar": 'start: "a"'}),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            {"json_object": True, "disable_any_whitespace": True},
        ),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}}, {"regex": "a"}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (of_schema(), {"json": SCHEMA}),
        (of_schema(strict=True, description="some"), {"json": SCHEMA}),
        (of_schema(strict=False), {"json": SCHEMA}),
    ],
)
async def test_what_reaches_the_engine(
    client: httpx.AsyncClient, llm: FakeLLM, route: str, fields: dict[str, Any], wanted: dict[str, Any] | None
) -> None:
    reply = await client.post(route, json={**ROUTES[route], **fields})
    assert reply.status_code == 200, reply.text
    assert llm.calls[0].sampling.structured_outputs == (None if wanted is None else StructuredOutputsParams(**wanted))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "it has regex and choice"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp", "unknown field"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "length"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs.json", "not 3"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "is not valid JSON"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is required"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
            "is required",
        ),
        ({"response_format": {"type": "text", "x": 1}}, "response_format.x", "unknown field"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "response_format", "structured_outputs"),
        ({"response_format": {"type": "json_object"}, "use_beam_search": True, "n": 2}, "response_format", "use_beam_search"),
        ({"structured_outputs": {"regex": "a"}, "use_beam_search": True, "n": 2}, "structured_outputs", "use_beam_search"),
        ({"guided_json": SCHEMA}, "guided_json", "use structured_outputs with json"),
        ({"guided_regex": "a"}, "guided_regex", "use structured_outputs with regex"),
        ({"guided_choice": ["a"]}, "guided_choice", "use structured_outputs with choice"),
        ({"guided_grammar": "a"}, "guided_grammar", "use structured_outputs with grammar"),
        ({"guided_decoding_backend": "a"}, "guided_decoding_backend", "use structured_outputs"),
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [(of_schema(), "response_format.json_schema.schema"), ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json")],
)
async def test_a_schema_that_the_model_s_side_refuses_is_named_as_it_was_sent(
    client: httpx.AsyncClient, llm: FakeLLM, fields: dict[str, Any], param: str, stream: bool
) -> None:
    llm.fail_after = 0
    llm.failure = InvalidRequestError("structured_outputs.json can't be used: no.", param="structured_outputs.json")
    reply = await client.post("/v1/completions", json={"prompt": "Hi", "stream": stream, **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert reply.json()["error"]["message"] == f"{param} can't be used: no."
