"""What texts each kind of structured output allows."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from grammar_text import Text

from octavo.config.engine import StructuredOutputsConfig
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.structured_outputs import StructuredOutputsParams
from octavo.structured_output.compiler import GrammarCompiler
from octavo.structured_output.grammar import grammar_of

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
NESTED = {"type": "object", "properties": {"inner": PERSON, "properties": PERSON}, "additionalProperties": True}

CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        {"json": PERSON},
        ['{"name": "Bob"}', '{\n  "name":"Zoë",\t"age": 3}', '{"name": "Bob", "more": [1]}'],
        ["{}", '{"name": 3}', '{"age": 3}', 'x{"name": "Bob"}', ' {"name": "Bob"}', '{"name": "Bob"'],
    ),
    ({"json": json.dumps(PERSON)}, ['{"name": "Bob"}'], ["{}"]),
    ({"json": PERSON, "disable_any_whitespace": True}, ['{"name":"a b"}'], ['{"name": "a b"}']),
    ({"json": PERSON, "whitespace_pattern": "[ ]?"}, ['{"name": "a"}', '{"name":"a"}'], ['{"name":\n"a"}', '{"name":  "a"}']),
    ({"json": PERSON, "disable_additional_properties": True}, ['{"name":"a"}'], ['{"name":"a","more":1}']),
    (
        {"json": NESTED, "disable_additional_properties": True},
        ['{"inner":{"name":"a"}}', '{"properties":{"name":"a"}}', '{"other":1}'],
        ['{"inner":{"name":"a","more":1}}', '{"properties":{"name":"a","more":1}}'],
    ),
    ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}'], ["[]", "1", ""]),
    ({"json_object": True, "disable_any_whitespace": True}, ['{"a":1}'], ['{"a": 1}']),
    ({"json": {"enum": ["a", 1, {"x": []}]}}, ['"a"', "1", '{"x":[]}'], ["a", "2"]),
    ({"regex": r"[a-z]{2,3}/\d"}, ["ab/1", "abc/9"], ["a/1", "ab/", "ab/12", "1ab/1", "ab\n/1"]),
    ({"regex": "a\nb|\"'"}, ["a\nb", "\"'"], ["a"]),
    ({"regex": "(?i)yes"}, ["YES", "yEs"], ["no"]),
    (
        {"choice": ["yes", "yes please", "é😀", 'a"b\\', "\t", "\u2028"]},
        ["yes", "yes please", "é😀", 'a"b\\', "\t", "\u2028"],
        ["ye", "yes p", "no"],
    ),
    ({"grammar": 'start: "a" B+\nB: /[xy]/  // a comment'}, ["ax", "axyx"], ["a", "b", "ax "]),
    ({"grammar": 'root ::= "hello " who\nwho ::= "you" | [0-9]+'}, ["hello you", "hello 12"], ["hello ", "hello me"]),
    ({"grammar": "start: %json " + json.dumps(PERSON) + ' "!"'}, ['{"name":"a"}!'], ['{"name":"a"}']),
]


@pytest.mark.parametrize(("fields", "texts", "others"), CASES, ids=lambda value: None)
def test_texts_of_each_kind(compiler: GrammarCompiler, fields: dict[str, Any], texts: list[str], others: list[str]) -> None:
    grammar = grammar_of(StructuredOutputsParams(**fields))
    for text in texts:
        assert Text(compiler.matcher(grammar)).takes(text), text
    for text in others:
        assert not Text(compiler.matcher(grammar)).takes(text), text


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"json": {"type": "objec"}}, "Invalid type: objec"),
        ({"json": {"type": "object", "not": {"required": ["a"]}}}, "Unimplemented keys"),
        ({"json": {"$ref": "#/nowhere"}}, "nowhere"),
        ({"json": {"type": "string", "format": "no such format"}}, "no such format"),
        ({"regex": "a(?=b)"}, "look-around"),
        ({"regex": "[a-"}, "regex parse error"),
        ({"regex": r"[^\s\S]"}, "no text matches it"),
        ({"grammar": "start: nowhere"}, 'unknown name: "nowhere"'),
        ({"grammar": 'start: <no such token> "a"'}, "token"),
        ({"grammar": "just some words"}, "1(6): Expected token"),
        ({"json": PERSON, "whitespace_pattern": "["}, "regex"),
    ],
)
def test_what_can_not_be_compiled_is_refused_with_the_reason(compiler: GrammarCompiler, fields: dict[str, Any], reason: str) -> None:
    grammar = grammar_of(StructuredOutputsParams(**fields))
    with pytest.raises(InvalidRequestError, match="can't be used") as caught:
        compiler.check(grammar)
    assert reason in caught.value.message
    assert "no_forcing" not in caught.value.message
    assert len(caught.value.message) < 600


def test_gbnf_that_can_not_be_read() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"structured_outputs\.grammar looks like GBNF and can't be read as such: Expected '\)'"
    ) as caught:
        grammar_of(StructuredOutputsParams(grammar="root ::= ("))
    assert caught.value.param == "structured_outputs.grammar"


def test_a_long_reason_is_cut(compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequestError, match=r"…$") as caught:
        compiler.check("start: /(?=a)" + "b" * 5000 + "/")
    assert len(caught.value.message) < 600


@pytest.mark.parametrize(
    "fields",
    [
        {"json": {"$defs": {**{f"{i}": {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(1500)}, "1500": {}}, "$ref": "#/$defs/0"}},
        {"grammar": "start: " + "(" * 30_000 + '"a"' + ")" * 30_000},
        {"regex": "(" * 30_000 + "a" + ")" * 30_000},
        {"grammar": "start: %json " + '{"items":' * 6_500 + "{}" + "}" * 6_500},
    ],
    ids=["references", "rules", "expression", "schema"],
)
def test_what_is_nested_without_end_does_not_end_the_process(compiler: GrammarCompiler, fields: dict[str, Any]) -> None:
    """These are as large as a request may make them by default."""
    grammar = grammar_of(StructuredOutputsParams(**fields))
    assert len(grammar) <= StructuredOutputsConfig().max_grammar_size
    with contextlib.suppress(InvalidRequestError):
        text = Text(compiler.matcher(grammar))
        assert text.next()
        with contextlib.suppress(AssertionError):
            text.add(b"[" * 200)
