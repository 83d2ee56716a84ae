"""What LLM.generate takes: prompts, parameters, and what it refuses before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.protocol.errors import InvalidRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=5)
IDS = [5, 17, 99, 300]


def texts(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]


def test_a_string(llm: LLM) -> None:
    (output,) = llm.generate("The cat", GREEDY, use_tqdm=False)
    assert output.prompt == "The cat"
    assert output.prompt_token_ids == llm.get_tokenizer().encode("The cat")
    assert len(output.outputs[0].token_ids) == 5


def test_a_list_of_strings_keeps_its_order(llm: LLM) -> None:
    prompts = ["The cat", "A much longer prompt than the first one is", "x"]
    assert [output.prompt for output in llm.generate(prompts, GREEDY, use_tqdm=False)] == prompts
    assert texts(llm, prompts) == [texts(llm, prompt)[0] for prompt in prompts]


def test_token_ids(llm: LLM) -> None:
    (output,) = llm.generate(IDS, GREEDY, use_tqdm=False)
    assert output.prompt is None
    assert output.prompt_token_ids == IDS


def test_token_ids_of_a_text_give_what_the_text_gives(llm: LLM) -> None:
    assert texts(llm, llm.get_tokenizer().encode("The cat")) == texts(llm, "The cat")


def test_lists_of_token_ids(llm: LLM) -> None:
    outputs = llm.generate([IDS, [7]], GREEDY, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [IDS, [7]]


def test_strings_and_token_ids_mixed(llm: LLM) -> None:
    assert texts(llm, ["The cat", IDS]) == texts(llm, "The cat") + texts(llm, IDS)


@pytest.mark.parametrize("make", [tuple, np.array, lambda ids: np.array(ids, np.uint16), lambda ids: [np.int64(i) for i in ids], iter])
def test_other_sequences_of_whole_numbers_are_token_ids(llm: LLM, make: Any) -> None:
    (output,) = llm.generate(make(IDS), GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == IDS
    assert all(type(token) is int for token in output.prompt_token_ids)
    many = llm.generate([make(IDS), "The cat"], GREEDY, use_tqdm=False)
    assert many[0].prompt_token_ids == IDS
    assert many[0].outputs == output.outputs


def test_a_two_dimensional_array_is_several_prompts(llm: LLM) -> None:
    outputs = llm.generate(np.array([IDS, IDS[::-1]]), GREEDY, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [IDS, IDS[::-1]]


def test_a_tuple_of_strings(llm: LLM) -> None:
    assert texts(llm, ("The cat", "x")) == texts(llm, ["The cat", "x"])


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY, use_tqdm=False) == []
    assert llm.generate([], [], use_tqdm=False) == []


def test_the_prompt_given_is_not_changed(llm: LLM) -> None:
    ids = list(IDS)
    (output,) = llm.generate(ids, GREEDY, use_tqdm=False)
    assert ids == IDS
    assert output.prompt_token_ids is not ids


def test_parameters_for_each_prompt(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=count) for count in (1, 4, 2)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 4, 2]


def test_without_parameters_the_defaults_hold(llm: LLM) -> None:
    assert llm.get_default_sampling_params() == SamplingParams()
    (output,) = llm.generate("The cat", use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 16


@pytest.mark.parametrize(("prompts", "count"), [("a", 2), ("a", 0), (["a", "b"], 1), (["a", "b"], 3), ([], 1)])
def test_a_wrong_number_of_parameters(llm: LLM, prompts: Any, count: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"{0 if not prompts else len(prompts)} prompts but {count} sampling_params") as caught:
        llm.generate(prompts, [GREEDY] * count, use_tqdm=False)
    assert caught.value.param == "sampling_params"


@pytest.mark.parametrize("params", [{"temperature": 0}, [{"temperature": 0}], ["x"], 3, [None]])
def test_parameters_of_another_type(llm: LLM, params: Any) -> None:
    with pytest.raises(InvalidRequestError, match="sampling_params") as caught:
        llm.generate("The cat", params, use_tqdm=False)
    assert caught.value.param == "sampling_params"


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ({"promt": "The cat"}, "'promt' is not a key of a prompt, which are prompt, prompt_token_ids, cache_salt"),
        ({"prompt": "The cat", "multi_modal_data": {}}, "'multi_modal_data' is not a key of a prompt"),
        ([{}], "needs prompt or prompt_token_ids"),
        ({"cache_salt": "a"}, "needs prompt or prompt_token_ids"),
        ({"prompt": [1, 2]}, "must be a string, not list, in a dictionary"),
        ({"prompt_token_ids": "The cat"}, "must be a string or a list of token ids"),
        ({"prompt_token_ids": []}, "empty"),
        (None, "must be strings or lists of token ids, not NoneType"),
        (7, "must be strings or lists of token ids, not int"),
        (b"The cat", "must be strings or lists of token ids, not bytes"),
        ([b"The cat"], "must be a string or a list of token ids"),
        ([None], "must be a string or a list of token ids"),
        ([1.0, 2.0], "must be a string or a list of token ids"),
        ([[1, 2.0]], "must be a string or a list of token ids"),
        ([[1, True]], "must be a string or a list of token ids"),
        ([[1, "a"]], "must be a string or a list of token ids"),
        ([1, "a"], "must be a string or a list of token ids"),
        ("", "empty"),
        ([[]], "empty"),
        (["The cat", ""], "empty"),
        ([-1], "token id -1 is outside the vocabulary of 512"),
        ([511, 512], "token id 512 is outside the vocabulary of 512"),
        (np.array([0.5]), "must be a string or a list of token ids"),
        ("half a pair \ud800", "surrogate"),
    ],
)
def test_refused_prompts(llm: LLM, prompts: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        llm.generate(prompts, GREEDY, use_tqdm=False)
    assert caught.value.param in ("prompt", "prompts")


@pytest.mark.parametrize("length", [512, 700])
def test_a_prompt_too_long_says_both_lengths(llm: LLM, length: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"has {length} tokens, .* 512 tokens"):
        llm.generate([9] * length, GREEDY, use_tqdm=False)


@pytest.mark.parametrize("ask", ["generate", "chat", "embed", "beam_search"])
def test_text_far_beyond_the_context_is_refused_before_it_is_tokenized(llm: LLM, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    text = "The cat sat. " * 1_000_000
    asked: dict[str, Any] = {
        "generate": lambda: llm.generate(["x", text], GREEDY, use_tqdm=False),
        "chat": lambda: llm.chat([{"role": "user", "content": text}], GREEDY, use_tqdm=False),
        "embed": lambda: llm.embed(text, use_tqdm=False),
        "beam_search": lambda: llm.beam_search(text, BeamSearchParams(2, 2)),
    }
    encode = llm.get_tokenizer().encode
    monkeypatch.setattr(
        llm.get_tokenizer(), "encode", lambda text, *others: encode(text, *others) if len(text) < 99 else pytest.fail("it was tokenized")
    )
    with pytest.raises(
        InvalidRequestError, match=r"^the prompt has \d{5,} tokens or more, but the model's context of 512 tokens"
    ) as caught:
        asked[ask]()
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")


def test_a_long_text_that_is_truncated_is_served(llm: LLM) -> None:
    text = "The cat sat. " * 5_000
    (output,) = llm.generate(text, SamplingParams(temperature=0, max_tokens=3, truncate_prompt_tokens=20), use_tqdm=False)
    assert output.prompt_token_ids == llm.get_tokenizer().encode(text)[-20:]


def test_the_longest_prompt_gives_one_token(llm: LLM) -> None:
    (output,) = llm.generate([9] * 511, GREEDY, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 1
    assert output.outputs[0].finish_reason == "length"


def test_one_bad_request_stops_the_batch_before_it_runs(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    before = texts(llm, "The cat")
    with monkeypatch.context() as patch:
        patch.setattr(llm._core, "step", lambda: pytest.fail("a step ran"))
        patch.setattr(llm._core, "add", lambda request: pytest.fail("a request was queued"))
        with pytest.raises(InvalidRequestError, match="600"):
            llm.generate(["The cat", [9] * 600], GREEDY, use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="stop_token_ids holds 512"):
            llm.generate(["The cat", "x"], [GREEDY, SamplingParams(stop_token_ids=[512])], use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="logprobs must be at most 20"):
            llm.generate("The cat", SamplingParams(logprobs=21), use_tqdm=False)
    assert not llm._core.has_work
    assert texts(llm, "The cat") == before


def test_parameters_changed_to_nonsense_after_they_were_made(llm: LLM) -> None:
    params = SamplingParams(temperature=0.5)
    params.top_p = 7.0
    with pytest.raises(InvalidRequestError, match="top_p"):
        llm.generate("The cat", params, use_tqdm=False)
