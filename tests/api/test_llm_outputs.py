"""What LLM.generate returns: vLLM's RequestOutput and CompletionOutput."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, CompletionOutput, Logprob, RequestOutput, SamplingParams
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.structured_outputs import StructuredOutputsParams


def one(llm: LLM, prompt: str = "The cat", **params: Any) -> RequestOutput:
    return llm.generate(prompt, SamplingParams(**{"temperature": 0, "max_tokens": 12, **params}), use_tqdm=False)[0]


def test_a_request_output(llm: LLM) -> None:
    output = one(llm)
    assert isinstance(output, RequestOutput)
    assert isinstance(output.request_id, str)
    assert output.prompt == "The cat"
    assert output.prompt_token_ids == llm.get_tokenizer().encode("The cat")
    assert output.finished is True
    assert output.num_cached_tokens == 0
    assert len(output.outputs) == 1


def test_request_ids_differ(llm: LLM) -> None:
    outputs = [*llm.generate(["a"] * 3, SamplingParams(max_tokens=1), use_tqdm=False), one(llm)]
    assert len({output.request_id for output in outputs}) == 4


def test_a_completion_output(llm: LLM) -> None:
    (sample,) = one(llm).outputs
    assert isinstance(sample, CompletionOutput)
    assert sample.index == 0
    assert sample.text == llm.get_tokenizer().decode(sample.token_ids)
    assert len(sample.token_ids) == 12
    assert sample.cumulative_logprob is None
    assert sample.logprobs is None
    assert sample.finish_reason == "length"
    assert sample.stop_reason is None
    assert sample.finished()


def test_metrics_are_in_order(llm: LLM) -> None:
    metrics = one(llm).metrics
    assert metrics is not None
    times = [metrics.arrival_time, metrics.first_scheduled_time, metrics.first_token_time, metrics.last_token_time, metrics.finished_time]
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]
    assert metrics.first_token_time != metrics.last_token_time
    assert metrics.num_preemptions == 0


def test_preemptions_are_counted(tiny_llama: Any) -> None:
    with LLM(str(tiny_llama), num_gpu_blocks_override=6, quiet=True) as small:
        outputs = small.generate([[7] * 20, [8] * 20], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True), use_tqdm=False)
    assert [output.metrics.num_preemptions for output in outputs if output.metrics] == [0, 1]


def test_several_samples(llm: LLM) -> None:
    output = one(llm, n=3, temperature=1.0, seed=1, logprobs=1)
    assert [sample.index for sample in output.outputs] == [0, 1, 2]
    assert len({tuple(sample.token_ids) for sample in output.outputs}) == 3
    for sample in output.outputs:
        assert sample.text == llm.get_tokenizer().decode(sample.token_ids)
        assert sample.logprobs is not None
        assert len(sample.logprobs) == len(sample.token_ids)
    assert output.finished


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_logprobs(llm: LLM, count: int) -> None:
    (sample,) = one(llm, prompt="Hello", temperature=1.5, seed=4, logprobs=count, max_tokens=30).outputs
    assert sample.logprobs is not None
    assert len(sample.logprobs) == len(sample.token_ids)
    for token, position in zip(sample.token_ids, sample.logprobs, strict=True):
        assert next(iter(position)) == token
        sampled = position[token]
        assert isinstance(sampled, Logprob)
        assert sampled.decoded_token == llm.get_tokenizer().token_text(token)
        assert sampled.rank is not None
        assert len(position) == (count if sampled.rank <= count else count + 1)
        ranked = sorted(position.values(), key=lambda entry: entry.rank or 0)
        assert [entry.rank for entry in ranked][:count] == list(range(1, count + 1))
        assert [entry.logprob for entry in ranked] == sorted((entry.logprob for entry in ranked), reverse=True)
        assert sum(math.exp(entry.logprob) for entry in ranked) <= 1 + 1e-5
    chosen = [position[token].logprob for token, position in zip(sample.token_ids, sample.logprobs, strict=True)]
    assert sample.cumulative_logprob == pytest.approx(sum(chosen))


def test_as_many_logprobs_as_the_engine_was_made_for(llm: LLM, tiny_llama: Path) -> None:
    for field in ("logprobs", "prompt_logprobs"):
        for count in (21, -1):
            with pytest.raises(InvalidRequestError, match=f"{field} must be at most 20"):
                one(llm, **{field: count})
    with LLM(tiny_llama, max_logprobs=-1) as free:
        size = free.get_tokenizer().vocab_size
        whole = one(free, logprobs=-1, prompt_logprobs=-1, max_tokens=2)
        more = one(free, logprobs=21, max_tokens=2)
    assert whole.outputs[0].logprobs is not None
    assert whole.prompt_logprobs is not None
    for position in (*whole.outputs[0].logprobs, *filter(None, whole.prompt_logprobs)):
        assert len(position) == size
        assert sum(math.exp(entry.logprob) for entry in position.values()) == pytest.approx(1)
    assert more.outputs[0].logprobs is not None
    assert [len(position) for position in more.outputs[0].logprobs] == [21, 21]


def test_greedy_tokens_have_rank_one(llm: LLM) -> None:
    (sample,) = one(llm, logprobs=2).outputs
    assert sample.logprobs is not None
    assert {position[token].rank for token, position in zip(sample.token_ids, sample.logprobs, strict=True)} == {1}


def test_more_logprobs_change_no_number(llm: LLM) -> None:
    few, many = (one(llm, logprobs=count).outputs[0] for count in (0, 20))
    assert few.token_ids == many.token_ids
    assert few.cumulative_logprob == many.cumulative_logprob


def test_without_detokenizing(llm: LLM) -> None:
    (plain,) = one(llm).outputs
    (bare,) = one(llm, detokenize=False, logprobs=0).outputs
    assert bare.token_ids == plain.token_ids
    assert bare.text == ""
    assert bare.logprobs is not None


def test_special_tokens_are_left_out_unless_asked_for(llm: LLM) -> None:
    prompt = "How are files listed"
    (hidden,) = one(llm, prompt, ignore_eos=True).outputs
    (shown,) = one(llm, prompt, ignore_eos=True, skip_special_tokens=False).outputs
    assert 0 in shown.token_ids
    assert shown.token_ids == hidden.token_ids
    assert "<|endoftext|>" in shown.text
    assert shown.text.replace("<|endoftext|>", "") == hidden.text


def test_text_of_bytes_that_are_no_characters(llm: LLM) -> None:
    (sample,) = one(llm, max_tokens=60, ignore_eos=True).outputs
    assert "�" in sample.text
    assert sample.text == llm.get_tokenizer().decode(sample.token_ids)


def test_half_a_character_at_the_end_is_left_out(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("a👩", add_special_tokens=False)
    for count in range(1, len(ids) + 1):
        (sample,) = one(llm, max_tokens=count, structured_outputs=StructuredOutputsParams(choice=["a👩"])).outputs
        assert sample.text == tokenizer.decode(sample.token_ids, whole=False)
        assert sample.text in ("a", "a👩")
        assert len(sample.token_ids) == count
