"""LLM.embed and LLM.encode: values of another implementation, and the same bits whatever runs beside."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.config.engine import BackendConfig, CacheConfig, EngineConfig, ModelConfig
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.pooling import POOLINGS, PoolingParams

MEAN, LAST = PoolingParams("mean", normalize=False), PoolingParams("last", normalize=False)
BACKENDS = ["reference", "auto"]


def prompts() -> list[list[int]]:
    """Of 1 to 200 tokens; two begin alike."""
    made = np.random.default_rng(5)
    listed = [made.integers(4, 500, count).tolist() for count in (1, 3, 16, 17, 64, 200)]
    return [*listed, [*listed[-1][:100], 9, 9, 9]]


def mixed() -> list[PoolingParams]:
    return [(MEAN, LAST)[index % 2] for index in range(len(prompts()))]


def vectors(llm: LLM, texts: Any, params: Any) -> list[list[float]]:
    return [each.outputs.data for each in llm.encode(texts, params, use_tqdm=False)]


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(fixtures_dir: Path) -> Path:
    return fixtures_dir / "tiny-llama"


@pytest.fixture(scope="module")
def alone(model: Path, backend: str) -> list[list[float]]:
    """Each by itself, nothing cached, in one chunk."""
    with LLM(model, backend=backend, enable_prefix_caching=False, quiet=True) as llm:
        return [vectors(llm, prompt, params)[0] for prompt, params in zip(prompts(), mixed(), strict=True)]


@pytest.fixture(scope="module")
def llm_of(model: Path) -> Iterator[LLM]:
    with LLM(model, quiet=True) as made:
        yield made


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral"])
def test_hidden_states_are_those_of_another_implementation(fixtures_dir: Path, name: str) -> None:
    expected = json.loads((fixtures_dir / name / "hidden.json").read_text())["prompts"]
    ids = [prompt["input_ids"] for prompt in expected]
    with LLM(fixtures_dir / name, backend="reference", quiet=True) as reference:
        exact = {pooling: vectors(reference, ids, PoolingParams(pooling, normalize=False)) for pooling in POOLINGS}
    with LLM(fixtures_dir / name, quiet=True) as fast:
        rounded = {pooling: vectors(fast, ids, PoolingParams(pooling, normalize=False)) for pooling in POOLINGS}
    for pooling in POOLINGS:
        for index, prompt in enumerate(expected):
            assert exact[pooling][index] == pytest.approx(prompt[pooling], abs=2e-4)
            cosine = np.dot(rounded[pooling][index], prompt[pooling])
            cosine /= np.linalg.norm(rounded[pooling][index]) * np.linalg.norm(prompt[pooling])
            # Weights are bfloat16 there.
            assert cosine > 0.999


def test_batched(model: Path, backend: str, alone: list[list[float]]) -> None:
    with LLM(model, backend=backend, enable_prefix_caching=False, quiet=True) as llm:
        assert vectors(llm, prompts(), mixed()) == alone


@pytest.mark.parametrize("tokens", [1, 7, 48])
def test_chunked(model: Path, backend: str, alone: list[list[float]], tokens: int) -> None:
    with LLM(model, backend=backend, max_num_batched_tokens=tokens, max_num_seqs=3, enable_prefix_caching=False, quiet=True) as llm:
        assert vectors(llm, prompts(), mixed()) == alone


def test_cached(model: Path, backend: str, alone: list[list[float]]) -> None:
    with LLM(model, backend=backend, quiet=True) as llm:
        for _ in range(2):
            outputs = llm.encode(prompts(), mixed(), use_tqdm=False)
            assert [each.outputs.data for each in outputs] == alone
        # A mean needs every token computed, the last token only what the cache has not.
        assert [each.num_cached_tokens for each in outputs] == [0, 0, 0, 16, 0, 192, 0]


@pytest.mark.parametrize("params", [MEAN, LAST], ids=POOLINGS[::-1])
def test_computed_again(model: Path, backend: str, params: PoolingParams) -> None:
    """A request that loses its blocks in the middle of its prompt."""
    with LLM(model, backend=backend, max_num_batched_tokens=48, quiet=True) as llm:
        (request,) = llm._front.prepare_embedding(prompts()[5], params, "a").engine_requests()
        llm._core.add(request)
        for _ in range(2):
            assert llm._core.step() == []
        assert llm._core._scheduler.reset_prefix_cache(reset_running_requests=True)
        outputs: list[Any] = []
        while llm._core.has_work:
            outputs += llm._core.step()
        (output,) = outputs
        assert output.num_preemptions == 1
        assert np.frombuffer(output.embedding, np.float32).tolist() == vectors(llm, prompts()[5], params)[0]


async def test_beside_generations(model: Path, backend: str, alone: list[list[float]]) -> None:
    config = EngineConfig(
        model=ModelConfig(str(model)), cache=CacheConfig(kv_cache_memory=64 << 20), backend=BackendConfig(backend), seed=0
    )
    llm = await AsyncLLM.start(config, quiet=True)
    greedy = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=2)

    async def generate(index: int) -> list[int]:
        outputs = [output async for output in llm.generate(prompts()[index], greedy, f"g{index}", stream=False)]
        return outputs[0].outputs[0].token_ids

    async def embed(index: int) -> list[float]:
        return (await llm.embed(prompts()[index], mixed()[index], f"e{index}")).outputs.embedding

    try:
        before = [await generate(index) for index in range(3)]
        found = await asyncio.gather(*(embed(index) for index in range(7)), *(generate(index) for index in range(3)))
        assert found[:7] == alone
        assert found[7:] == before
        cut = asyncio.create_task(embed(5))
        await asyncio.sleep(0)
        cut.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut
        assert await embed(5) == alone[5]
    finally:
        await llm.close()


def test_embeddings_have_length_one_and_encodings_are_as_they_are(llm_of: LLM) -> None:
    (embedded,) = llm_of.embed("The cat", use_tqdm=False)
    (encoded,) = llm_of.encode("The cat", use_tqdm=False)
    assert math.hypot(*embedded.outputs.embedding) == pytest.approx(1, abs=1e-6)
    length = math.hypot(*encoded.outputs.data)
    assert abs(length - 1) > 0.1
    assert embedded.outputs.embedding == pytest.approx([value / length for value in encoded.outputs.data], abs=1e-6)
    assert embedded.outputs.hidden_size == len(embedded.outputs.embedding) == llm_of._core.info.hidden_size
    assert embedded.prompt_token_ids == llm_of.get_tokenizer().encode("The cat")
    assert embedded.finished
    assert llm_of.embed("The cat", PoolingParams(normalize=False), use_tqdm=False)[0].outputs.embedding == encoded.outputs.data
    assert llm_of.embed("The cat", PoolingParams("mean"), use_tqdm=False)[0].outputs.embedding != embedded.outputs.embedding


def test_a_prompt_may_fill_the_context(model: Path) -> None:
    with LLM(model, max_model_len=32, quiet=True) as llm:
        assert len(llm.embed([5] * 32, use_tqdm=False)[0].prompt_token_ids) == 32
        with pytest.raises(InvalidRequestError, match=r"has 33 tokens, but the model's context of 32 tokens takes a prompt of at most 32$"):
            llm.embed([5] * 33, use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="at most 31, so that one token"):
            llm.generate([5] * 32, use_tqdm=False)


def test_the_one_task_of_pooling(llm_of: LLM) -> None:
    assert llm_of.encode("a", pooling_task="embed", use_tqdm=False) != []
    with pytest.raises(InvalidRequestError, match=r"^pooling_task: 'classify' is not supported .* has 'embed'$"):
        llm_of.encode("a", pooling_task="classify", use_tqdm=False)


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"prompts": "a", "pooling_params": SamplingParams()}, "pooling_params"),
        ({"prompts": ["a", "b"], "pooling_params": [PoolingParams()]}, "pooling_params"),
        ({"prompts": "a", "pooling_params": PoolingParams(dimensions=3)}, "dimensions"),
        ({"prompts": "a", "priority": [1]}, "priority"),
        ({"prompts": [[9999]]}, "prompt"),
        ({"prompts": [[]]}, "prompt"),
    ],
)
def test_what_cannot_be_embedded(llm_of: LLM, arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm_of.embed(**arguments, use_tqdm=False)
    assert caught.value.param == param
    assert llm_of._core.request_ids == []


@pytest.mark.parametrize(
    ("values", "param"), [({"pooling": "max"}, "pooling"), ({"normalize": 1}, "normalize"), ({"dimensions": 0}, "dimensions")]
)
def test_parameters_that_cannot_hold(values: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{param} must be") as caught:
        PoolingParams(**values)
    assert caught.value.param == param


def test_a_model_whose_states_overflow_fails_the_request_alone(llm_of: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    program = llm_of._core._executor._program
    states = program.hidden_states

    def broken() -> Any:
        found = states().copy()
        found[0] = np.nan
        return found

    monkeypatch.setattr(type(program), "hidden_states", lambda self: broken())
    with pytest.raises(Exception, match="hidden states are not finite"):
        llm_of.embed("The cat", use_tqdm=False)
    monkeypatch.undo()
    assert llm_of.embed("The cat", use_tqdm=False)[0].finished
