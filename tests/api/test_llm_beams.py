"""Beam search finds what transformers' does (scripts/expected_beams.py), and bad input is refused by name."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from gathering import gather
from spy_recorder import SpyRecorder

from octavo import LLM, AsyncLLM, BeamSearchOutput, BeamSearchParams, BeamSearchSequence, SamplingParams
from octavo.api.beams import beams_of
from octavo.api.generation import Generation
from octavo.config.engine import BackendConfig, EngineConfig, ModelConfig
from octavo.protocol.errors import InvalidRequestError

NUMBERS = [1, "1", None, 1.5, True, float("nan"), 10**40, [1]]


def document(fixtures_dir: Path, name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((fixtures_dir / name / "beams.json").read_text())
    return loaded


def params_of(case: dict[str, Any]) -> BeamSearchParams:
    return BeamSearchParams(
        case["beam_width"], case["max_tokens"], length_penalty=case["length_penalty"], early_stopping=case["early_stopping"]
    )


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral"])
def test_beams_are_those_of_transformers(fixtures_dir: Path, name: str) -> None:
    expected = document(fixtures_dir, name)
    cases, ended = expected["cases"], 0
    with LLM(str(fixtures_dir / name), quiet=True, backend="reference") as llm:

        def prepare(index: int, request_id: str) -> Generation:
            # The end tokens belong to the model; each case has its own.
            llm._front.eos_token_ids = cases[index]["eos_token_ids"]
            params = params_of(cases[index])
            prompt = expected["prompts"][cases[index]["prompt"]]
            return llm._front.prepare_beam_search(prompt, params, request_id, logprobs=2 * params.beam_width)

        # All at once, which takes a fraction of the time.
        for case, generation in zip(cases, llm._run(len(cases), prepare, False), strict=True):
            prompt = expected["prompts"][case["prompt"]]
            output = beams_of(generation, llm.get_tokenizer(), params_of(case))
            assert [sequence.tokens for sequence in output.sequences] == [prompt + beam["token_ids"] for beam in case["beams"]]
            for sequence, beam in zip(output.sequences, case["beams"], strict=True):
                score = sequence.cum_logprob / len(beam["token_ids"]) ** case["length_penalty"]
                assert score == pytest.approx(beam["score"], rel=expected["tolerance"]["score_rel"], abs=1e-6)
                assert sequence.finish_reason == ("stop" if beam["token_ids"][-1] in case["eos_token_ids"] else "length")
                ended += sequence.finish_reason == "stop"
        assert llm._core.stats().blocks_used == 0
    assert len(cases) > 200
    assert ended > 200


def test_a_beam_of_one_is_greedy(llm: LLM) -> None:
    (found,) = llm.beam_search("The cat", BeamSearchParams(1, 12))
    (greedy,) = llm.generate("The cat", SamplingParams(temperature=0, max_tokens=12, logprobs=2), use_tqdm=False)
    (sequence,) = found.sequences
    assert sequence.tokens == greedy.prompt_token_ids + greedy.outputs[0].token_ids
    assert sequence.logprobs == greedy.outputs[0].logprobs
    assert sequence.cum_logprob == greedy.outputs[0].cumulative_logprob


def test_shape_of_what_is_found(llm: LLM) -> None:
    outputs = llm.beam_search(["The cat", [5, 6, 7], {"prompt": "A dog", "cache_salt": "x"}], BeamSearchParams(3, 6))
    assert len(outputs) == 3
    tokenizer = llm.get_tokenizer()
    for prompt, output in zip((tokenizer.encode("The cat"), [5, 6, 7], tokenizer.encode("A dog")), outputs, strict=True):
        assert isinstance(output, BeamSearchOutput)
        assert len(output.sequences) == 3
        assert len({tuple(sequence.tokens) for sequence in output.sequences}) == 3
        for sequence in output.sequences:
            assert isinstance(sequence, BeamSearchSequence)
            generated = sequence.tokens[len(prompt) :]
            assert sequence.tokens[: len(prompt)] == prompt
            assert len(generated) == 6 == len(sequence.logprobs)
            assert sequence.text == tokenizer.decode(sequence.tokens)
            assert (sequence.finish_reason, sequence.stop_reason) == ("length", None)
            for token, position in zip(generated, sequence.logprobs, strict=True):
                assert next(iter(position)) == token
                assert len(position) == 6
            assert sequence.cum_logprob == pytest.approx(sum(p[t].logprob for t, p in zip(generated, sequence.logprobs, strict=True)))


def test_the_end_token_is_counted_and_not_shown(fixtures_dir: Path) -> None:
    expected = document(fixtures_dir, "tiny-llama")
    case = next(case for case in expected["cases"] if case["beams"][0]["token_ids"][-1] in case["eos_token_ids"])
    prompt = expected["prompts"][case["prompt"]]
    with LLM(str(fixtures_dir / "tiny-llama"), quiet=True, backend="reference") as llm:
        llm._front.eos_token_ids = case["eos_token_ids"]
        tokens = prompt + case["beams"][0]["token_ids"]
        for shown in (False, True):
            params = params_of(case)
            params.include_stop_str_in_output = shown
            best = llm.beam_search(prompt, params)[0].sequences[0]
            assert best.tokens == tokens
            assert best.text == llm.get_tokenizer().decode(tokens if shown else tokens[:-1])


@pytest.mark.parametrize("seats", [4, 9, 64])
def test_several_searches_and_any_number_of_seats(tiny_llama: Path, llm: LLM, seats: int) -> None:
    prompts = ["The cat", "A", "Once upon a time there was", "The cat"]
    params = BeamSearchParams(4, 10, length_penalty=0.5)
    alone = [llm.beam_search(prompt, params)[0] for prompt in prompts]
    with LLM(str(tiny_llama), quiet=True, max_num_seqs=seats) as made:
        assert made.beam_search(prompts, params) == alone


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"beam_width": 0}, "beam_width", "from 1 to 16384"),
        ({"beam_width": -1}, "beam_width", "from 1"),
        ({"beam_width": 16385}, "beam_width", "16385"),
        ({"beam_width": 10**50}, "beam_width", "bits"),
        *({"beam_width": value} and ({"beam_width": value}, "beam_width", "integer") for value in NUMBERS[1:]),
        *(({"max_tokens": value}, "max_tokens", "integer") for value in NUMBERS[1:]),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        *(({"length_penalty": value}, "length_penalty", "from -10 to 10") for value in ("1", None, True, math.nan, math.inf, 10.5, -11)),
        *(({"early_stopping": value}, "early_stopping", '"never"') for value in ("always", None, 1, 0.0, [])),
        *(({"temperature": value}, "temperature", "0 or 1") for value in (0.5, 2, "0", None, True, math.nan, [0])),
        *(({name: "yes"}, name, "true or false") for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")),
    ],
    ids=str,
)
def test_values_that_can_not_be(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **fields})
    assert error.value.param == param
    assert str(error.value).startswith(param)
    assert words in str(error.value)


def test_fields_that_it_lacks_are_named() -> None:
    for name in ("n", "logprobs", "best_of", "stop", "structured_outputs", "watermarking"):
        with pytest.raises(TypeError, match=name):
            BeamSearchParams(2, 4, **{name: 1})  # type: ignore[arg-type]


def test_numbers_of_numpy_are_as_good() -> None:
    import numpy as np

    params = BeamSearchParams(np.int64(3), np.int32(4), length_penalty=np.float32(0.5), temperature=np.float64(1))  # type: ignore[arg-type]
    assert (type(params.beam_width), type(params.max_tokens), type(params.length_penalty)) == (int, int, float)


def test_searches_that_can_not_be_are_refused_before_anything_runs(llm: LLM, tiny_llama: Path) -> None:
    for params, words in (
        (BeamSearchParams(65, 4), "max_num_seqs"),
        (SamplingParams(), "params must be BeamSearchParams, not SamplingParams"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            llm.beam_search(["a", "b"], params)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="priority"):
        llm.beam_search("a", BeamSearchParams(2, 4), priority=[1])
    changed = BeamSearchParams(2, 4)
    for width in (0, None):
        changed.beam_width = width  # type: ignore[assignment]
        with pytest.raises(InvalidRequestError, match="beam_width must be an integer"):
            llm.beam_search("a", changed)
    with LLM(str(tiny_llama), quiet=True, num_gpu_blocks_override=8, max_num_seqs=600) as small:
        with pytest.raises(InvalidRequestError, match="512, 1 of which end"):
            small.beam_search("a", BeamSearchParams(512, 4))
        with pytest.raises(
            InvalidRequestError, match=r"beam_width 4 with a prompt of 3 tokens and up to 40 of output can need 12 blocks"
        ) as error:
            small.beam_search([5, 6, 7], BeamSearchParams(4, 40))
        assert error.value.param == "beam_width"
        assert len(small.beam_search([5, 6, 7], BeamSearchParams(4, 28))[0].sequences) == 4


def test_over_the_engine_s_socket_as_in_process(tiny_llama: Path, llm: LLM) -> None:
    params = BeamSearchParams(4, 9)
    recorder = SpyRecorder()

    async def run() -> Any:
        config = EngineConfig(model=ModelConfig(str(tiny_llama)), backend=BackendConfig())
        engine = await AsyncLLM.start(config, quiet=True, recorder=recorder)
        try:
            gathered = await gather(engine.beam_search("The cat", params, "x", logprobs=8))
            silent = await gather(engine.beam_search("The cat", params, "y"))
            with pytest.raises(InvalidRequestError, match="max_num_seqs"):
                await gather(engine.beam_search("The cat", BeamSearchParams(65, 9), "z"))
            assert engine.stats.blocks_used == 0
            return gathered, silent
        finally:
            await engine.close()

    gathered, silent = asyncio.run(run())
    output = gathered.output()
    assert gathered.count == 1
    expected = llm.beam_search("The cat", params)[0].sequences
    size = len(output.prompt_token_ids)
    assert [each.token_ids for each in output.outputs] == [sequence.tokens[size:] for sequence in expected]
    assert [each.logprobs for each in output.outputs] == [sequence.logprobs for sequence in expected]
    assert [each.cumulative_logprob for each in output.outputs] == [sequence.cum_logprob for sequence in expected]
    assert [each.index for each in output.outputs] == [0, 1, 2, 3]
    assert [each.text for each in silent.output().outputs] == [each.text for each in output.outputs]
    assert [each.logprobs for each in silent.output().outputs] == [None] * 4
    assert recorder.tokens == [36, 36]
    assert [(entry[0], entry[2], entry[4], entry[5]) for entry in recorder.finished] == [("length", 36, 4, 9)] * 2


def test_a_search_that_is_given_up_frees_all(long_llama: Path) -> None:
    async def run() -> None:
        config = EngineConfig(model=ModelConfig(str(long_llama)), backend=BackendConfig("reference"))
        engine = await AsyncLLM.start(config, quiet=True)
        try:
            search = engine.beam_search("The cat", BeamSearchParams(4, 4000, ignore_eos=True), "x")
            first = asyncio.ensure_future(anext(search))
            async with asyncio.timeout(60):
                while engine.stats.blocks_used < 4:
                    await asyncio.sleep(0.01)
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
                await search.aclose()
                # The next request's steps tell what is in use.
                await gather(engine.generate("A", SamplingParams(temperature=0, max_tokens=3), "y"))
            assert (engine.stats.running, engine.stats.blocks_used) == (0, 0)
        finally:
            await engine.close()

    asyncio.run(run())
