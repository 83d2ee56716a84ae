"""Calls of functions in the forms that models write them in."""

from __future__ import annotations

import pytest
from grammar_text import CALL, Text

from octavo.structured_output.compiler import GrammarCompiler
from octavo.structured_output.tool_calls import CallPattern, tool_call_grammar

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def test_one_of_several_functions(compiler: GrammarCompiler) -> None:
    patterns = [
        CallPattern('<tool_call>\n{"name": "weather", "arguments": ', CITY, "}\n</tool_call>"),
        CallPattern('<tool_call>\n{"name": "weather_now", "arguments": ', NOTHING, "}\n</tool_call>"),
    ]
    grammar = tool_call_grammar(patterns)

    def takes(text: str) -> bool:
        return Text(compiler.matcher(grammar)).takes(text)

    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zoë"}}\n</tool_call>'
    now = '<tool_call>\n{"name": "weather_now", "arguments": {}}\n</tool_call>'
    assert takes(call)
    assert takes(now)
    assert not takes(call.replace('{"city": "Zoë"}', "{}"))
    assert not takes(now.replace("{}", '{"city": "Zoë"}'))
    assert not takes(call + now)
    assert not takes("Sure! " + call)


def test_several_calls_with_a_separator(compiler: GrammarCompiler) -> None:
    pattern = CallPattern('{"name": "weather", "arguments": ', CITY, "}")
    grammar = tool_call_grammar([pattern], prefix="[", suffix="]", separator=", ")
    one = '{"name": "weather", "arguments": {"city": "A"}}'
    for text, right in (
        (f"[{one}]", True),
        (f"[{one}, {one}, {one}]", True),
        ("[]", False),
        (f"[{one}{one}]", False),
        (f"[{one}, ]", False),
    ):
        assert Text(compiler.matcher(grammar)).takes(text) is right, text
    together = tool_call_grammar([pattern], separator="")
    assert Text(compiler.matcher(together)).takes(one + one)


def test_special_tokens_stand_for_themselves(compiler: GrammarCompiler) -> None:
    pattern = CallPattern('<call>{"a": ', NOTHING, "}")
    plain = Text(compiler.matcher(tool_call_grammar([pattern])))
    special = Text(compiler.matcher(tool_call_grammar([pattern], special_tokens={"<call>": CALL, "<ca": 255})))
    assert plain.next() == {ord("<")}
    assert special.next() == {CALL}
    assert special.add([CALL]).takes('{"a": {}}')


def test_no_function_is_no_grammar() -> None:
    with pytest.raises(ValueError, match="at least one"):
        tool_call_grammar([])
