"""Every kind of structured output as one grammar, in the Lark dialect of llguidance
(https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.structured_outputs import StructuredOutputsParams

# Keywords of a schema whose value is an object with schemas by name, and those whose value is no schema.
_OF_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_OF_DATA = frozenset({"const", "enum", "default", "examples", "x-guidance"})
_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


def grammar_of(params: StructuredOutputsParams) -> str:
    """The grammar of the texts that `params` allow. Raises InvalidRequestError for GBNF that can't be translated, or a schema that JSON
    can't write; all the rest shows when the grammar is compiled."""
    if params.json_object:
        return f"start: {json_rule({'type': 'object'}, **_options(params))}"
    if params.json is not None:
        schema = msgspec.json.decode(params.json) if isinstance(params.json, str) else params.json
        if params.disable_additional_properties:
            schema = _closed(schema)
        return f"start: {json_rule(schema, **_options(params))}"
    if params.regex is not None:
        return f"start: {_expression(params.regex)}"
    if params.choice is not None:
        return "start: CHOICE\nCHOICE: " + " | ".join(map(quoted, params.choice))
    return _lark(params.grammar or "")


def json_rule(schema: Mapping[str, Any], **options: Any) -> str:
    """A JSON schema as it stands within a grammar; `options` are llguidance's, and win over those of the schema's own `x-guidance`.
    Raises InvalidRequestError for values that JSON can't write."""
    if options:
        own = schema.get("x-guidance")
        schema = {**schema, "x-guidance": {**(own if isinstance(own, Mapping) else {}), **options}}
    try:
        return f"%json {msgspec.json.encode(schema).decode()}"
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidRequestError(f"structured_outputs.json can't be written as JSON: {error}.", param="structured_outputs.json") from None


def quoted(text: str) -> str:
    """Text as a grammar spells it."""
    return msgspec.json.encode(text).decode()


def _options(params: StructuredOutputsParams) -> dict[str, Any]:
    if params.disable_any_whitespace:
        return {"whitespace_flexible": False}
    if params.whitespace_pattern:
        return {"whitespace_pattern": params.whitespace_pattern}
    return {}


def _closed(schema: Any) -> Any:
    """The schema with `additionalProperties` false wherever it names properties and does not speak of others."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {}
    for key, value in schema.items():
        if key in _OF_DATA:
            closed[key] = value
        elif key in _OF_SCHEMAS and isinstance(value, dict):
            closed[key] = {name: _closed(item) for name, item in value.items()}
        else:
            closed[key] = _closed(value)
    if isinstance(schema.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def _expression(regex: str) -> str:
    from llguidance import regex_to_lark

    return f"/{regex_to_lark(regex, '')}/"


def _lark(grammar: str) -> str:
    if not _GBNF.search(grammar):
        return grammar
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # the library raises plain Exception
        raise InvalidRequestError(
            f"structured_outputs.grammar looks like GBNF and can't be read as such: {error}", param="structured_outputs.grammar"
        ) from None
