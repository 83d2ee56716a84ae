"""What structured outputs do to a request: where it ends, what is refused, and what goes with it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.protocol.errors import InvalidRequestError


def generate(llm: LLM, structured: dict[str, Any] | None, **params: Any) -> Any:
    asked = None if structured is None else StructuredOutputsParams(**structured)
    given = {"temperature": 0, "max_tokens": 40, **params}
    return llm.generate("Once", SamplingParams(structured_outputs=asked, **given), use_tqdm=False)[0].outputs[0]


def test_the_text_ends_with_its_grammar(llm: LLM) -> None:
    output = generate(llm, {"choice": ["yes", "no"]})
    assert output.text in ("yes", "no")
    assert output.finish_reason == "stop"
    assert output.token_ids[-1] in llm._front.eos_token_ids


def test_logprobs_are_the_model_s_own(llm: LLM) -> None:
    """The likeliest first token without a grammar is still told, and the chosen one is far from it."""
    free = generate(llm, None, logprobs=1)
    held = generate(llm, {"regex": "[0-9]{5}"}, logprobs=1)
    assert next(iter(free.logprobs[0])) == free.token_ids[0]
    assert free.token_ids[0] in held.logprobs[0]
    assert held.logprobs[0][free.token_ids[0]].logprob == free.logprobs[0][free.token_ids[0]].logprob
    assert held.logprobs[0][held.token_ids[0]].rank > 1


def test_min_tokens_holds_back_the_end_where_the_text_can_go_on(llm: LLM) -> None:
    assert len(generate(llm, {"regex": "[a-z ]*"}, min_tokens=30).text) >= 30
    short = generate(llm, {"choice": ["ab"]}, min_tokens=20)
    assert (short.text, short.finish_reason) == ("ab", "stop")
    assert len(short.token_ids) == 20


def test_ignore_eos_adds_nothing_but_end_tokens(llm: LLM) -> None:
    output = generate(llm, {"choice": ["ab"]}, ignore_eos=True, max_tokens=12)
    assert (output.text, output.finish_reason, len(output.token_ids)) == ("ab", "length", 12)


def test_stop_strings_and_lengths_cut_the_text(llm: LLM) -> None:
    assert generate(llm, {"regex": "ab,cd,ef"}, stop=",c").text == "ab"
    cut = generate(llm, {"regex": "[a-z]{50}"}, max_tokens=3)
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 3)


def test_penalties_choose_among_what_may_come(llm: LLM) -> None:
    assert re.fullmatch("[ab]{20}", generate(llm, {"regex": "[ab]{20}"}, presence_penalty=2.0, repetition_penalty=2.0).text)


def test_json_is_json(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, "é"]}}, "required": ["a"], "additionalProperties": False}
    assert json.loads(generate(llm, {"json": schema, "disable_any_whitespace": True}).text)["a"] in (1, "é")


@pytest.mark.parametrize(
    ("structured", "message"),
    [
        ({"json": {"type": "objec"}}, "structured_outputs.json can't be used: Invalid type: objec"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "Unsatisfiable schema: minimum (5) is greater than maximum (3)"),
        ({"regex": "a(?=b)"}, "error: look-around, including look-ahead and look-behind, is not supported"),
        ({"grammar": 'start: "a"\n  | nowhere'}, 'unknown name: "nowhere"\n   1 | start: "a"\n              ^\n   2 |   | nowhere'),
    ],
)
def test_reasons_speak_of_what_was_given(llm: LLM, structured: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        generate(llm, structured)
    assert message in caught.value.message
    assert ("start:" in caught.value.message) is ("grammar" in structured)
    assert caught.value.message.endswith(message) or "grammar" in structured


@pytest.mark.parametrize(
    ("structured", "param"),
    [
        ({"json": {"type": "objec"}}, "json"),
        ({"regex": "a(?=b)"}, "regex"),
        ({"grammar": "start: nowhere"}, "grammar"),
        ({"choice": ["a" * 70_000]}, "choice"),
    ],
)
def test_refused_before_anything_runs(llm: LLM, structured: dict[str, Any], param: str) -> None:
    fine = SamplingParams(max_tokens=1)
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(**structured))
    with pytest.raises(InvalidRequestError, match=rf"^structured_outputs\.{param} (can't be used|makes a grammar of)") as caught:
        llm.generate(["a", "b"], [fine, bad], use_tqdm=False)
    assert caught.value.param == f"structured_outputs.{param}"
    assert not llm._core.has_work


def test_a_grammar_that_becomes_too_much_work_ends_its_request_only(llm: LLM) -> None:
    asked = StructuredOutputsParams(regex="((((a{0,20}){0,20}){0,20}){0,20}){0,20}")
    with pytest.raises(InvalidRequestError, match="structured_outputs: the text can't go on: lexer error"):
        llm.generate("x", SamplingParams(temperature=0, min_tokens=500, max_tokens=500, structured_outputs=asked), use_tqdm=False)
    assert generate(llm, {"choice": ["ab"]}).text == "ab"


def test_limits_are_the_engine_s(tiny_llama: Any) -> None:
    with LLM(str(tiny_llama), max_grammar_size="1KiB", max_compiled_grammars=2, quiet=True) as small:
        assert generate(small, {"choice": ["x" * 1000]}, max_tokens=1).text.startswith("x")
        with pytest.raises(InvalidRequestError, match=r"1025 bytes, which is over the limit of 1024 \(--max-grammar-size\)"):
            generate(small, {"choice": ["x" * 1001]})
        for text in ("a", "b", "c", "d"):
            assert generate(small, {"choice": [text]}).text == text
        assert len(small._front.grammars._compiler) == 2
        masks = small._core._executor._allocated()._masks  # type: ignore[attr-defined]
        assert len(masks._compiler) == 2
