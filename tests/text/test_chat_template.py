from __future__ import annotations

import itertools
import re
import time
import types
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from patience import patient

from octavo.protocol.errors import ConfigError, InvalidRequestError
from octavo.text import template_sandbox
from octavo.text.chat_template import choose_template, load_chat_template, render_chat, variables_of
from octavo.text.template_sizes import MAX_RENDERED_CHARS
from octavo.text.tokenizer import Tokenizer

USER = [{"role": "user", "content": "Hi"}]


def render(template: str, messages: Any = USER, **variables: Any) -> str:
    return render_chat(template, messages, add_generation_prompt=True, variables=variables)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2", "gguf-tiny-llama", "tiny-mistral"])
def test_a_models_template_renders(name: str, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of(name)
    bos = "<s>" if name == "tiny-mistral" else ""
    conversation = [{"role": "system", "content": "Be brief."}, *USER]
    expected = f"{bos}<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert tokenizer.apply_chat_template(conversation) == expected + "<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(conversation, add_generation_prompt=False) == expected
    assert tokenizer.apply_chat_template(USER, chat_template="{{ bos_token }}|{{ eos_token }}|{{ x }}", x=1) == (
        f"{tokenizer.bos_token or ''}|{tokenizer.eos_token}|1"
    )


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(InvalidRequestError, match="--chat-template"):
        choose_template(None, {}, {})
    with pytest.raises(InvalidRequestError, match="only for rag"):
        choose_template(None, {"rag": ""}, {})


def test_tools_choose_the_template_for_tools() -> None:
    named = {"tool_use": "tools"}
    assert choose_template("plain", named, {}) == "plain"
    assert choose_template("plain", named, {"tools": None}) == "plain"
    assert choose_template("plain", named, {"tools": [1]}) == "tools"


def continued(template: str, messages: Any) -> str:
    return render_chat(template, messages, add_generation_prompt=False, continue_final_message=True, variables={})


def test_a_message_that_is_continued_ends_the_prompt() -> None:
    messages = [*USER, {"role": "assistant", "content": " Hi, Hi "}]
    assert continued("{% for m in messages %}<{{ m.content }}>{% endfor %}!", messages) == "<Hi>< Hi, Hi "
    assert continued("{% for m in messages %}<{{ m.content | trim | upper }}>{% endfor %}!", messages) == "<HI><HI, HI "
    parts = "{% for m in messages %}<{% for p in m.content %}{{ p.text }}{% endfor %}>{% endfor %}"
    assert continued(parts, messages) == "<Hi>< Hi, Hi "


def test_what_can_not_be_continued() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    for messages in ([called], [{"role": "user", "content": ""}], [{"role": "user", "content": []}]):
        with pytest.raises(InvalidRequestError, match="no content") as error:
            continued("{{ messages }}", messages)
        assert error.value.param == "continue_final_message"
    with pytest.raises(InvalidRequestError, match="does not write"):
        continued("{{ messages[0].role }}", USER)
    with pytest.raises(InvalidRequestError, match="begins a new one"):
        render_chat("x", USER, add_generation_prompt=True, continue_final_message=True, variables={})


def test_what_a_template_takes_from_outside() -> None:
    assert variables_of("{% if tools is defined %}{% for m in messages %}{{ m }}{% endfor %}{% endif %}") == {"tools", "messages"}


def test_templates_find_what_they_expect() -> None:
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{{ {'b': '<é>', 'a': 1} | tojson }}") == '{"b": "<é>", "a": 1}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert render("{{ strftime_now('%Y') }}") in (str(datetime.now().year), str(datetime.now().year - 1))
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "Hi"
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc\n") == "a\nb\nc"
    assert render("{{ tools }}{{ documents }}{{ nothing }}{{ '<b>' }}") == "NoneNone<b>"


def test_the_templates_own_words_reach_the_user() -> None:
    template = "{{ raise_exception('Roles must alternate: ' + messages[0].role) }}"
    with pytest.raises(InvalidRequestError, match="refuses these messages: Roles must alternate: user") as caught:
        render(template)
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[0].name.first }}", "has no attribute 'name'"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
        ("{% if %}", "does not parse"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% set x = messages.append(1) %}", "unsafe"),
        ("{{ 'x' * 10**12 }}", "too long"),
        ("{{ [1] * 2000000 }}", "too long"),
        ("{{ 10**100000 }}", "too large"),
        ("{{ '%0300000000d' % 1 }}", "too long"),
        ("{{ '%(a(b))300000000d' % {'a(b)': 1} }}", "too long"),
        ("{{ '%*d' % (300000000, 1) }}", "too long"),
        ("{{ '%300000000d' | format(1) }}", "too long"),
        ("{{ 'a' | center(300000000) }}", "too long"),
        ("{{ 'a'.center(300000000) }}", "too long"),
        ("{{ 'a'.ljust(300000000) }}", "too long"),
        ("{{ '{:>300000000}'.format(1) }}", "too long"),
        ("{{ '{:>{}}'.format(1, 300000000) }}", "too long"),
        ("{{ ('{:>9000000}' * 2).format(1, 1) }}", "too long"),
        ("{{ '{a:>9000000}{a:>9000000}'.format_map({'a': 1}) }}", "too long"),
        ("{{ ('{:>300000000}' | safe).format(1) }}", "too long"),
        ("{{ 'a' | indent(300000000, true) }}", "too long"),
        ("{{ ('a' * 100000) | replace('a', 'b' * 100000) }}", "too long"),
        ("{{ ('a' * 100000).replace('a', 'b' * 100000) }}", "too long"),
        ("{{ (['a' * 100000] * 1000) | join }}", "too long"),
        ("{{ 'b'.join(['a' * 100000] * 1000) }}", "too long"),
        ("{{ [['a' * 100000] * 1000] | join }}", "too long"),
        ("{{ ([['a' * 100000] * 1000] | string) | length }}", "too long"),
        ("{{ ['a' * 100000] * 1000 }}", "too long"),
        ("{% set x = ['a' * 100000] * 1000 %}{% set y = x ~ 'a' %}", "too long"),
        ("{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}", "too long"),
        ("{{ ('b' * 100000).join('a' * 1000) }}", "too long"),
        ("{{ ('b' * 100000).join(range(1000) | map('string')) }}", "too long"),
        ("{{ ('a' * 100000).translate({97: 'b' * 100000}) }}", "too long"),
        ("{{ ('%(a)s' * 1000) % {'a': 'b' * 100000} }}", "too long"),
        ("{{ ('%(a)s' * 1000) | format(a='b' * 100000) }}", "too long"),
        ("{{ '%s' % (['a' * 100000] * 1000,) }}", "too long"),
        ("{{ [1] | slice(300000000) | list }}", "too long"),
        ("{{ [1] | tojson(indent=300000000) }}", "too long"),
        ("{{ (range(10000) | list) | tojson(indent=10000) }}", "too long"),
        ("{{ [1, 2] | tojson(separators=('a' * 16000000, ':')) }}", "too long"),
        ("{{ ([[1] * 1000] * 10000) | sum(start=[]) | length }}", "too long"),
        ("{% set n = namespace(x=[1]) %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}", "too long"),
        ("{{ ('a ' * 100000) | wordwrap(1, true, 'b' * 100000) }}", "too long"),
        ("{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}", "too large"),
        ("{{ (['a' * 100000] * 1000) | pprint | length }}", "too long"),
        ("{{ {'a': ['a' * 100000] * 1000} | xmlattr | length }}", "too long"),
        ("{{ lipsum(n=100000000) }}", "undefined"),
        ("{{ [1] | batch(300000000, 'x') | list }}", "too long"),
        ("{{ (1).to_bytes(300000000, 'big') }}", "too long"),
        ("{% set n = namespace(x='aaaa') %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}", "too long"),
        ("{% set n = namespace(x='aaaa') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "too long"),
        ("{% for i in range(100000) %}{% for j in range(100000) %}{{ i }} and so on{% endfor %}{% endfor %}", "writes more than"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_templates_that_fail_are_a_clear_error(template: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in R %}{% for b in R %}{% endfor %}{% endfor %}",
        "{% for a in R if R | sum < 0 %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) | length }}{{ f(n - 1) }}{% endif %}{% endmacro %}{% set x = f(60) %}",
        "{{ ([R] * 100000) | map('sum') | list | length }}",
        "{{ ([100000] * 100000) | select('in', R | list) | list | length }}",
    ],
)
def test_templates_that_never_end_are_stopped(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.2)
    started = time.monotonic()
    with pytest.raises(InvalidRequestError, match=re.escape("fails on these messages: it runs for more than 0.2 seconds")):
        render(template.replace("R", "range(100000)"))
    assert time.monotonic() - started < patient(20)


def test_each_rendering_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by three seconds whenever it is looked at: at the start, and at each turn of a loop."""
    looks = itertools.count()
    monkeypatch.setattr(template_sandbox, "time", types.SimpleNamespace(monotonic=lambda: 3.0 * next(looks)))
    for _ in range(5):
        assert render("{% for i in range(3) %}{{ i }}{% endfor %}") == "012"
    with pytest.raises(InvalidRequestError, match="it runs for more than 10 seconds"):
        render("{% for i in range(4) %}{{ i }}{% endfor %}")


def test_an_error_without_words_is_told_by_its_kind() -> None:
    def fail() -> None:
        raise MemoryError

    with pytest.raises(InvalidRequestError, match="fails on these messages: MemoryError"):
        render("{{ fail() }}", fail=fail)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ '%05d %s' % (7, 'a') }} {{ '%s, %s' | format('a', 2) }}", "00007 a a, 2"),
        ("{{ '{:>3}|{a:<{w}}|{}'.format(1, 2, a='x', w=3) }} {{ '{a}'.format_map({'a': 5}) }}", "  1|x  |2 5"),
        ("{{ ('<{}>' | safe).format('<') }}", "<&lt;>"),
        ("{{ 'a' | center(5) }}{{ 'b'.ljust(3) }}{{ 'x\\ny' | indent(2, first=true) }}", "  a  b    x\n  y"),
        ("{{ 'aba' | replace('a', 'cc') }}{{ 'aba'.replace('a', 'c') }}{{ 'aaa' | replace('a', 'b', 1) }}", "ccbcccbcbaa"),
        ("{{ [1, 'a'] | join('-') }}{{ ','.join(['x', 'y']) }}{{ [{'k': 1}, {'k': 2}] | join('+', attribute='k') }}", "1-ax,y1+2"),
        ("{{ [1, 2, 3] | batch(2, 0) | list }}{{ 7 % 4 }}{{ 'a' + 'b' }}{{ [1] + [2] }}", "[[1, 2], [3, 0]]3ab[1, 2]"),
        (
            "{{ [1, [2, 'b']] | join('+') }}{{ '-'.join('abc') }}{{ '-'.join({'a': 1}) }}{{ 'ab'.translate({97: 'x'}) }}",
            "1+[2, 'b']a-b-caxb",
        ),
        ("{{ [1, 2, 3] | slice(2) | list }}{{ [[1], [2]] | sum(start=[]) }}{{ [{'k': 1}] | sum('k') }}", "[[1, 2], [3]][1, 2]1"),
        ("{{ 'ab cd' | wordwrap(2, wrapstring='|') }}{{ [1, {'a': 2}] | tojson(indent=1) }}", 'ab|cd[\n 1,\n {\n  "a": 2\n }\n]'),
        ("{{ [1] | string | upper }}{{ 5 | string }}{{ none | upper }}{{ '%(a)s' | format(a=[1]) }}{{ 3 * 4 }}", "[1]5NONE[1]12"),
        ("{{ 'a' ~ 1 ~ none ~ missing ~ [2] }}", "a1None[2]"),
    ],
)
def test_bounded_operations_are_those_of_jinja(template: str, text: str) -> None:
    assert render(template) == text


def test_long_but_sound_output_passes() -> None:
    content = "x" * (MAX_RENDERED_CHARS // 2)
    assert len(render("{{ messages[0].content }}", [{"role": "user", "content": content}])) == len(content)


def test_variables_cannot_replace_the_messages() -> None:
    with pytest.raises(InvalidRequestError, match="chat_template_kwargs can't set messages"):
        render_chat("", USER, add_generation_prompt=True, variables={"messages": []})


PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
LOOP = "{% for m in messages %}{% for part in m['content'] %}<{{ part.text }}>{% endfor %}{% endfor %}"
LOOP_BY_NAME = "{% set content = messages[0].content | list %}{% for part in content %}<{{ part['text'] }}>{% endfor %}"
EITHER = "{% set c = messages[0].content %}{% if c is string %}{{ c }}{% else %}{% for p in c %}<{{ p.text }}>{% endfor %}{% endif %}"


def test_parts_become_text_for_a_template_that_reads_text() -> None:
    assert render("{{ messages[0]['content'] }}", PARTS) == "one\ntwo"
    assert render("{{ messages[0]['content'] }}", [{"role": "user", "content": []}]) == ""


@pytest.mark.parametrize("template", [LOOP, LOOP_BY_NAME])
def test_text_becomes_a_part_for_a_template_that_reads_parts(template: str) -> None:
    assert render(template, PARTS) == "<one><two>"
    assert render(template) == "<Hi>"


def test_a_template_that_reads_both_gets_what_was_sent() -> None:
    assert render(EITHER, PARTS) == "<one><two>"
    assert render(EITHER) == "Hi"


def test_an_assistants_content_may_be_missing() -> None:
    template = "{{ messages[0].content is none }}{{ messages[0].content }}"
    assert render(template, [{"role": "assistant", "content": None}]) == "False"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    assert render(template, [{"role": "assistant", "tool_calls": [call]}]) == "TrueNone"
    arguments = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert render(arguments, [{"role": "assistant", "tool_calls": [call]}]) == '{"a": [1]}'
    assert call["function"]["arguments"] == '{"a": [1]}'


@pytest.mark.parametrize(
    ("messages", "message", "param"),
    [
        ([], "messages is empty", "messages"),
        ("Hi", "messages must be a list", "messages"),
        (["Hi"], "messages[0] must be an object", "messages[0]"),
        ([*USER, {"content": "a"}], "messages[1].role: is required.", "messages[1].role"),
        (
            [{"role": "", "content": "a"}],
            "messages[0].role: must be one of ",
            "messages[0].role",
        ),
        ([{"role": "user"}], "messages[0].content is missing", "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content is missing", "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content must be text or a list", "messages[0].content"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0] must be an object with a type", "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "of type 'image_url'; this model takes text", "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "of type 'input_audio'", "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0] has no text", "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}],
            "messages[0].content[0].cache_control is not known",
            "messages[0].content[0].cache_control",
        ),
        ([{"role": "assistant", "tool_calls": 1}], "messages[0].tool_calls must be a list", "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [1]}], "messages[0].tool_calls[0] has no function", "messages[0].tool_calls[0]"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
            "arguments is not JSON",
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": '{"a": -Infinity}'}}]}],
            "arguments is not JSON: -Infinity is no JSON",
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_bad_messages_name_the_field(messages: Any, message: str, param: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)) as caught:
        render("{{ messages }}", messages)
    assert caught.value.param == param


def test_a_template_can_come_from_a_file_or_as_text(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages[0].content }}", "utf-8")
    assert load_chat_template(str(file)) == "{{ messages[0].content }}"
    assert load_chat_template("{{ 1 }}") == "{{ 1 }}"
    assert load_chat_template("{{ 1 }}" + "x" * 100_000)[-1] == "x"
    with pytest.raises(ConfigError, match=r"gone\.jinja is no readable file"):
        load_chat_template("gone.jinja")
    file.write_text("{% if %}", "utf-8")
    with pytest.raises(ConfigError, match="does not parse") as caught:
        load_chat_template(str(file))
    assert caught.value.param == "chat_template"
