"""Tool calls in text: what each parser makes of it, wherever the text is cut."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from answer_pieces import assert_same_at_every_split, read, summary
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.answer import CallArguments, CallStart, Content
from octavo.text.tools.parser import ToolParser
from octavo.text.tools.registry import TOOL_PARSERS, parser_for_template

TOOLS = ["f", "get_weather", "a.b-c"]
F = ("f", '{"x": 1}')
CASES: dict[str, list[tuple[str, str, list[tuple[str, str]]]]] = {
    "hermes": [
        ("Hello there.\n", "Hello there.\n", []),
        ("a < b, <tool> and <tool_cal", "a < b, <tool> and <tool_cal", []),
        ('<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', "", [F]),
        ('I look.\n\n<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "I look.", [F]),
        (
            '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\n',
            "",
            [F, ("g", "{}")],
        ),
        ('<tool_call>{"name": "f"}</tool_call> done ', "done ", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "id": 7, "arguments": "{\\"x\\": 1}"}</tool_call>', "", [F]),
        (
            '<tool_call>{"name": "f", "arguments": {"s": "</tool_call> }{ \\" é🙂"}}</tool_call>',
            "",
            [("f", '{"s": "</tool_call> }{ \\" é🙂"}')],
        ),
        # Brackets that are missing, and the next call that follows all the same.
        ('<tool_call>{"name": "f", "arguments": {"x": 1}</tool_call>\n<tool_call>{"name": "g"}</tool_call>', "", [F, ("g", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {"x": 1</tool_call> after', "after", [("f", '{"x": 1')]),
        # Cut at its length: what there is of the arguments.
        ('<tool_call>\n{"name": "f", "arguments": {"x": [1, "a', "", [("f", '{"x": [1, "a')]),
        ('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_c', "", [F]),
        # No calls: all of it is content.
        ('x <tool_call>{"name": "f", "arg', 'x <tool_call>{"name": "f", "arg', []),
        ("x <tool_call> not json</tool_call>", "x <tool_call> not json</tool_call>", []),
        ('<tool_call>{"nom": "f"}</tool_call>', '<tool_call>{"nom": "f"}</tool_call>', []),
        ('<tool_call>{"name": "", "arguments": {}}', '<tool_call>{"name": "", "arguments": {}}', []),
    ],
    "llama3_json": [
        ("Plain text {with} brackets", "Plain text {with} brackets", []),
        ('{"name": "f", "parameters": {"x": 1}}', "", [F]),
        (' <|python_tag|>{"name": "f", "parameters": {"x": 1}}', "", [F]),
        ('{"name": "f", "parameters": {"x": 1}}; {"name": "get_weather", "parameters": {}}', "", [F, ("get_weather", "{}")]),
        ('{"name": "unknown", "parameters": {"x": 1}}', '{"name": "unknown", "parameters": {"x": 1}}', []),
        ('{"name": "f"}', '{"name": "f"}', []),
        ('{"city": "Oslo", "name": "f"} is JSON', '{"city": "Oslo", "name": "f"} is JSON', []),
        ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
        ("<|python", "<|python", []),
        ('{"name": "f", "parameters": {"x": 1}} and that is it', "and that is it", [F]),
        ('{"name": "f", "parameters": {"x": ', "", [("f", '{"x": ')]),
    ],
    "json": [
        ("[1, 2]", "[1, 2]", []),
        (" \n", " \n", []),
        ("[", "[", []),
        ('[{"name": "f", "arguments": {"x": 1}}, {"name": "a.b-c", "parameters": {"y": [{}]}}]\n', "", [F, ("a.b-c", '{"y": [{}]}')]),
        ('{"name": "f", "arguments": {"x": 1}}', "", [F]),
        ('[ {"name": "f", "arguments": {"x": 1}}, {"name": "other", "arguments": {}}]', ', {"name": "other", "arguments": {}}]', [F]),
        ('[{"name": "f", "arguments": {"x": 1}}] [', "[", [F]),
    ],
    "mistral": [
        ("Hello [TOOL", "Hello [TOOL", []),
        ('[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]', "", [F]),
        ('Sure. [TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"arguments": {}, "name": "g"}]', "Sure.", [F, ("g", "{}")]),
        ('[TOOL_CALLS]f[ARGS]{"x": 1}', "", [F]),
        ('[TOOL_CALLS]f{"x": 1}[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{}', "", [F, ("get_weather", "{}")]),
        # Behind a call, or the end of a list of them, only another mark begins one.
        ('[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}], {"name": "g"}', '{"name": "g"}', [F]),
        ('[TOOL_CALLS]f[ARGS]{"x": 1}, {"name": "g"}', '{"name": "g"}', [F]),
        ('[TOOL_CALLS]{"name": "f", "arguments": {"x": 1}} {"name": "g"}', '{"name": "g"}', [F]),
        (
            '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}] [TOOL_CALLS] [{"name": "g"}, {"name": "f"}]',
            "",
            [F, ("g", "{}"), ("f", "{}")],
        ),
        ("[TOOL_CALLS] nothing", "[TOOL_CALLS] nothing", []),
        ("a [TOOL_CALLS]two words{}", "a [TOOL_CALLS]two words{}", []),
        ('[TOOL_CALLS] [{"name": 1}]', '[TOOL_CALLS] [{"name": 1}]', []),
        ('[TOOL_CALLS]f{"x": 1 <oops> [TOOL_CALLS]f{"x": 1}', "", [("f", '{"x": 1 '), F]),
        ('[TOOL_CALLS]f{"x": "[TOOL_CALLS]"} ok', "ok", [("f", '{"x": "[TOOL_CALLS]"}')]),
        ("[TOOL_CALLS]" + "n" * 300 + "{}", "[TOOL_CALLS]" + "n" * 300 + "{}", []),
    ],
}
FLAT = [(name, *case) for name, cases in CASES.items() for case in cases]


def make(name: str) -> ToolParser:
    return TOOL_PARSERS[name](TOOLS)


@pytest.mark.parametrize(("name", "text", "content", "calls"), FLAT)
def test_what_a_parser_finds(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert summary(read(make(name), [text])) == {"reasoning": "", "content": content, "calls": calls}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text, _, _ in FLAT if len(text) < 200])
def test_the_same_wherever_the_text_is_cut(name: str, text: str) -> None:
    assert_same_at_every_split(lambda: make(name), text)


PARTS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", '{"name": "f", "arguments": ', '{"name": "f"', "{", "}"]
PARTS += ['{"x": 1}', "[", "]", ", ", "; ", "\n", " ", "text", '"', "\\", ":", "null", "<", "12"]


@given(st.sampled_from(sorted(TOOL_PARSERS)), st.lists(st.sampled_from(PARTS), max_size=12), st.data())
def test_the_same_for_any_text(name: str, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    borders = [0, *cuts, len(text)]
    pieces = [text[start:end] for start, end in pairwise(borders)]
    whole = read(make(name), [text])
    assert read(make(name), pieces) == whole
    assert read(make(name), list(text)) == whole


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
WRITTEN = {
    "hermes": lambda calls: "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls),
    "llama3_json": lambda calls: "; ".join(calls),
    "json": lambda calls: f"[{', '.join(calls)}]",
    "mistral": lambda calls: f"[TOOL_CALLS] [{', '.join(calls)}]",
}


@given(st.sampled_from(sorted(WRITTEN)), st.lists(st.dictionaries(st.text(), JSON, max_size=3), min_size=1, max_size=3), st.booleans())
def test_any_arguments_arrive_as_they_were_written(name: str, given: list[dict[str, Any]], escape: bool) -> None:
    arguments = [json.dumps(each, ensure_ascii=escape) for each in given]
    text = WRITTEN[name]([f'{{"name": "f", "arguments": {each}}}' for each in arguments])
    for texts in ([text], list(text)):
        assert summary(read(make(name), texts)) == {"reasoning": "", "content": "", "calls": [("f", each) for each in arguments]}


# Halves of surrogate pairs, which no reply can hold, and pairs, which stay as they are spelled.
HALVES = [
    (r'{"x": "\ud800"}', r'{"x": "\ufffd"}'),
    (r'{"x": ["a\uDBFF\n", {"\udc00b": 1}]}', r'{"x": ["a\ufffd\n", {"\ufffdb": 1}]}'),
    (r'{"x": "\ud83d\ude00 \ud83d\ud83d\ude00 \ud83d\u0041 \ud83dx"}', r'{"x": "\ud83d\ude00 \ufffd\ud83d\ude00 \ufffd\u0041 \ufffdx"}'),
    (r'{"x": "\\ud800 \\\ud800 \u00e9"}', r'{"x": "\\ud800 \\\ufffd \u00e9"}'),
    (r'"{\"x\": \"\ud800\"}"', '{"x": "\ufffd"}'),
    (r'"{\"x\": \"\\ud800\"}"', r'{"x": "\ufffd"}'),
]


@pytest.mark.parametrize(("written", "arguments"), HALVES)
@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_halves_of_surrogate_pairs_in_arguments_are_replaced(name: str, written: str, arguments: str) -> None:
    text = WRITTEN[name]([f'{{"name": "f", "arguments": {written}}}'])
    assert_same_at_every_split(lambda: make(name), text)
    for texts in ([text], list(text)):
        assert summary(read(make(name), texts)) == {"reasoning": "", "content": "", "calls": [("f", arguments)]}
    json.loads(arguments)


def test_halves_of_surrogate_pairs_in_names_make_another_name() -> None:
    call = r'{"name": "f\ud800", "arguments": {}}'
    for name in ("hermes", "mistral"):
        assert summary(read(make(name), [WRITTEN[name]([call])]))["calls"] == [("f\ufffd", "{}")]
    for name in ("json", "llama3_json"):
        assert summary(read(make(name), [call])) == {"reasoning": "", "content": call, "calls": []}


def test_an_escape_is_given_when_it_is_whole() -> None:
    parser = make("hermes")
    parser.feed('<tool_call>{"name": "f", "arguments": {"x": "')
    given = [parser.feed(char) for char in r"\ud83d\ude00\ud83da"]
    assert [pieces for pieces in given if pieces] == [
        [CallArguments(r"\ud83d\ude00")],
        [CallArguments(r"\ufffda")],
    ]


def test_arguments_are_given_as_they_come() -> None:
    parser = make("hermes")
    assert parser.feed('Hm. <tool_call>{"name": "f", "argu') == [Content("Hm.")]
    assert parser.feed('ments": {"x') == [CallStart("f"), CallArguments('{"x')]
    assert parser.feed('": 1') == [CallArguments('": 1')]
    assert parser.feed("}}") == [CallArguments("}")]


FORMS = [(name, template) for name in sorted(TOOL_PARSERS) for template in ("", "[ARGS]")]


@pytest.mark.parametrize(("name", "template"), FORMS)
@pytest.mark.parametrize("count", [1, 3])
def test_calls_in_the_form_that_they_are_forced_into(name: str, template: str, count: int) -> None:
    form = TOOL_PARSERS[name].form(template)
    calls = [("get_weather", '{"x": [1]}'), ("f", "{}"), ("f", "{}")][:count]
    text = form.prefix + form.separator.join(form.begin(tool) + arguments + form.after for tool, arguments in calls) + form.suffix
    assert summary(read(make(name), [text])) == {"reasoning": "", "content": "", "calls": calls}
    assert_same_at_every_split(lambda: make(name), text)


def test_ids_of_calls() -> None:
    assert re.fullmatch("call_[0-9a-f]{24}", make("hermes").new_call_id())
    # Mistral's own templates refuse any other.
    assert re.fullmatch("[A-Za-z0-9]{9}", make("mistral").new_call_id())
    assert make("mistral").new_call_id() != make("mistral").new_call_id()


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call>{...}</tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<tool_call><function=f></tool_call>{% endif %}", None),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ('{{ tools }}<|start_header_id|>{"name": "f", "parameters": {}}', "llama3_json"),
        ("{{ tools }}<|start_header_id|>", None),
        ("{{ tools }}[TOOL_CALLS]<tool_call></tool_call>", None),
        ("<tool_call></tool_call>", None),
        ("{{ messages }}", None),
    ],
)
def test_a_template_that_writes_one_known_format_names_its_parser(template: str, name: str | None) -> None:
    assert parser_for_template(template) == name
