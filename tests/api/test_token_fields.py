"""`logit_bias`, `allowed_token_ids` and `bad_words`: each changes what is chosen, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.api.front_end import bad_words_as_tokens
from octavo.protocol.errors import InvalidRequestError
from octavo.text.tokenizer import Tokenizer

PROMPT = "Once upon a time"


@pytest.mark.parametrize("repetition", [1e6, 1e-6])
def test_the_greatest_penalties_overflow_nothing(llm: LLM, repetition: float) -> None:
    """Also beside the greatest biases, and divided by the lowest temperature."""
    biases = {token: 100.0 if token % 2 else -100.0 for token in range(3, 40)}
    for temperature in (0.0, 0.01):
        for penalty in (2.0, -2.0):
            fields = {"frequency_penalty": penalty, "presence_penalty": penalty, "repetition_penalty": repetition}
            params = SamplingParams(max_tokens=20, temperature=temperature, seed=1, ignore_eos=True, logit_bias=biases, **fields)
            (output,) = llm.generate("Hello Hello", params, use_tqdm=False)
            assert len(output.outputs[0].token_ids) == 20


def generate(llm: LLM, **params: Any) -> Any:
    return llm.generate(PROMPT, SamplingParams(**{"temperature": 0, "max_tokens": 12, **params}), use_tqdm=False)[0].outputs[0]


@pytest.fixture(scope="module")
def free(llm: LLM) -> Any:
    return generate(llm, logprobs=3)


def test_a_bias_lifts_a_token_and_sinks_another(llm: LLM, free: Any) -> None:
    first, second = free.token_ids[0], list(free.logprobs[0])[1]
    gap = free.logprobs[0][first].logprob - free.logprobs[0][second].logprob
    assert generate(llm, logit_bias={second: gap + 0.01}).token_ids[0] == second
    assert generate(llm, logit_bias={second: gap - 0.01}).token_ids == free.token_ids
    assert generate(llm, logit_bias={first: -gap - 0.01}).token_ids[0] == second
    assert generate(llm, logit_bias={}).token_ids == free.token_ids
    assert set(generate(llm, logit_bias={7: 100}, temperature=1, seed=1).token_ids) == {7}


def test_logprobs_do_not_know_of_it(llm: LLM, free: Any) -> None:
    second = list(free.logprobs[0])[1]
    for fields in ({"logit_bias": {second: 50.0}}, {"allowed_token_ids": [second]}):
        output = generate(llm, logprobs=3, max_tokens=1, **fields)
        assert output.token_ids == [second]
        assert {token: entry.logprob for token, entry in output.logprobs[0].items()} == {
            token: entry.logprob for token, entry in free.logprobs[0].items()
        }


def test_a_bias_comes_before_penalties(llm: LLM) -> None:
    """The repetition penalty divides what a bias has lifted above 0: 100 and a logit are halved, and another bias of 99 wins."""
    output = generate(llm, logit_bias={7: 100, 9: 99}, repetition_penalty=2.0, max_tokens=2)
    assert output.token_ids == [7, 9]


def test_only_allowed_tokens(llm: LLM) -> None:
    assert set(generate(llm, allowed_token_ids=[5, 300, 411], ignore_eos=True, temperature=1, seed=3).token_ids) <= {5, 300, 411}
    assert generate(llm, allowed_token_ids=[8]).token_ids == [8] * 12


def test_bad_words_are_never_written(llm: LLM, free: Any) -> None:
    tokenizer = llm.get_tokenizer()
    single = tokenizer.token_text(free.token_ids[0])
    without = generate(llm, bad_words=[single])
    assert free.token_ids[0] not in without.token_ids


def test_a_word_of_several_tokens_is_cut_at_its_last(llm: LLM) -> None:
    """The tokens of the word may stand alone; only all of them in a row may not. The prompt is none of the text."""
    tokenizer = llm.get_tokenizer()
    ids = next(ids for text in ("abc", "hello", "what", "zzz") if len(ids := tokenizer.encode(text, add_special_tokens=False)) > 1)
    word = tokenizer.decode(ids)
    bias = {token: 100.0 - index for index, token in enumerate(dict.fromkeys(ids))}
    grammar = StructuredOutputsParams(choice=[word, word[:-1] + "!"])
    assert generate(llm, structured_outputs=grammar, logit_bias=bias).text == word
    assert generate(llm, structured_outputs=grammar, logit_bias=bias, bad_words=[word]).token_ids[: len(ids)] != ids


def test_with_min_tokens_and_with_a_grammar(llm: LLM) -> None:
    (end,) = llm._front.eos_token_ids
    assert generate(llm, allowed_token_ids=[end, 8], logit_bias={end: 50}, min_tokens=3).token_ids == [8, 8, 8, end]
    digits = [llm.get_tokenizer().encode(d, add_special_tokens=False)[-1] for d in "37"]
    held = generate(llm, structured_outputs=StructuredOutputsParams(regex="[0-9]{4}"), allowed_token_ids=[*digits, end])
    assert set(held.text) <= {"3", "7"}
    assert len(held.text) == 4


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"allowed_token_ids": [8], "bad_words": "the text of 8"}, "allowed_token_ids and bad_words leave"),
        (
            {"structured_outputs": StructuredOutputsParams(choice=["q"]), "allowed_token_ids": [2]},
            "structured_outputs and allowed_token_ids leave",
        ),
    ],
)
def test_where_nothing_is_left_the_request_fails_with_the_names(llm: LLM, fields: dict[str, Any], names: str) -> None:
    if "bad_words" in fields:
        fields = {**fields, "bad_words": [llm.get_tokenizer().token_text(8)]}
    with pytest.raises(InvalidRequestError, match=f"{names} no token to choose at position"):
        generate(llm, **fields)
    assert not llm._core.request_ids


def test_allowed_tokens_that_all_end_the_text_need_no_min_tokens(llm: LLM) -> None:
    ends = [2, 9]
    with pytest.raises(InvalidRequestError, match="min_tokens leaves no token to choose: every one of allowed_token_ids") as caught:
        generate(llm, allowed_token_ids=ends, stop_token_ids=[9], min_tokens=1)
    assert caught.value.param == "min_tokens"
    assert len(generate(llm, allowed_token_ids=ends, stop_token_ids=[9]).token_ids) == 1


def test_together_as_alone(llm: LLM) -> None:
    """In one batch each has its own."""
    params = [
        SamplingParams(temperature=0.9, seed=index, max_tokens=10, **fields)
        for index, fields in enumerate(
            [{}, {"logit_bias": {9: 5.0, 11: -100.0}}, {"allowed_token_ids": [4, 5, 6, 7]}, {"bad_words": ["a", "the", "once upon"]}, {}]
        )
    ]
    together = llm.generate([PROMPT] * len(params), params, use_tqdm=False)
    alone = [llm.generate(PROMPT, each, use_tqdm=False)[0] for each in params]
    assert [output.outputs[0].token_ids for output in together] == [output.outputs[0].token_ids for output in alone]


def test_bad_words_as_vllm_tokenizes_them(llm: LLM) -> None:
    class Words(Tokenizer):
        def __init__(self) -> None:
            pass

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            assert not add_special_tokens
            return {"cat": [1], " cat": [2], "longer": [3, 4], " longer": [5], "same": [6], " same": [6], " ": [7], "  ": [8]}[text]

    assert bad_words_as_tokens(["cat", " longer", "same", " "], Words()) == [[1], [2], [3, 4], [6], [7], [8]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bad_words": ["x"] * 1025}, "bad_words may hold at most 1024 words, got 1025"),
        ({"bad_words": ["x" * 1001]}, "every one of bad_words must be at most 1000 characters long, got 1001"),
        ({"bad_words": ["x" * 1000] * 66}, "bad_words together may have at most 65536 characters, got 66000"),
        ({"logit_bias": [1]}, "logit_bias must be a dictionary of token ids and numbers, got"),
        ({"logit_bias": {-1: 1.0}}, "every id of logit_bias must be an integer of at least 0, got -1"),
        ({"logit_bias": {"1": 1.0}}, "every id of logit_bias must be an integer"),
        ({"logit_bias": {1: "a"}}, "every value of logit_bias must be a number, got 'a'"),
        ({"logit_bias": {1: float("nan")}}, "every value of logit_bias must be a number, got nan"),
        ({"logit_bias": {10**6: 1.0}}, "logit_bias holds 1000000, but the vocabulary has 512 tokens"),
        ({"allowed_token_ids": []}, "allowed_token_ids must not be empty"),
        ({"allowed_token_ids": [512]}, "allowed_token_ids holds 512, but the vocabulary has 512 tokens"),
        ({"allowed_token_ids": [True]}, "every id of allowed_token_ids must be an integer"),
        ({"bad_words": "a"}, "bad_words must be a list of strings"),
        ({"bad_words": [""]}, "bad_words must not hold an empty string"),
        ({"bad_words": [1]}, "every string of bad_words must be a string, got 1"),
    ],
)
def test_what_can_not_hold_is_refused_by_name(llm: LLM, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        generate(llm, **fields)
    assert caught.value.param == next(iter(fields))


def test_biases_are_bounded() -> None:
    assert SamplingParams(logit_bias={1: 1e9, 2: -(10**400), 3: 7}).logit_bias == {1: 100.0, 2: -100.0, 3: 7.0}
