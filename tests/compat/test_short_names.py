"""The short dialect: InferenceEngine, GenerationConfig and `content`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm import GenerationConfig, InferenceEngine, SamplingParams

from octavo.protocol.errors import ConfigError, InvalidRequestError


@pytest.fixture(scope="module")
def engine(fixtures_dir: Path) -> Iterator[InferenceEngine]:
    path = str(fixtures_dir / "tiny-llama")
    with InferenceEngine(model_path=path, trust_remote=True, gpu_util=0.25, max_num_seqs=4, max_model_len=64, quiet=True) as made:
        yield made


def test_its_names_are_the_long_ones(engine: InferenceEngine):
    config = GenerationConfig(temp=0.8, top_p=0.95, max_tokens=12, seed=3, stop=["zzz"])
    assert config.sampling_params == SamplingParams(temperature=0.8, top_p=0.95, max_tokens=12, seed=3, stop=["zzz"])
    assert GenerationConfig().sampling_params == SamplingParams()
    prompts = ["The cat", "안녕하세요"]
    short = engine.generate(prompts, config, use_tqdm=False)
    long = engine.generate(prompts, config.sampling_params, use_tqdm=False)
    assert [result.outputs[0].content for result in short] == [result.outputs[0].text for result in long]
    assert [len(result.outputs[0].token_ids) for result in short] == [12, 12]
    assert engine.generate("The cat", use_tqdm=False)[0].outputs[0].content


def test_arguments_act(engine: InferenceEngine, fixtures_dir: Path):
    with pytest.raises(ConfigError, match="gpu_memory_utilization"):
        InferenceEngine(fixtures_dir / "tiny-llama", gpu_util=1.5)
    with pytest.raises(ConfigError, match="trust_remote_code"):
        InferenceEngine(fixtures_dir / "tiny-llama", trust_remote="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "param", "words"),
    [
        ({"temp": 3}, "temp", "^temp must be"),
        ({"top_p": 0}, "top_p", "^top_p must be"),
        ({"temperature": 0.5}, "temperature", "^temperature is called temp"),
        ({"top_q": 1}, "top_q", "is not a sampling parameter; did you mean top_p"),
    ],
)
def test_what_cannot_hold_is_named(values: dict[str, float], param: str, words: str):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        GenerationConfig(**values)
    assert caught.value.param == param
