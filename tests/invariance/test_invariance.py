"""A request's tokens and logprobs are the same bits alone, batched, chunked, preempted, and on any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from setups import SETUPS, Bits, Setup
from workload import PROMPTS, bits, greedy, prompts, run, run_alone, seeded

from octavo import LLM, SamplingParams

KINDS: dict[str, Callable[[], list[SamplingParams]]] = {"greedy": greedy, "seeded": seeded}


@pytest.fixture(scope="module", params=list(KINDS))
def case(request: pytest.FixtureRequest, setup: Setup) -> tuple[list[SamplingParams], Bits]:
    """Parameters, and what each request gives alone."""
    params = KINDS[request.param]()[: setup.requests]
    with setup.start() as llm:
        return params, run_alone(llm, params)


def together(setup: Setup, params: list[SamplingParams], **options: Any) -> Bits:
    """All requests in one batch."""
    with setup.start(**options) as llm:
        return run(llm, params)


def test_the_workload_is_mixed() -> None:
    assert len(prompts()) == PROMPTS
    for count in {setup.requests for setup in SETUPS}:
        lengths = sorted(map(len, prompts()[:count]))
        assert lengths[0] <= 4
        assert lengths[-1] >= 200


@pytest.mark.parametrize("kind", list(KINDS))
def test_all_of_it_on_the_reference_backend(fixtures_dir: Path, kind: str) -> None:
    """Which is given a part of it elsewhere."""
    with Setup(str(fixtures_dir / "tiny-llama"), "reference").start() as llm:
        assert run(llm, KINDS[kind]()) == run_alone(llm, KINDS[kind]())


@pytest.mark.parametrize("budget", [16, 64, 512])
def test_together_as_alone_at_every_token_budget(setup: Setup, case: tuple[list[SamplingParams], Bits], budget: int) -> None:
    params, alone = case
    assert together(setup, params, max_num_batched_tokens=budget) == alone


@pytest.mark.parametrize("kind", list(KINDS))
def test_preemption_changes_nothing(setup: Setup, kind: str) -> None:
    """Requests that grow to many times what they came with, in a pool that holds little more than the longest of them."""
    count = setup.requests
    params = [msgspec.structs.replace(each, max_tokens=40 + index * PROMPTS // count) for index, each in enumerate(KINDS[kind]()[:count])]
    short = [prompt[:40] for prompt in prompts()[:count]]
    with setup.start() as llm:
        alone = [bits(llm.generate(prompt, each, use_tqdm=False))[0] for prompt, each in zip(short, params, strict=True)]
    with setup.start(num_gpu_blocks_override=12, block_size=16) as llm:
        together = bits(llm.generate(short, params, use_tqdm=False))
        assert llm._core.stats().preemptions >= count * 5 // 16
    assert together == alone


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(setup: Setup, case: tuple[list[SamplingParams], Bits], threads: int) -> None:
    params, alone = case
    assert together(setup, params, threads=threads) == alone


@pytest.mark.parametrize("seats", [1, 7])
def test_any_number_of_seats(setup: Setup, case: tuple[list[SamplingParams], Bits], seats: int) -> None:
    params, alone = case
    assert together(setup, params, max_num_seqs=seats) == alone


def test_any_order(setup: Setup, case: tuple[list[SamplingParams], Bits]) -> None:
    params, alone = case
    with setup.start() as llm:
        outputs = llm.generate(prompts()[: len(params)][::-1], params[::-1], use_tqdm=False)
    assert bits(outputs)[::-1] == alone


def test_samples_of_one_prompt_are_as_their_seeds_alone(setup: Setup) -> None:
    """Sample i of `n` draws with `seed + i`."""
    prompt = prompts()[3]
    with setup.start() as llm:
        many = llm.generate(prompt, SamplingParams(n=4, seed=11, max_tokens=12), use_tqdm=False)[0]
        for sample in many.outputs:
            single = llm.generate(prompt, SamplingParams(seed=11 + sample.index, max_tokens=12), use_tqdm=False)[0]
            assert single.outputs[0].token_ids == sample.token_ids
        assert len({tuple(sample.token_ids) for sample in many.outputs}) > 1


def test_utilisation_of_blocks(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    """At most block_size − 1 slots of a running request are unused."""
    shares = []
    with setup.start() as llm:
        scheduler = llm._core._scheduler
        step = llm._core.step

        def measured() -> list[Any]:
            outputs = step()
            for request in scheduler._running.values():
                assert 0 <= request.table.num_slots - request.num_computed < 16
            stats = llm._core.stats()
            if stats.blocks_used:
                shares.append(stats.tokens_held / (stats.blocks_used * 16))
            return outputs

        llm._core.step = measured  # type: ignore[method-assign]
        run(llm, greedy()[: setup.requests])
        assert llm._core.stats().blocks_used == 0
    with capsys.disabled():
        print(f"\nKV cache utilisation of the {setup.requests}-request run: mean {sum(shares) / len(shares):.1%}, lowest {min(shares):.1%}")


@pytest.mark.model
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_default_model_together_as_alone(smollm2_path: Path, backend: str) -> None:
    lengths = (1, 5, 17, 40) if backend == "reference" else (1, 5, 17, 40, 130, 220)
    made = [[(start * 37 + place * 101) % 49000 + 100 for place in range(length)] for start, length in enumerate(lengths)]
    params = [SamplingParams(temperature=0.0 if index % 2 else 0.8, seed=index, max_tokens=8, logprobs=2) for index in range(len(made))]
    with LLM(str(smollm2_path), quiet=True, backend=backend, max_model_len=512, max_num_batched_tokens=32) as llm:
        batched = bits(llm.generate(made, params, use_tqdm=False))
        assert batched == [bits(llm.generate(prompt, each, use_tqdm=False))[0] for prompt, each in zip(made, params, strict=True)]
