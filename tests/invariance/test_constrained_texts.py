"""Constrained texts are the same alone, in a batch beside others, in pieces, after a preemption and from swap space; and they are texts of
their grammar."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from setups import SETUPS, Bits, Setup
from workload import bits

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.backends.select import has_native

REQUESTS = 12
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}},
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
KINDS = (
    {"json": SCHEMA, "disable_any_whitespace": True},
    {"regex": r"[a-z]{3,20}(, [a-z]{1,8}){2,6}\."},
    {"choice": ["yes", "yes, of course", "no", "wörld 🙂"]},
    {"grammar": 'start: item+ "!"\nitem: /[a-f]{2,4}/ | "(" item ")"'},
)
OTHERS = (
    {"logit_bias": {9: 4.0, 40: 6.0, 300: -100.0}, "bad_words": ["a", "the", "of the"]},
    {"allowed_token_ids": list(range(20, 60)), "presence_penalty": 1.0},
)


def prompts() -> list[list[int]]:
    made = random.Random(21)
    return [[made.randrange(4, 512) for _ in range(made.randrange(1, 60))] for _ in range(REQUESTS)]


def params() -> list[SamplingParams]:
    """Every kind, greedy and drawn, beside others whose tokens are chosen otherwise."""
    made = []
    for index in range(REQUESTS):
        kind = None if index % 5 == 4 else StructuredOutputsParams(**KINDS[index % 4])
        drawn = {"temperature": 0.9, "seed": index} if index % 3 else {"temperature": 0}
        others = OTHERS[index // 5 % 2] if kind is None else {}
        made.append(SamplingParams(**drawn, **others, max_tokens=60, min_tokens=index % 3, logprobs=2, structured_outputs=kind))
    return made


def together(llm: LLM) -> Bits:
    return bits(llm.generate(prompts(), params(), use_tqdm=False))


# Which tokens may come does not depend on what a cache's numbers are rounded to.
@pytest.fixture(scope="module", params=SETUPS[:3], ids=lambda setup: f"{setup.backend}-{setup.model.rpartition('/')[2]}")
def setup(request: pytest.FixtureRequest, fixtures_dir: Path) -> Setup:
    chosen: Setup = request.param
    if chosen.backend == "cpu" and not has_native():
        pytest.skip("this installation has no native module")
    return replace(chosen, model=str(fixtures_dir / chosen.model))


@pytest.fixture(scope="module")
def alone(setup: Setup) -> Bits:
    with setup.start(enable_prefix_caching=False) as llm:
        return [bits(llm.generate(prompt, each, use_tqdm=False))[0] for prompt, each in zip(prompts(), params(), strict=True)]


def test_texts_match_what_was_asked(alone: Bits) -> None:
    finished = 0
    for each, result in zip(params(), alone, strict=True):
        ((_, text, reason, _),) = result  # type: ignore[misc]
        asked = each.structured_outputs
        if asked is None or reason != "stop":
            continue
        finished += 1
        if asked.kind == "json":
            value = json.loads(str(text))
            assert set(value) == {"name", "sizes"}
            assert len(value["sizes"]) <= 3
        elif asked.regex is not None:
            assert re.fullmatch(asked.regex, str(text))
        elif asked.choice is not None:
            assert text in asked.choice
        else:
            assert re.fullmatch(r"([a-f]|[()])+!", str(text))
    assert finished > 4


@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 16, "enable_prefix_caching": False}, {"num_gpu_blocks_override": 10}],
    ids=["together", "pieces", "preempted"],
)
def test_the_same_beside_others(setup: Setup, alone: Bits, options: dict[str, int]) -> None:
    with setup.start(max_model_len=128, **options) as llm:
        assert together(llm) == alone
        # Again, from the prefix cache and with the grammars that are kept.
        assert together(llm) == alone
        assert (llm._core.stats().preemptions > 0) is ("num_gpu_blocks_override" in options)


def test_the_same_from_swap_space(setup: Setup, alone: Bits) -> None:
    with setup.start(max_model_len=128, num_gpu_blocks_override=10, swap_space="16MiB", preemption_mode="swap") as llm:
        assert together(llm) == alone
        assert llm._core.stats().blocks_swapped_in > 0


def test_samples_of_one_prompt(setup: Setup) -> None:
    asked = StructuredOutputsParams(**KINDS[1])
    with setup.start() as llm:
        prompt = prompts()[0]
        (output,) = llm.generate(prompt, SamplingParams(n=3, seed=5, max_tokens=40, logprobs=1, structured_outputs=asked), use_tqdm=False)
        apart = [
            bits(llm.generate(prompt, SamplingParams(seed=5 + index, max_tokens=40, logprobs=1, structured_outputs=asked), use_tqdm=False))
            for index in range(3)
        ]
        assert list(bits([output])[0]) == [each[0][0] for each in apart]
