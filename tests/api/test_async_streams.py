"""AsyncLLM: what a stream adds up to is what comes without streaming, and what LLM gives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gathering import Gathered, gather
from patience import patient
from workload import greedy, prompts, request_bits, run, seeded

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.backends.select import has_native
from octavo.protocol.errors import InvalidRequestError

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=2)


def whole(gathered: Gathered) -> Any:
    return [
        (s.index, s.text, s.token_ids, s.logprobs, s.cumulative_logprob, s.finish_reason, s.stop_reason) for s in gathered.output().outputs
    ]


async def both(llm: AsyncLLM, prompt: Any, params: SamplingParams) -> tuple[Gathered, Gathered]:
    """(streamed, not streamed)"""
    async with asyncio.timeout(120):
        return await gather(llm.generate(prompt, params, "streamed")), await gather(llm.generate(prompt, params, "whole", stream=False))


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(n=3, seed=5, max_tokens=25, logprobs=0),
        SamplingParams(n=3, seed=6, max_tokens=25, stop=["e", "o"], logprobs=1),
        SamplingParams(temperature=0, max_tokens=20, stop=["d:low", "never"]),
        SamplingParams(temperature=0, max_tokens=20, stop="d:l", include_stop_str_in_output=True),
        SamplingParams(temperature=0, max_tokens=3, stop="lowest"),
        SamplingParams(temperature=0, max_tokens=1),
        SamplingParams(temperature=0, stop_token_ids=[428]),
        SamplingParams(temperature=0, max_tokens=10, detokenize=False, logprobs=0),
        SamplingParams(temperature=0, max_tokens=None, ignore_eos=True),
    ],
    ids=str,
)
async def test_deltas_add_up(allm: AsyncLLM, llm: LLM, params: SamplingParams) -> None:
    streamed, single = await both(allm, "The cat", params)
    assert single.count == 1
    assert whole(streamed) == whole(single)
    expected = Gathered()
    expected.add(llm.generate("The cat", params, use_tqdm=False)[0])
    assert whole(single) == whole(expected)


async def test_a_slow_consumer_gets_everything_in_larger_pieces(allm: AsyncLLM) -> None:
    """What came while it was away comes as one."""
    slow = Gathered()
    async for output in allm.generate("The cat", GREEDY, "slow"):
        slow.add(output)
        async with asyncio.timeout(patient(20)):
            while allm.stats.running:
                await asyncio.sleep(0.002)
    assert slow.count <= 2
    assert whole(slow) == whole(await gather(allm.generate("The cat", GREEDY, "again", stream=False)))


async def test_text_that_may_become_a_stop_string_is_held_back(allm: AsyncLLM) -> None:
    shown = ""
    async for output in allm.generate("The cat", SamplingParams(temperature=0, max_tokens=20, stop="nd:low"), "r"):
        shown += output.outputs[0].text
        assert shown in ("", "ma")
        if output.finished:
            assert output.outputs[0].stop_reason == "nd:low"
    assert shown == "ma"


async def test_every_sample_ends_once(allm: AsyncLLM) -> None:
    ends = []
    params = SamplingParams(n=4, seed=3, temperature=1.2, max_tokens=40, stop=["e", "o"])
    async for output in allm.generate("Hello", params, "r"):
        ends += [sample.index for sample in output.outputs if sample.finished()]
        assert output.finished == (len(ends) == 4)
    assert sorted(ends) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [greedy, seeded])
@pytest.mark.parametrize("stream", [True, False])
async def test_64_at_once_equal_those_in_process(allm: AsyncLLM, llm: LLM, kind: Any, stream: bool) -> None:
    params = kind()
    async with asyncio.timeout(120):
        found = await asyncio.gather(
            *(
                gather(allm.generate(prompt, each, f"r{index}", stream=stream))
                for index, (prompt, each) in enumerate(zip(prompts(), params, strict=True))
            )
        )
    assert [request_bits(gathered.output()) for gathered in found] == run(llm, params)


async def test_requests_without_a_seed_repeat_in_order_of_arrival(allm: AsyncLLM) -> None:
    """They draw from the engine's seed, so two in a row differ."""
    first, second = [await gather(allm.generate("The cat", SamplingParams(), name)) for name in "ab"]
    assert whole(first) != whole(second)


async def test_token_ids_and_special_tokens(allm: AsyncLLM) -> None:
    ids = allm.tokenizer.encode("The cat")
    text, tokens = await gather(allm.generate("The cat", GREEDY, "a")), await gather(allm.generate(ids, GREEDY, "b"))
    assert whole(text) == whole(tokens)
    assert text.output().prompt == "The cat"
    assert tokens.output().prompt is None


async def test_what_it_says_of_itself(allm: AsyncLLM, tiny_llama: Any) -> None:
    info = allm.info
    assert info.model == str(tiny_llama)
    assert (info.vocab_size, info.max_model_len, info.block_size) == (512, 512, 16)
    assert info.backend == ("cpu" if has_native() else "reference")
    assert allm.is_alive
    assert allm.default_sampling == {}
    assert allm.render_chat([{"role": "user", "content": "x"}]) == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([9] * 600, GREEDY, r"600 tokens, .* 512 tokens"),
        ("", GREEDY, "empty"),
        ([512], GREEDY, "512"),
        ({"text": "x"}, GREEDY, "'text' is not a key of a prompt"),
        ("x", SamplingParams(stop_token_ids=[512]), "stop_token_ids"),
        ("x", SamplingParams(logprobs=21), "logprobs"),
        ("x", {"temperature": 0}, "sampling_params"),
    ],
)
async def test_refused_requests(allm: AsyncLLM, prompt: Any, params: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        await gather(allm.generate(prompt, params, "refused"))
    assert (await gather(allm.generate("x", GREEDY, "refused"))).output().finished
