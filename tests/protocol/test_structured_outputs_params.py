from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo import SamplingParams, StructuredOutputsParams
from octavo.protocol.errors import InvalidRequestError


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"json": {"type": "object"}}, "json"),
        ({"json": '{"type": "object"}'}, "json"),
        ({"json": deep(64)}, "json"),
        ({"regex": ""}, "regex"),
        ({"choice": ("a", "b")}, "choice"),
        ({"grammar": "start: /a/"}, "grammar"),
        ({"json_object": True, "regex": None}, "json_object"),
        ({"json_object": False, "regex": "a"}, "regex"),
    ],
)
def test_kinds(fields: dict[str, Any], kind: str) -> None:
    params = StructuredOutputsParams(**fields)
    assert params.kind == kind
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=StructuredOutputsParams) == params


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({}, None, "exactly one of json, regex, choice, grammar, json_object; it has none of them"),
        ({"json_object": False}, None, "has none"),
        ({"regex": "a", "choice": ["b"]}, None, "has regex and choice"),
        ({"json": "{"}, "json", "is not valid JSON"),
        ({"json": "3"}, "json", "must be a JSON schema, which is an object, got 3"),
        ({"json": [1]}, "json", "must be a JSON schema"),
        ({"json": deep(65)}, "json", "nested more than 64 levels"),
        ({"json": "[" * 100_000}, "json", "is not valid JSON"),
        ({"regex": 3}, "regex", "must be a string, got 3"),
        ({"regex": "a\0"}, "regex", "zero character"),
        ({"regex": "\ud800"}, "regex", "lone surrogate"),
        ({"choice": []}, "choice", "at least one string"),
        ({"choice": "ab"}, "choice", "at least one string"),
        ({"choice": ["a", 1]}, "choice", "must be a string, got 1"),
        ({"grammar": " \n"}, "grammar", "is empty"),
        ({"json_object": 1}, "json_object", "must be true or false"),
        ({"regex": "a", "disable_any_whitespace": True}, "disable_any_whitespace", "can't be given with regex"),
        ({"choice": ["a"], "whitespace_pattern": " "}, "whitespace_pattern", "can't be given with choice"),
        ({"json_object": True, "disable_additional_properties": True}, "disable_additional_properties", "can't be given with json_object"),
        ({"json_object": True, "disable_any_whitespace": 1}, None, "disable_any_whitespace must be true or false"),
        ({"json_object": True, "disable_any_whitespace": True, "whitespace_pattern": " "}, "whitespace_pattern", "disable_any_whitespace"),
    ],
)
def test_what_can_not_hold_is_refused_by_name(fields: dict[str, Any], param: str | None, text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        StructuredOutputsParams(**fields)
    assert text in caught.value.message
    if param is not None:
        assert caught.value.param == f"structured_outputs.{param}"


def test_sampling_params_take_nothing_else() -> None:
    with pytest.raises(InvalidRequestError, match=r"structured_outputs must be StructuredOutputsParams, got \{'json'"):
        SamplingParams(structured_outputs={"json": {}})  # type: ignore[arg-type]
