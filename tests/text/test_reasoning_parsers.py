"""Thinking told from the answer, wherever the text is cut."""

from __future__ import annotations

import pytest
from answer_pieces import assert_same_at_every_split, read, summary
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.reasoning.registry import REASONING_PARSERS

BARE, OPENED, CLOSED = "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"
CASES = [
    ("qwen3", BARE, "<think>\nHm.\n</think>\n\nYes.\n", "Hm.", "Yes.\n"),
    ("qwen3", BARE, "Yes, <think> is a tag.", "", "Yes, <think> is a tag."),
    ("qwen3", BARE, " Yes", "", " Yes"),
    ("qwen3", BARE, "<thi", "", "<thi"),
    ("qwen3", BARE, "<think>\n", "", ""),
    ("qwen3", BARE, "<think></think>Yes", "", "Yes"),
    ("qwen3", BARE, "<think>a </thin b", "a </thin b", ""),
    ("qwen3", OPENED, "Hm,\n <think> hm.\n</think>\nYes. </think>", "Hm,\n <think> hm.", "Yes. </think>"),
    ("qwen3", OPENED, "<think>Hm.</think>Yes.", "Hm.", "Yes."),
    ("qwen3", OPENED, "Hm. ", "Hm.", ""),
    ("qwen3", CLOSED, "Yes.", "", "Yes."),
    ("deepseek_r1", BARE, "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("deepseek_r1", BARE, "\n<think>Hm.</think>Yes.", "Hm.", "Yes."),
    ("deepseek_r1", BARE, "Hm. I was cut", "Hm. I was cut", ""),
    ("deepseek_r1", BARE, "<thi", "<thi", ""),
    ("deepseek_r1", CLOSED, "Yes.", "", "Yes."),
    ("deepseek_r1", "<think>a</think>" + OPENED, "Hm.</think> Yes.", "Hm.", "Yes."),
]


@pytest.mark.parametrize(("name", "prompt", "text", "reasoning", "content"), CASES)
def test_what_is_reasoning(name: str, prompt: str, text: str, reasoning: str, content: str) -> None:
    assert summary(read(REASONING_PARSERS[name](prompt), [text])) == {"reasoning": reasoning, "content": content, "calls": []}
    assert_same_at_every_split(lambda: REASONING_PARSERS[name](prompt), text)


def test_whether_an_answer_thinks_first() -> None:
    thinks = {name: [kind(prompt).thinks_first for prompt in (BARE, OPENED, CLOSED)] for name, kind in REASONING_PARSERS.items()}
    assert thinks == {"qwen3": [False, True, False], "deepseek_r1": [True, True, False]}


PARTS = ["<think>", "</think>", "<th", "</", " ", "\n", "a", "think>"]


@given(st.sampled_from(sorted(REASONING_PARSERS)), st.sampled_from([BARE, OPENED, CLOSED]), st.lists(st.sampled_from(PARTS), max_size=8))
def test_the_same_for_any_text(name: str, prompt: str, parts: list[str]) -> None:
    whole = read(REASONING_PARSERS[name](prompt), ["".join(parts)])
    assert read(REASONING_PARSERS[name](prompt), parts) == whole
    assert read(REASONING_PARSERS[name](prompt), list("".join(parts))) == whole
