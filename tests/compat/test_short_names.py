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
    path = fixtures_dir / "tiny-llama"
    with InferenceEngine(path, precision="fp16", max_batch=3, prefix_caching=False, gpu_mem_usage=0.2, quiet=True) as made:
        assert (made._core.info.kv_cache_dtype, made._core.info.max_num_seqs) == ("float16", 3)
        assert [made.generate([7] * 40, use_tqdm=False)[0].num_cached_tokens for _ in range(2)] == [0, 0]
    with InferenceEngine(path, quant=None, parallel_size=1, quiet=True) as made:
        assert made.generate("x", use_tqdm=False)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("gpu_util", 1.5, ""),
        ("trust_remote", "x", "'x' is not supported by this version of Octavo"),
        ("gpu_mem_usage", 1.5, ""),
        ("precision", "int4", "must be one of"),
        ("parallel_size", 2, "2 is not supported by this version of Octavo: it runs on one device"),
        ("quant", "awq", "'awq' is not supported by this version of Octavo: awq, gptq"),
        ("max_batch", 0, ""),
        ("prefix_caching", 7, ""),
        ("max_model_len", 0, ""),
    ],
)
def test_arguments_are_refused_as_they_were_called(fixtures_dir: Path, name: str, value: object, words: str):
    with pytest.raises(ConfigError, match=f"^{name}: {words}") as caught:
        InferenceEngine(fixtures_dir / "tiny-llama", **{name: value})  # type: ignore[arg-type]
    assert caught.value.param == name


@pytest.mark.parametrize(("name", "meant"), [("gpu_utl", "gpu_util"), ("max_model_length", "max_model_len"), ("quants", "quant")])
def test_an_unknown_argument_is_told_the_nearest_name(name: str, meant: str):
    with pytest.raises(TypeError, match=rf"^InferenceEngine\(\) has no argument '{name}'; did you mean {meant}\?"):
        InferenceEngine("nowhere", **{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("twice", [{"gpu_util": 0.5, "gpu_memory_utilization": 0.5}, {"precision": "half", "dtype": "half"}])
def test_an_argument_by_both_its_names_is_refused(fixtures_dir: Path, twice: dict[str, object]):
    with pytest.raises(TypeError, match=r"InferenceEngine\(\) got \w+ twice"):
        InferenceEngine(fixtures_dir / "tiny-llama", **twice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "param", "words"),
    [
        ({"temp": 3}, "temp", "^temp must be"),
        ({"top_p": 0}, "top_p", "^top_p must be"),
        ({"temperature": 0.5}, "temperature", "^temperature is called temp"),
        ({"top_q": 1}, "top_q", "is not a sampling parameter; did you mean top_p"),
        ({"tempp": 1}, "tempp", "is not a sampling parameter; did you mean temp\\?"),
        ({"best_of": 2}, "best_of", "not supported by this version; ask for n samples"),
    ],
)
def test_what_cannot_hold_is_named(values: dict[str, float], param: str, words: str):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        GenerationConfig(**values)
    assert caught.value.param == param
