"""Logprobs of prompts have the bits of those of generated tokens, whatever the chunks, the neighbours, the cache and the preemptions."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from setups import Setup

from octavo import LLM, SamplingParams
from octavo.protocol.outputs import PositionLogprobs, RequestOutput
from octavo.scheduling.step import MOST_PROMPT_ROWS

LENGTHS = (150, 40, 17, 2, 1)


def prompt_of(length: int) -> list[int]:
    made = random.Random(length)
    return [made.randrange(4, 512) for _ in range(length)]


PROMPTS = [prompt_of(length) for length in LENGTHS]


def bits_of(position: PositionLogprobs | None) -> Any:
    return position and [(token, struct.pack("<d", each.logprob), each.rank) for token, each in position.items()]


def told(outputs: list[RequestOutput]) -> list[Any]:
    return [[bits_of(position) for position in output.prompt_logprobs or ()] for output in outputs]


def params(**options: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 2, "prompt_logprobs": 3, "ignore_eos": True, **options})


def ask(llm: LLM, prompts: list[list[int]] = PROMPTS, **options: Any) -> list[RequestOutput]:
    return llm.generate(prompts, params(**options), use_tqdm=False)


@pytest.fixture(scope="module")
def expected(setup: Setup) -> list[Any]:
    """Each prompt alone and in one piece as far as a step goes."""
    with setup.start(enable_prefix_caching=False) as llm:
        return [told(ask(llm, [prompt]))[0] for prompt in PROMPTS]


def test_they_are_those_of_what_would_be_generated_there(setup: Setup, expected: list[Any]) -> None:
    prompt = PROMPTS[1]
    with setup.start() as llm:
        beginnings = [prompt[:length] for length in range(1, len(prompt))]
        outputs = llm.generate(beginnings, SamplingParams(temperature=0, max_tokens=1, logprobs=3), use_tqdm=False)
    assert expected[1][0] is None
    for place, (output, position) in enumerate(zip(outputs, expected[1][1:], strict=True), 1):
        assert position[0][0] == prompt[place]
        generated = {token: (logprob, rank) for token, logprob, rank in bits_of(output.outputs[0].logprobs[0])}
        here = {token: (logprob, rank) for token, logprob, rank in position}
        assert generated.items() <= here.items()
        assert set(here) == {prompt[place], *generated}


@pytest.mark.parametrize("tokens", [512, 64, 7])
@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
def test_any_chunks_and_neighbours(setup: Setup, expected: list[Any], tokens: int, cache: bool) -> None:
    with setup.start(max_num_batched_tokens=tokens, enable_prefix_caching=cache) as llm:
        for _ in range(2):
            outputs = ask(llm)
            assert told(outputs) == expected
            assert [output.num_cached_tokens for output in outputs] == [0] * len(PROMPTS)
        # What they computed is found by those that want no logprobs of it, and these take nothing from them.
        (found,) = llm.generate(PROMPTS[0], params(prompt_logprobs=None), use_tqdm=False)
        assert found.num_cached_tokens == (144 if cache else 0)
        assert found.prompt_logprobs is None
        assert found.outputs[0].token_ids == outputs[0].outputs[0].token_ids


@pytest.mark.parametrize("swap", ["recompute", "swap"])
def test_preemptions_in_the_middle_of_a_prompt(setup: Setup, expected: list[Any], swap: str) -> None:
    options = {"preemption_mode": swap, "swap_space": "1MiB" if swap == "swap" else 0}
    with setup.start(num_gpu_blocks_override=14, max_num_batched_tokens=16, **options) as llm:
        others = [params(prompt_logprobs=None, max_tokens=60)] * 3
        prompts = [*(prompt_of(length)[:30] for length in (31, 32, 33)), *PROMPTS]
        outputs = llm.generate(prompts, [*others, *[params()] * len(PROMPTS)], use_tqdm=False)
        assert told(outputs[3:]) == expected
        assert llm._core.stats().preemptions > 0


def test_a_request_that_loses_its_blocks_goes_on_where_it_was(setup: Setup, expected: list[Any]) -> None:
    with setup.start(max_num_batched_tokens=16) as llm:
        step, steps = llm._core.step, []

        def reset_and_step() -> Any:
            steps.append(llm._core.reset_prefix_cache(reset_running_requests=True) if len(steps) in (3, 6) else None)
            return step()

        llm._core.step = reset_and_step
        assert told(ask(llm)) == expected
        assert steps.count(True) == 2
        assert llm._core.stats().preemptions > 0


def test_samples_of_one_prompt_tell_once(setup: Setup, expected: list[Any]) -> None:
    with setup.start() as llm:
        before = llm._core.stats().prompt_tokens_computed
        outputs = ask(llm, n=3, temperature=0.9, seed=5)
        assert told(outputs) == expected
        # The others begin with the blocks of the first.
        assert llm._core.stats().prompt_tokens_computed - before == sum(LENGTHS) + 2 * len(LENGTHS)
        assert llm._core.stats().blocks_used == 0


def test_a_step_computes_a_bounded_number_of_rows(setup: Setup) -> None:
    with setup.start() as llm:
        worker, rows = llm._core._executor._worker, []
        run = worker._stepper.run

        def counting(step: Any, *others: Any) -> Any:
            rows.append(len(step.logit_rows))
            return run(step, *others)

        worker._stepper.run = counting
        ask(llm, [prompt_of(400), prompt_of(300)])
        # And one for each token that is chosen.
        assert MOST_PROMPT_ROWS <= max(rows) <= MOST_PROMPT_ROWS + 2
        assert sum(rows) == 399 + 299 + 2 * 2
