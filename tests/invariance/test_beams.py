"""Beams have the bits of requests that are sent whole for each token, in whatever company and memory."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from setups import Setup
from workload import bits, greedy, prompts

from octavo import LLM, BeamSearchOutput, BeamSearchParams, SamplingParams
from octavo.api.beams import beams_of
from octavo.api.generation import Generation

# Inside of a block, at its end, in the first one, and over several.
LENGTHS = (21, 32, 5, 70)
PARAMS = [
    BeamSearchParams(4, 20, ignore_eos=True),
    BeamSearchParams(3, 12, length_penalty=0.0, early_stopping=True),
    BeamSearchParams(8, 18, length_penalty=2.0, early_stopping="never"),
    BeamSearchParams(2, 30, length_penalty=-1.0),
]


def prompt_of(length: int) -> list[int]:
    made = random.Random(length)
    return [made.randrange(4, 512) for _ in range(length)]


def found_bits(output: BeamSearchOutput) -> list[Any]:
    """All that a caller sees, its floats as bits."""
    return [
        (
            sequence.tokens,
            sequence.text,
            sequence.finish_reason,
            struct.pack("<d", sequence.cum_logprob),
            [[(token, struct.pack("<d", entry.logprob), entry.rank) for token, entry in at.items()] for at in sequence.logprobs],
        )
        for sequence in output.sequences
    ]


def searches(setup: Setup) -> list[tuple[int, BeamSearchParams]]:
    """Every length of prompt with every kind of search; on the reference backend, which is slow, two of the lengths."""
    return [(length, params) for length in (LENGTHS[:2] if setup.backend == "reference" else LENGTHS) for params in PARAMS]


def search_all(llm: LLM, setup: Setup, *, backwards: bool = False) -> list[Any]:
    """All of them in one batch: searches of different parameters go in by the engine's own door."""
    asked = [(prompt_of(length), params) for length, params in searches(setup)]
    places = list(range(len(asked)))[:: -1 if backwards else 1]

    def prepare(index: int, request_id: str) -> Generation:
        prompt, params = asked[places[index]]
        return llm._front.prepare_beam_search(prompt, params, request_id, logprobs=2 * params.beam_width)

    generations = llm._run(len(asked), prepare, False)
    found: dict[int, Any] = {}
    for place, generation in zip(places, generations, strict=True):
        found[place] = found_bits(beams_of(generation, llm.get_tokenizer(), asked[place][1]))
    return [found[place] for place in range(len(asked))]


@pytest.fixture(scope="module")
def alone(setup: Setup) -> list[Any]:
    """Each search by itself, with the cache off."""
    with setup.start(enable_prefix_caching=False) as llm:
        return [found_bits(llm.beam_search(prompt_of(length), params)[0]) for length, params in searches(setup)]


def sent_whole(llm: LLM, prompt: list[int], width: int, count: int) -> list[tuple[list[int], float]]:
    """A search that ends by length alone, each of whose steps sends every beam as a prompt of its own."""
    beams: list[tuple[list[int], float]] = [(prompt, 0.0)]
    for _ in range(count):
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=2 * width)
        outputs = llm.generate([tokens for tokens, _ in beams], params, use_tqdm=False)
        longer = []
        for (tokens, score), output in zip(beams, outputs, strict=True):
            assert output.outputs[0].logprobs is not None
            ranked = sorted(output.outputs[0].logprobs[0].items(), key=lambda entry: entry[1].rank or 0)
            longer += [([*tokens, token], score + entry.logprob) for token, entry in ranked]
        beams = sorted(longer, key=lambda beam: -beam[1])[:width]
    return beams


def test_as_if_each_step_sent_all_beams_whole(setup: Setup, alone: list[Any]) -> None:
    with setup.start(enable_prefix_caching=False) as llm:
        for (length, params), searched in zip(searches(setup), alone, strict=True):
            if params is PARAMS[0]:
                expected = sent_whole(llm, prompt_of(length), 4, 20)
                assert [(tokens, struct.unpack("<d", score)[0]) for tokens, _, _, score, _ in searched] == expected


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("budget", [5, 16, 512])
def test_together_at_every_token_budget(setup: Setup, alone: list[Any], cache: bool, budget: int) -> None:
    """Five tokens are fewer than there are beams."""
    with setup.start(enable_prefix_caching=cache, max_num_batched_tokens=budget) as llm:
        assert search_all(llm, setup) == alone
        assert search_all(llm, setup, backwards=True) == alone
        stats = llm._core.stats()
    assert stats.blocks_used == 0
    assert (stats.prefix_cache_hits > 0) == cache


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
def test_under_preemption(setup: Setup, cache: bool) -> None:
    """Searches that grow to many times what they came with, in a pool that holds little more than one of them."""
    count = 8 if setup.backend == "reference" else 12
    asked = [prompt_of(length) for length in (5, 12, 21, 30, 9, 16, 6, 13, 22, 31, 10, 17)[:count]]
    params = BeamSearchParams(3, 60, ignore_eos=True)
    with setup.start(enable_prefix_caching=False) as llm:
        expected = [found_bits(llm.beam_search(prompt, params)[0]) for prompt in asked]
    with setup.start(enable_prefix_caching=cache, num_gpu_blocks_override=18, max_num_batched_tokens=64) as llm:
        assert [found_bits(output) for output in llm.beam_search(asked, params)] == expected
        stats = llm._core.stats()
    assert stats.preemptions >= 3
    assert stats.blocks_used == 0


@pytest.mark.parametrize("seats", [8, 13])
def test_any_number_of_seats(setup: Setup, alone: list[Any], seats: int) -> None:
    with setup.start(max_num_seqs=seats) as llm:
        assert search_all(llm, setup) == alone


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(setup: Setup, alone: list[Any], threads: int) -> None:
    with setup.start(threads=threads) as llm:
        assert search_all(llm, setup) == alone


def test_beside_ordinary_requests(setup: Setup, alone: list[Any]) -> None:
    """Neither changes the other."""
    wanted = searches(setup)
    asked, sampling = prompts()[: len(wanted)], greedy()[: len(wanted)]
    with setup.start(max_num_batched_tokens=96) as llm:
        expected = [bits(llm.generate(prompt, each, use_tqdm=False))[0] for prompt, each in zip(asked, sampling, strict=True)]

        def prepare(index: int, request_id: str) -> Generation:
            if index % 2:
                return llm._front.prepare(asked[index // 2], sampling[index // 2], request_id)
            length, params = wanted[index // 2]
            return llm._front.prepare_beam_search(prompt_of(length), params, request_id, logprobs=2 * params.beam_width)

        generations = llm._run(2 * len(wanted), prepare, False)
        assert bits([generation.output() for generation in generations[1::2]]) == expected
        found = [
            found_bits(beams_of(generation, llm.get_tokenizer(), params))
            for (_, params), generation in zip(wanted, generations[::2], strict=True)
        ]
        assert found == alone


def test_copies_are_of_blocks_that_are_not_full(setup: Setup) -> None:
    """At the border of a block beams part without a copy; inside, the first fork makes one less than there are beams."""
    for length, copies in ((32, 0), (21, 3)):
        with setup.start(enable_prefix_caching=False) as llm:
            llm.beam_search(prompt_of(length), BeamSearchParams(4, 2, ignore_eos=True))
            stats = llm._core.stats()
        assert (stats.blocks_copied, stats.blocks_used) == (copies, 0)
        assert stats.prompt_tokens_computed == length
