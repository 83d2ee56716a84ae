"""The grammars of forced calls, of JSON beside calls, and of thinking before either: which texts they hold."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.structured_outputs import StructuredOutputsParams
from octavo.protocol.vocabulary import Vocabulary
from octavo.server.answer_grammar import answer_grammar
from octavo.server.schema_faults import Schemas
from octavo.server.tool_fields import FunctionDefinition
from octavo.server.tool_use import ToolUse
from octavo.structured_output.compiler import GrammarCompiler
from octavo.structured_output.grammar import grammar_of
from octavo.text.answer import CallArguments, CallStart
from octavo.text.reasoning.registry import REASONING_PARSERS
from octavo.text.tools.registry import TOOL_PARSERS

CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Bodø"]}}, "required": ["city"], "additionalProperties": False}
F, G = FunctionDefinition("f", parameters=CITY), FunctionDefinition("g")
EOS, CLOSE_ID, CALLS_ID = 256, 257, 258
BYTES = [bytes([byte]) for byte in range(256)]


def tools(parser: str = "hermes", *, forced: tuple[FunctionDefinition, ...] = (), several: bool = True, template: str = "") -> ToolUse:
    kind = TOOL_PARSERS[parser]
    return ToolUse([{}], (F, G), lambda: kind(["f", "g"]), kind.form(template), forced, several)


def context(special: dict[str, int]) -> Any:
    return SimpleNamespace(llm=SimpleNamespace(tokenizer=SimpleNamespace(special_tokens=special)))


@pytest.fixture(scope="module")
def holds() -> Callable[..., bool]:
    """Whether the grammar of some parameters holds a whole text; special tokens are written into it by their ids."""
    compilers: dict[tuple[int, ...], GrammarCompiler] = {}

    def check(params: StructuredOutputsParams | None, *parts: str | int, special: tuple[int, ...] = (EOS,)) -> bool:
        assert params is not None
        if special not in compilers:
            tokens = [*BYTES, b"<eos>", b"</think>", b"[TOOL_CALLS]"]
            compilers[special] = GrammarCompiler(Vocabulary(tokens, list(special), [EOS]), len(tokens))
        matcher = compilers[special].matcher(grammar_of(params))._matcher.deep_copy()
        ids = [token for part in parts for token in ([part] if isinstance(part, int) else part.encode())]
        return all(matcher.consume_token(token) for token in ids) and matcher.is_accepting()

    return check


WRITTEN = {
    ("hermes", ""): '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>',
    ("llama3_json", ""): '{"name": "f", "parameters": {"city": "Oslo"}}',
    ("json", ""): '[{"name": "f", "arguments": {"city": "Oslo"}}]',
    ("mistral", ""): '[TOOL_CALLS] [{"name": "f", "arguments": {"city": "Oslo"}}]',
    ("mistral", "[ARGS]"): '[TOOL_CALLS]f[ARGS]{"city": "Oslo"}',
}


@pytest.mark.parametrize(("parser", "template"), WRITTEN)
def test_a_forced_call_is_a_call_with_arguments_that_match(holds, parser: str, template: str) -> None:
    text = WRITTEN[parser, template]
    held = answer_grammar(context({}), None, tools(parser, forced=(F,), several=False, template=template), None)
    assert holds(held, text)
    assert holds(held, text.replace("Oslo", "Bodø"))
    for wrong in ("", "Hi", text[:-1], text + "x", text + text, text.replace("Oslo", "Rome"), text.replace("city", "town")):
        assert not holds(held, wrong), wrong
    assert not holds(held, text.replace('"f"', '"g"').replace("]f[", "]g["))


def test_the_arguments_of_a_forced_call_are_an_object_whatever_else_its_schema_allows(holds) -> None:
    function = FunctionDefinition("f", parameters={**CITY, "type": ["object", "null"]})
    held = answer_grammar(context({}), None, tools(forced=(function,)), None)
    assert holds(held, WRITTEN["hermes", ""])
    assert not holds(held, WRITTEN["hermes", ""].replace('{"city": "Oslo"}', "null"))


def test_several_calls_where_they_are_wanted(holds) -> None:
    call = WRITTEN["hermes", ""]
    other = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    held = answer_grammar(context({}), None, tools(forced=(F, G)), None)
    assert holds(held, f"{call}\n{other}\n{call}")
    assert holds(held, other)
    assert not holds(held, f"{call}\n")
    assert not holds(held, other.replace("{}", '{"a": 1}'))
    one = answer_grammar(context({}), None, tools(forced=(F, G), several=False), None)
    assert holds(one, call)
    assert not holds(one, f"{call}\n{other}")


def test_marks_that_are_special_tokens(holds) -> None:
    held = answer_grammar(context({"[TOOL_CALLS]": CALLS_ID}), None, tools("mistral", forced=(G,), template="[ARGS]"), None)
    special = (EOS, CALLS_ID)
    assert holds(held, CALLS_ID, "g[ARGS]{}", special=special)
    assert not holds(held, "[TOOL_CALLS]g[ARGS]{}", special=special)


def test_json_or_calls(holds) -> None:
    asked = StructuredOutputsParams(json=CITY)
    held = answer_grammar(context({}), asked, tools(), None)
    assert holds(held, '{"city": "Oslo"}')
    assert holds(held, WRITTEN["hermes", ""])
    assert not holds(held, "Hi")
    # Without tools it stays what it was, and so does what leaves nothing open.
    assert answer_grammar(context({}), asked, ToolUse([]), None) is asked
    own = StructuredOutputsParams(grammar='start: "a"')
    assert answer_grammar(context({}), own, tools(), None) is own
    assert answer_grammar(context({}), None, tools(), None) is None
    with pytest.raises(InvalidRequestError, match="leave no room") as error:
        answer_grammar(context({}), asked, tools(forced=(F,)), None)
    assert error.value.param == "tool_choice"


FREE = {
    "hermes": ["", "Hi", "<tool_cal", '{"a": 1}', "Let me. {call}", "{call}", "{call}\nand {call} done", "<tool>"],
    "mistral": ["", "Hi", "[TOOL_CALL", "[1]", "Let me. {call}", "{call} done"],
    "llama3_json": ["", "Hi", " {", "[1, 2]", "[", "{call}", "{call}; {call}", "\n{call}", "<|python_tag|>{call}", "<|python_tag|>1"],
    "json": ["", "Hi {", "[1, 2]", "{call}", " {call}"],
}


@pytest.mark.parametrize("thinks", ["", "<think>", "?"])
@pytest.mark.parametrize(("parser", "template"), WRITTEN)
def test_free_text_with_strict_calls(holds, parser: str, template: str, thinks: str) -> None:
    """Where the model may choose to call: any text, but no call of a strict function whose arguments don't match its schema."""
    kind = TOOL_PARSERS[parser]
    strict, loose = FunctionDefinition("f", parameters=CITY, strict=True), FunctionDefinition("g", parameters=CITY)
    use = ToolUse([{}], (strict, loose), None, kind.form(template), strict="tools.0.function.strict")
    thinking = {"": None, "<think>": REASONING_PARSERS["deepseek_r1"]("<think>"), "?": REASONING_PARSERS["qwen3"]("assistant")}[thinks]
    lead = {"": "", "<think>": "Hm, <tool_call>?</think>\n\n", "?": "<think>[TOOL_CALLS]</think>\n"}[thinks]
    held = answer_grammar(context({}), None, use, thinking)
    call = WRITTEN[parser, template]
    texts = [text.replace("{call}", call) for text in FREE[parser] if text != " {"]
    for text in texts:
        assert holds(held, lead + text), text
        if thinks == "?":
            assert holds(held, text), text
    other = call.replace('"f"', '"g"').replace("]f[", "]g[").replace("Oslo", "Rome")
    assert holds(held, lead + other)
    for wrong in (call.replace("Oslo", "Rome"), call.replace("city", "town"), call.replace('"f"', '"h"').replace("]f[", "]h[")):
        assert not holds(held, lead + wrong), wrong
        assert not holds(held, f"{lead}\n{wrong}"), wrong
    if use.form.trigger:
        for wrong in ("Hi " + call.replace("Oslo", "Rome"), f"{call} {call.replace('Oslo', 'Rome')}", use.form.trigger):
            assert not holds(held, lead + wrong), wrong
    else:
        for wrong in (" {", '[ {"name": "f"', f"<|python_tag|> {call.replace('Oslo', 'Rome')}"):
            assert parser == "json" or not holds(held, lead + wrong), wrong


def test_one_strict_call_at_most(holds) -> None:
    strict = FunctionDefinition("f", parameters=CITY, strict=True)
    call = WRITTEN["hermes", ""]
    use = ToolUse([{}], (strict,), None, TOOL_PARSERS["hermes"].form(""), several=False, strict="tools.0.function.strict")
    held = answer_grammar(context({}), None, use, None)
    assert holds(held, f"Hi {call} done")
    assert not holds(held, f"{call}\n{call}")


@pytest.mark.parametrize("template", ["", "[ARGS]"])
def test_a_special_token_begins_strict_calls(holds, template: str) -> None:
    special, ids = {"[TOOL_CALLS]": CALLS_ID}, (EOS, CALLS_ID)
    strict = FunctionDefinition("f", parameters=CITY, strict=True)
    use = ToolUse([{}], (strict, G), None, TOOL_PARSERS["mistral"].form(template), strict="tools.0.function.strict")
    held = answer_grammar(context(special), None, use, None)
    call = WRITTEN["mistral", template].removeprefix("[TOOL_CALLS]")
    assert holds(held, "Hi [TOOL_CALLS is written here.", special=ids)
    assert holds(held, "Hi ", CALLS_ID, call, " done", special=ids)
    assert not holds(held, "Hi ", CALLS_ID, special=ids)
    assert not holds(held, CALLS_ID, call.replace("Oslo", "Rome"), special=ids)


@pytest.mark.parametrize(
    ("parser", "template", "mark"),
    [(*key, "[TOOL_CALLS]") for key in WRITTEN if key[0] == "mistral"]
    + [("hermes", "", "<tool_call>"), ("llama3_json", "", "<|python_tag|>")],
)
def test_other_tokens_do_not_spell_the_special_one_of_strict_calls(holds, parser: str, template: str, mark: str) -> None:
    ids = (EOS, CALLS_ID)
    strict = FunctionDefinition("f", parameters=CITY, strict=True)
    use = ToolUse([{}], (strict, G), None, TOOL_PARSERS[parser].form(template), strict="tools.0.function.strict")
    held = answer_grammar(context({mark: CALLS_ID}), None, use, None)
    call = WRITTEN[parser, template].removeprefix(mark)
    assert holds(held, CALLS_ID, call, special=ids)
    assert holds(held, f"Hi {mark[:-1]} {call}", special=ids)
    for wrong in (mark + call.replace("Oslo", "Rome"), f"\n{mark}{call}"):
        assert not holds(held, wrong, special=ids), wrong


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("between", ["", " ", ", ", "]\n"])
@pytest.mark.parametrize("template", ["", "[ARGS]"])
def test_what_follows_a_strict_call_is_none_without_a_mark(holds, template: str, between: str, several: bool) -> None:
    """The grammar lets it be text, so it must be read as text."""
    kind = TOOL_PARSERS["mistral"]
    use = ToolUse([{}], (FunctionDefinition("f", parameters=CITY, strict=True),), None, kind.form(template), (), several, "tools.0")
    text = WRITTEN["mistral", template] + between + '{"name": "f", "arguments": {"evil": 1}}'
    assert holds(answer_grammar(context({}), None, use, None), text)
    parser = kind(["f"])
    pieces = [*parser.feed(text), *parser.finish()]
    assert [piece.name for piece in pieces if isinstance(piece, CallStart)] == ["f"]
    assert "evil" not in "".join(piece.text for piece in pieces if isinstance(piece, CallArguments))


def test_a_grammar_of_the_whole_text_leaves_no_room_for_strict_calls() -> None:
    strict = FunctionDefinition("f", parameters=CITY, strict=True)
    use = ToolUse([{}], (G, strict), None, TOOL_PARSERS["hermes"].form(""), strict="tools.1.function.strict")
    with pytest.raises(InvalidRequestError, match="whole text") as error:
        answer_grammar(context({}), StructuredOutputsParams(grammar='start: "a"'), use, None)
    assert error.value.param == "tools.1.function.strict"


@pytest.mark.parametrize("is_special", [False, True])
def test_thinking_is_free(holds, is_special: bool) -> None:
    special = {"</think>": CLOSE_ID} if is_special else {}
    end: str | int = CLOSE_ID if is_special else "</think>"
    ids = (EOS, CLOSE_ID) if is_special else (EOS,)
    asked = StructuredOutputsParams(choice=["yes", "no"])
    always = answer_grammar(context(special), asked, ToolUse([]), REASONING_PARSERS["deepseek_r1"]("<think>"))
    assert holds(always, "Hm, {yes}? </thin ", end, "\n\nyes", special=ids)
    assert not holds(always, "Hm. yes", special=ids)
    assert not holds(always, "Hm.", end, "\nperhaps", special=ids)
    maybe = answer_grammar(context(special), asked, ToolUse([]), REASONING_PARSERS["qwen3"]("assistant"))
    assert holds(maybe, "<think>\nHm.\n", end, "\n\nno", special=ids)
    assert holds(maybe, "no", special=ids)
    assert not holds(maybe, "Hm.", end, "no", special=ids)


def test_an_end_of_the_thinking_that_is_a_special_token_is_not_spelled_by_others(holds) -> None:
    """Its parser would end the thinking there, and take what the grammar holds for thinking for the answer."""
    ids, asked = (EOS, CLOSE_ID), StructuredOutputsParams(choice=["yes", "no"])
    for name, prompt, lead in (("deepseek_r1", "<think>", ""), ("qwen3", "assistant", "<think>")):
        held = answer_grammar(context({"</think>": CLOSE_ID}), asked, ToolUse([]), REASONING_PARSERS[name](prompt))
        assert holds(held, f"{lead}Hm </think", CLOSE_ID, "yes", special=ids)
        assert not holds(held, f"{lead}Hm</think>\nperhaps", CLOSE_ID, "yes", special=ids)


@pytest.mark.parametrize("parser", ["json", "hermes"])
@pytest.mark.parametrize("special", [{}, {"<think>": CLOSE_ID}])
def test_thinking_in_the_middle_of_free_text_is_none(holds, parser: str, special: dict[str, int]) -> None:
    """An answer that may think spells no beginning of thinking but that which the grammar knows of: calls may follow the end."""
    use = ToolUse([{}], (F, G), None, TOOL_PARSERS[parser].form(""), strict="tools.0.function.strict")
    held = answer_grammar(context(special), None, use, REASONING_PARSERS["qwen3"]("assistant"))
    ids = (EOS, CLOSE_ID) if special else (EOS,)
    assert holds(held, "Hi <think>", special=ids)
    assert not holds(held, " \n<think>Hm", special=ids)
    if special:
        assert not holds(held, "<think>Hm</think>Hi", special=ids)


def test_calls_after_thinking(holds) -> None:
    held = answer_grammar(context({}), None, tools(forced=(F,)), REASONING_PARSERS["deepseek_r1"]("<think>"))
    assert holds(held, f"Hm.</think>\n\n{WRITTEN['hermes', '']}")
    assert not holds(held, WRITTEN["hermes", ""])


def test_the_schema_at_fault_is_named() -> None:
    compiler = GrammarCompiler(Vocabulary([*BYTES, b"<eos>"], [EOS], [EOS]), len(BYTES) + 1)
    wrong = {"properties": {"a": {"type": "x"}}}
    asked = StructuredOutputsParams(json={"type": "array"})
    cases = [
        (StructuredOutputsParams(json={"type": "x"}), (F, G), "response_format.json_schema.schema"),
        (asked, (F, FunctionDefinition("g", parameters=wrong)), "tools.4.function.parameters"),
        (asked, (FunctionDefinition("f", parameters=wrong), G), "tools.2.function.parameters"),
        (None, (F, FunctionDefinition("g", parameters=wrong, strict=True)), "tools.4.function.parameters"),
    ]
    for form, functions, field in cases:
        use = ToolUse([{}], functions, None, TOOL_PARSERS["hermes"].form(""), strict="" if form else "tools.4.function.strict")
        made = answer_grammar(context({}), form, use, None)
        assert made is not None
        assert made.grammar is not None
        with pytest.raises(InvalidRequestError) as refused:
            compiler.check(made.grammar)
        error = InvalidRequestError(f"structured_outputs.grammar {refused.value.message}", param="structured_outputs.grammar")
        Schemas(made.grammar, [2, 4], "response_format.json_schema.schema").blame(error)
        assert (error.param, error.message) == (field, f"{field} can't be used: Invalid type: x")
