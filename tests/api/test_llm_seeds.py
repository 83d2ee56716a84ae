"""Seeds: what is the same from call to call, batch to batch and run to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, SamplingParams

PROMPTS = ["The cat", "Hello there", "A", "One more prompt of some length"]


def texts(llm: LLM, prompts: Any, **params: Any) -> list[str]:
    sampling = SamplingParams(**{"temperature": 1.0, "max_tokens": 20, **params})
    return [output.outputs[0].text for output in llm.generate(prompts, sampling, use_tqdm=False)]


def test_a_seed_gives_the_same_text_in_any_order_and_batch(llm: LLM) -> None:
    together = texts(llm, PROMPTS, seed=5)
    assert texts(llm, PROMPTS[::-1], seed=5) == together[::-1]
    assert [texts(llm, prompt, seed=5)[0] for prompt in PROMPTS] == together


def test_a_seed_gives_the_same_text_in_another_instance(llm: LLM, tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), seed=77, max_num_batched_tokens=8, quiet=True) as other:
        assert texts(other, PROMPTS, seed=5) == texts(llm, PROMPTS, seed=5)


def test_other_seeds_give_other_texts(llm: LLM) -> None:
    assert len({texts(llm, "The cat", seed=seed)[0] for seed in range(10)}) == 10


@pytest.mark.parametrize("seed", [0, -2, 2**63 - 1, -(2**63), np.int64(7)])
def test_every_whole_number_may_be_a_seed(llm: LLM, seed: Any) -> None:
    params = SamplingParams(seed=seed, n=2, max_tokens=5)
    first, second = (llm.generate("The cat", params, use_tqdm=False)[0] for _ in range(2))
    assert [sample.token_ids for sample in first.outputs] == [sample.token_ids for sample in second.outputs]


def runs(model: Path, count: int, **options: Any) -> list[list[str]]:
    """What `count` fresh instances answer to the same calls without a seed."""
    found = []
    for _ in range(count):
        with LLM(str(model), quiet=True, **options) as llm:
            found.append(texts(llm, PROMPTS) + texts(llm, "The cat") + texts(llm, "The cat"))
    return found


@pytest.mark.parametrize("options", [{}, {"seed": 0}, {"seed": 123}])
def test_instances_of_one_seed_answer_alike(tiny_llama: Path, options: dict[str, Any]) -> None:
    first, second = runs(tiny_llama, 2, **options)
    assert first == second
    assert len(set(first)) == len(first)


def test_instances_of_different_seeds_differ(tiny_llama: Path) -> None:
    assert runs(tiny_llama, 1, seed=1) != runs(tiny_llama, 1, seed=2)


def test_without_a_seed_instances_differ(tiny_llama: Path) -> None:
    first, second = runs(tiny_llama, 2, seed=None)
    assert first != second


def test_minus_one_is_no_seed(llm: LLM) -> None:
    assert texts(llm, "The cat", seed=-1) != texts(llm, "The cat", seed=-1)
