from __future__ import annotations

import json

import httpx
import pytest
from fake_llm import EOS, FakeLLM

from octavo._version import __version__
from octavo.config.server import ServerOptions
from octavo.protocol.errors import ConfigError


async def test_models(connect) -> None:
    client = connect(served_model_name=("small", "org/alias"))
    listing = (await client.get("/v1/models")).json()
    assert listing["object"] == "list"
    assert [card["id"] for card in listing["data"]] == ["small", "org/alias"]
    card = (await client.get("/v1/models/org/alias")).json()
    assert isinstance(card.pop("created"), int)
    assert card == {
        "id": "org/alias",
        "object": "model",
        "owned_by": "octavo",
        "root": "fake-model",
        "parent": None,
        "max_model_len": 200,
    }


async def test_a_model_answers_to_the_part_after_the_slash(connect) -> None:
    client = connect(served_model_name=("Org/Model-1", "dir/other/", "/models/of/mine"))
    for name in ("Org/Model-1", "Model-1", "dir/other/", "other", "/models/of/mine", "mine", None):
        reply = await client.post("/v1/completions", json={"prompt": "Hi", "model": name})
        assert reply.status_code == 200
        assert reply.json()["model"] == (name or "Org/Model-1")
    assert (await client.get("/v1/models/Model-1")).json()["id"] == "Model-1"
    for name in ("Org", "org/model-1", "", "fake-model", "of/mine", "models/of/mine"):
        assert (await client.post("/v1/completions", json={"prompt": "Hi", "model": name})).status_code == 404


async def test_health_and_version(client: httpx.AsyncClient) -> None:
    health = await client.get("/health")
    assert (health.status_code, health.json()) == (200, {})
    assert (await client.get("/version")).json() == {"version": __version__}


async def test_tokenize_a_prompt(client: httpx.AsyncClient) -> None:
    reply = await client.post("/tokenize", json={"model": "fake-model", "prompt": "aö"})
    assert reply.json() == {"count": 3, "max_model_len": 200, "tokens": [97, 0xC3, 0xB6], "token_strs": None}
    reply = await client.post("/tokenize", json={"prompt": "ab", "return_token_strs": True, "add_special_tokens": False})
    assert reply.json()["token_strs"] == ["a", "b"]
    assert (await client.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []


async def test_tokenize_text_longer_than_the_context(client: httpx.AsyncClient) -> None:
    assert (await client.post("/tokenize", json={"prompt": "x" * 50_000})).json()["count"] == 50_000


async def test_tokenize_messages(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False, "tools": None}
    assert (await client.post("/tokenize", json=body)).json()["tokens"] == list(b"<user>Hi")
    assert llm.rendered[0]["add_generation_prompt"] is False


async def test_detokenize(client: httpx.AsyncClient) -> None:
    assert (await client.post("/detokenize", json={"tokens": [72, 105, EOS]})).json() == {"prompt": "Hi<|end|>"}
    assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_docs_and_schema_describe_the_bodies(client: httpx.AsyncClient) -> None:
    assert "swagger" in (await client.get("/docs")).text
    document = (await client.get("/openapi.json")).json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatRequest"}
    schema = document["components"]["schemas"]["ChatRequest"]
    assert schema["required"] == ["messages"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert schema["properties"]["functions"]["enum"] == [None, []]
    references = set(_references(document))
    assert references
    assert references <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert "security" not in document


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for child in value.values() for found in _references(child)]
    if isinstance(value, list):
        return [found for child in value for found in _references(child)]
    return []


async def test_the_schema_tells_what_messages_are(client: httpx.AsyncClient) -> None:
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    for name in ("ChatRequest", "TokenizeRequest", "MessagesRequest"):
        kinds = json.dumps(schemas[name]["properties"]["messages"])
        assert '"role"' in kinds, name
        assert '"assistant"' in kinds, name


async def test_schema_names_the_key_when_one_is_needed(connect) -> None:
    client = connect(api_key=("k",), headers={"Authorization": "Bearer k"})
    document = (await client.get("/openapi.json")).json()
    assert document["security"] == [{"bearer": []}]
    assert "bearer" in document["components"]["securitySchemes"]


async def test_browsers_may_call_from_allowed_origins_only(connect) -> None:
    client = connect(allowed_origins=("http://app.example",), api_key=("k",))
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    good = await client.options("/v1/completions", headers={"Origin": "http://app.example", **asks})
    assert good.status_code == 200
    assert good.headers["access-control-allow-origin"] == "http://app.example"
    bad = await client.options("/v1/completions", headers={"Origin": "http://evil.example", **asks})
    assert "access-control-allow-origin" not in bad.headers
    refused = await client.get("/v1/models", headers={"Origin": "http://app.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "http://app.example"


async def test_root_path_is_taken_off(connect) -> None:
    client = connect(root_path="/llm", api_key=("k",))
    assert (await client.get("/llm/health")).status_code == 200
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/llm/v1/models")).status_code == 401
    assert (await client.get("/llm/v1/models", headers={"Authorization": "Bearer k"})).status_code == 200


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"port": 70000}, "port"),
        ({"host": ""}, "host"),
        ({"api_key": ("",)}, "api_key"),
        ({"served_model_name": ("a", "")}, "served_model_name"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"response_role": ""}, "response_role"),
        ({"shutdown_timeout": -1}, "shutdown_timeout"),
        ({"request_timeout": 0}, "request_timeout"),
        ({"max_queued_requests": -1}, "max_queued_requests"),
        ({"uvicorn_log_level": "loud"}, "uvicorn_log_level"),
        ({"root_path": "llm"}, "root_path"),
    ],
)
def test_options_that_cannot_hold(options: dict[str, object], param: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerOptions(**options)
    assert caught.value.param == param
    assert param in caught.value.message


def test_keys_come_from_the_environment_unless_given() -> None:
    environ = {"OCTAVO_API_KEY": "one, two"}
    assert ServerOptions().with_environment(environ).api_key == ("one", "two")
    assert ServerOptions(api_key=["mine"]).with_environment(environ).api_key == ("mine",)
    assert ServerOptions().with_environment({"OCTAVO_API_KEY": " "}).api_key == ()
