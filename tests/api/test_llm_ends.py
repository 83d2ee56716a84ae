"""How a completion ends: lengths, end tokens, stop strings and stop token ids.

Greedy, tiny-llama continues "The cat" with the tokens "mand", ":", "low", so a path is known that stops can be put on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo import LLM, CompletionOutput, SamplingParams
from octavo.protocol.errors import InvalidRequestError, ModelLoadError

MAND, COLON, LOW = 458, 29, 428


def end(llm: LLM, **params: Any) -> CompletionOutput:
    return llm.generate("The cat", SamplingParams(**{"temperature": 0, "max_tokens": 12, **params}), use_tqdm=False)[0].outputs[0]


def how(sample: CompletionOutput) -> tuple[str, str | None, int | str | None]:
    return sample.text, sample.finish_reason, sample.stop_reason


def test_the_path(llm: LLM) -> None:
    sample = end(llm)
    assert sample.token_ids[:3] == [MAND, COLON, LOW]
    assert sample.text.startswith("mand:low")
    assert how(sample)[1:] == ("length", None)


def test_max_tokens(llm: LLM) -> None:
    assert [len(end(llm, max_tokens=count).token_ids) for count in (1, 2, 11)] == [1, 2, 11]


def test_without_max_tokens_it_runs_to_the_end_of_the_context(llm: LLM) -> None:
    output = llm.generate("The cat", SamplingParams(temperature=0, max_tokens=None, ignore_eos=True), use_tqdm=False)[0]
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 512
    assert output.outputs[0].finish_reason == "length"


def test_max_tokens_beyond_the_context_end_there_too(llm: LLM) -> None:
    output = llm.generate([9] * 500, SamplingParams(temperature=0, max_tokens=100, ignore_eos=True), use_tqdm=False)[0]
    assert len(output.outputs[0].token_ids) == 12
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("stop", "text", "reason", "tokens"),
    [
        ("low", "mand:", "low", 3),
        (["low"], "mand:", "low", 3),
        (":", "mand", ":", 2),
        ("d:l", "man", "d:l", 3),
        ("nd:lo", "ma", "nd:lo", 3),
        ("m", "", "m", 1),
        (["never", "d:low", "low"], "man", "d:low", 3),
        (["low", "d:l"], "man", "d:l", 3),
        (["mand:lown", ":lo"], "mand", ":lo", 3),
    ],
)
def test_stop_strings(llm: LLM, stop: Any, text: str, reason: str, tokens: int) -> None:
    sample = end(llm, stop=stop, logprobs=0)
    assert how(sample) == (text, "stop", reason)
    assert sample.token_ids == [MAND, COLON, LOW][:tokens]
    assert sample.logprobs is not None
    assert len(sample.logprobs) == tokens


def test_a_stop_string_may_be_kept(llm: LLM) -> None:
    assert how(end(llm, stop="d:l", include_stop_str_in_output=True)) == ("mand:l", "stop", "d:l")


def test_a_stop_string_that_never_comes_holds_nothing_back(llm: LLM) -> None:
    assert end(llm, stop=["nowhere"]).text == end(llm).text


def test_the_start_of_a_stop_string_comes_out_at_the_end(llm: LLM) -> None:
    assert how(end(llm, max_tokens=3, stop="lowest")) == ("mand:low", "length", None)


def test_a_stop_string_at_the_last_token_is_a_stop(llm: LLM) -> None:
    assert how(end(llm, max_tokens=3, stop="low")) == ("mand:", "stop", "low")


def test_the_prompt_is_not_searched(llm: LLM) -> None:
    assert end(llm, stop=["The cat", "cat"]).text == end(llm).text


def test_a_stop_string_ends_its_sample_alone(llm: LLM) -> None:
    params = SamplingParams(n=4, seed=3, temperature=1.2, max_tokens=40, stop=["e", "o"])
    samples = llm.generate("Hello", params, use_tqdm=False)[0].outputs
    assert "stop" in {sample.finish_reason for sample in samples}
    assert len({len(sample.token_ids) for sample in samples}) > 1
    for sample in samples:
        assert not set(sample.text) & {"e", "o"}


def test_a_stop_string_ends_the_request_in_the_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    step = llm._core.step
    monkeypatch.setattr(llm._core, "step", lambda: steps.append(1) or step())
    end(llm, stop="low", max_tokens=None)
    # One more tells the worker.
    assert len(steps) == 4
    assert llm._core.stats().blocks_used == 0
    assert llm._core.request_ids == []


@pytest.mark.parametrize("ids", [[LOW], [500, LOW], [LOW, 500], (LOW,)])
def test_stop_token_ids(llm: LLM, ids: Any) -> None:
    sample = end(llm, stop_token_ids=ids)
    assert how(sample) == ("mand:", "stop", LOW)
    assert sample.token_ids == [MAND, COLON, LOW]


def test_a_stop_token_may_be_kept(llm: LLM) -> None:
    assert how(end(llm, stop_token_ids=[LOW], include_stop_str_in_output=True)) == ("mand:low", "stop", LOW)


def test_stop_token_ids_hold_with_ignore_eos(llm: LLM) -> None:
    assert how(end(llm, stop_token_ids=[LOW], ignore_eos=True)) == ("mand:", "stop", LOW)


def test_min_tokens_forbids_stop_tokens_for_a_while(llm: LLM) -> None:
    sample = end(llm, stop_token_ids=[LOW], min_tokens=5)
    assert LOW not in sample.token_ids[:5]
    assert len(sample.token_ids) >= 5


def test_min_tokens_must_leave_a_token(llm: LLM) -> None:
    """The model's own end token (2) is forbidden too, so the others alone are one too few to choose from."""
    every = list(range(512))
    for stops in (every, [token for token in every if token != 2]):
        with pytest.raises(InvalidRequestError, match="min_tokens leaves no token to choose") as caught:
            end(llm, stop_token_ids=stops, min_tokens=1)
        assert caught.value.param == "min_tokens"
        assert len(end(llm, stop_token_ids=stops).token_ids) == 1
    assert end(llm, stop_token_ids=every[:LOW] + every[LOW + 1 :], min_tokens=3).token_ids[:3] == [LOW] * 3


def test_min_tokens_lets_stop_strings_pass_for_a_while(llm: LLM) -> None:
    assert end(llm, stop="low", min_tokens=5).text.startswith("mand:low")
    assert how(end(llm, stop="low", min_tokens=2)) == ("mand:", "stop", "low")


@pytest.fixture
def with_eos(changed_model: Callable[..., str]) -> Callable[..., LLM]:
    """An LLM whose generation_config.json ends answers with "low" as well."""

    def make(**options: Any) -> LLM:
        return LLM(changed_model(generation_config={"eos_token_id": [2, LOW]}), quiet=True, **options)

    return make


@pytest.mark.parametrize("kind", ["auto", "vllm"])
def test_the_models_own_end_token(with_eos: Callable[..., LLM], kind: str) -> None:
    with with_eos(generation_config=kind) as llm:
        sample = end(llm)
        assert how(sample) == ("mand:", "stop", None)
        assert sample.token_ids == [MAND, COLON, LOW]
        assert how(end(llm, include_stop_str_in_output=True)) == ("mand:low", "stop", None)
        assert how(end(llm, max_tokens=3)) == ("mand:", "stop", None)


def test_ignore_eos(with_eos: Callable[..., LLM], llm: LLM) -> None:
    with with_eos() as ending:
        assert how(end(ending, ignore_eos=True)) == how(end(llm, ignore_eos=True))


def test_min_tokens_forbids_the_end_token_for_a_while(with_eos: Callable[..., LLM]) -> None:
    with with_eos() as llm:
        sample = end(llm, min_tokens=3)
        assert len(sample.token_ids) > 3
        assert LOW not in sample.token_ids[:3]


def test_a_single_end_token(changed_model: Callable[..., str]) -> None:
    with LLM(changed_model(generation_config={"eos_token_id": COLON}), quiet=True) as llm:
        assert how(end(llm)) == ("mand", "stop", None)


def test_end_tokens_that_are_none_of_the_vocabulary_do_nothing(changed_model: Callable[..., str], llm: LLM) -> None:
    with LLM(changed_model(generation_config={"eos_token_id": [-1, 99_999, "x", None]}), quiet=True) as odd:
        assert end(odd, min_tokens=6).token_ids == end(llm, min_tokens=6).token_ids


DEFAULTS = {"temperature": 0.3, "top_p": 0.7, "top_k": 9, "min_p": 0.1, "repetition_penalty": 1.3, "max_new_tokens": 7}


def test_sampling_defaults_of_the_model(changed_model: Callable[..., str]) -> None:
    with LLM(changed_model(generation_config=DEFAULTS), quiet=True) as llm:
        params = llm.get_default_sampling_params()
        assert params == SamplingParams(temperature=0.3, top_p=0.7, top_k=9, min_p=0.1, repetition_penalty=1.3, max_tokens=7)
        assert len(llm.generate("The cat", use_tqdm=False)[0].outputs[0].token_ids) <= 7


def test_sampling_defaults_may_be_declined(changed_model: Callable[..., str]) -> None:
    with LLM(changed_model(generation_config=DEFAULTS), generation_config="vllm", quiet=True) as llm:
        assert llm.get_default_sampling_params() == SamplingParams()


@pytest.mark.parametrize(("field", "value"), [("temperature", 9.5), ("top_p", 0), ("top_k", "many"), ("max_new_tokens", 0)])
def test_sampling_defaults_that_cannot_hold(changed_model: Callable[..., str], field: str, value: Any) -> None:
    model = changed_model(generation_config={field: value})
    with pytest.raises(ModelLoadError, match=rf"{model}.*{field.replace('max_new_tokens', 'max_tokens')}"):
        LLM(model, quiet=True)
    LLM(model, generation_config="vllm", quiet=True).close()


def test_an_unknown_kind_of_generation_config(tiny_llama: Any) -> None:
    with pytest.raises(ValueError, match="generation_config"):
        LLM(str(tiny_llama), generation_config="mine", quiet=True)


def test_a_stop_string_needs_text() -> None:
    with pytest.raises(InvalidRequestError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)
