"""The prefix cache as a script with LLM sees it: what is found, for whom, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, RequestOutput, SamplingParams
from octavo.protocol.errors import ConfigError, InvalidRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
IDS = list(range(5, 45))


@pytest.fixture
def fresh(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), quiet=True) as made:
        yield made


def one(llm: LLM, prompt: Any, params: SamplingParams = GREEDY) -> RequestOutput:
    return llm.generate(prompt, params, use_tqdm=False)[0]


def test_a_prompt_is_found_again(fresh: LLM) -> None:
    first, second = one(fresh, IDS), one(fresh, IDS)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    assert one(fresh, IDS[:32]).num_cached_tokens == 31
    assert one(fresh, IDS[:31]).num_cached_tokens == 16


def test_nothing_is_found_with_the_cache_off(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), quiet=True, enable_prefix_caching=False) as llm:
        assert [one(llm, IDS).num_cached_tokens for _ in range(2)] == [0, 0]
        assert llm._core.stats().blocks_cached == 0
        assert llm.reset_prefix_cache() is True


def test_a_prompt_as_a_dictionary(fresh: LLM) -> None:
    plain = one(fresh, "The cat")
    for prompt in ({"prompt": "The cat"}, {"prompt_token_ids": plain.prompt_token_ids}, {"prompt": "The cat", "cache_salt": None}):
        output = one(fresh, prompt)
        assert output.prompt_token_ids == plain.prompt_token_ids
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids
    assert one(fresh, {"prompt_token_ids": IDS, "prompt": "shown"}).prompt == "shown"
    assert one(fresh, {"prompt_token_ids": IDS}).prompt is None


def test_a_salt_keeps_tenants_apart(fresh: LLM) -> None:
    def cached(**prompt: Any) -> int:
        return one(fresh, {"prompt_token_ids": IDS, **prompt}).num_cached_tokens

    assert cached() == 0
    assert cached(cache_salt="a") == 0
    assert cached(cache_salt="b") == 0
    assert cached() == cached(cache_salt="a") == cached(cache_salt="b") == 32
    assert cached(cache_salt="c") == 0


@pytest.mark.parametrize("salt", ["", 5, b"a", "x" * 129])
def test_what_is_no_salt(llm: LLM, salt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="cache_salt must be a string of 1 to 128 characters") as caught:
        one(llm, {"prompt": "The cat", "cache_salt": salt})
    assert caught.value.param == "cache_salt"


def test_reset(fresh: LLM) -> None:
    one(fresh, IDS)
    assert fresh.reset_prefix_cache() is True
    assert one(fresh, IDS).num_cached_tokens == 0
    assert one(fresh, IDS).num_cached_tokens == 32
    fresh.close()
    with pytest.raises(RuntimeError, match="closed"):
        fresh.reset_prefix_cache()


def test_samples_share_what_was_found(fresh: LLM) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True)
    assert one(fresh, IDS, params).num_cached_tokens == 0
    assert one(fresh, IDS, params).num_cached_tokens == 32


def test_an_interrupted_batch_leaves_what_it_computed(fresh: LLM) -> None:
    steps = 0
    step = fresh._core.step

    def interrupted() -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return step()

    fresh._core.step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        one(fresh, IDS)
    fresh._core.step = step  # type: ignore[method-assign]
    assert fresh._core.stats().blocks_used == 0
    assert one(fresh, IDS).num_cached_tokens == 32


# --- priorities


def test_priorities_decide_who_is_first(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), quiet=True, max_num_seqs=1, scheduling_policy="priority") as llm:
        outputs = llm.generate([IDS, IDS[1:], IDS[2:]], GREEDY, use_tqdm=False, priority=[2, 0, 1])
        times = [output.metrics.first_scheduled_time for output in outputs if output.metrics is not None]
        assert sorted(range(3), key=lambda place: times[place] or 0.0) == [1, 2, 0]
        assert [output.prompt_token_ids for output in outputs] == [IDS, IDS[1:], IDS[2:]]


@pytest.mark.parametrize(
    ("priority", "words"),
    [
        ([1], "priority 1 has no meaning here: the engine serves first come, first served"),
        ([0, 0], "there are 1 prompts but 2 priorities"),
        (1, "priority must be a list of whole numbers"),
        (["high"], "priority must be a list of whole numbers"),
        ([True], "priority must be a list of whole numbers"),
    ],
)
def test_refused_priorities(llm: LLM, priority: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        llm.generate([IDS], GREEDY, use_tqdm=False, priority=priority)
    assert caught.value.param == "priority"
    assert len(llm.generate([IDS], GREEDY, use_tqdm=False, priority=[0])) == 1


def test_a_priority_beyond_64_bits(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), quiet=True, scheduling_policy="priority") as llm, pytest.raises(InvalidRequestError, match="64 bits"):
        llm.generate([IDS], GREEDY, use_tqdm=False, priority=[2**63])


def test_an_unknown_policy(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="scheduling_policy: must be one of fcfs, priority, not 'lottery'"):
        LLM(str(tiny_llama), quiet=True, scheduling_policy="lottery")


# --- over the engine's socket


@pytest.mark.asyncio(loop_scope="module")
async def test_asynchronously_too(allm: AsyncLLM) -> None:
    async def cached(prompt: Any, name: str) -> int:
        (output,) = [output async for output in allm.generate(prompt, GREEDY, name, stream=False)]
        return output.num_cached_tokens

    prompt = {"prompt_token_ids": [400 - token for token in IDS], "cache_salt": "async"}
    assert [await cached(prompt, "a"), await cached(prompt, "b")] == [0, 32]
    assert await allm.reset_prefix_cache() is True
    assert await cached(prompt, "c") == 0
    with pytest.raises(InvalidRequestError, match="priority 3 has no meaning here"):
        await anext(allm.generate("The cat", GREEDY, "d", priority=3))
