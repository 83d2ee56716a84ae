"""Greedy tokens and logprobs against independent float32 references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.protocol.outputs import RequestOutput

SMALL = ["tiny-llama", "tiny-llama3-rope", "tiny-mistral", "tiny-gemma2", "tiny-gemma3-text"]
GGUF_TYPES = ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL"]


def complete(llm: LLM, expected: dict[str, Any]) -> list[RequestOutput]:
    """The greedy continuation of every prompt, all in one batch, with the five best logprobs."""
    prompts = expected["prompts"]
    params = SamplingParams(temperature=0, max_tokens=len(prompts[0]["output_ids"]), ignore_eos=True, logprobs=5)
    return llm.generate([prompt["input_ids"] for prompt in prompts], params, use_tqdm=False)


def check(llm: LLM, expected: dict[str, Any]) -> None:
    tolerance = expected["tolerance"]["top5_logprob_abs"]
    compared = 0
    for prompt, output in zip(expected["prompts"], complete(llm, expected), strict=True):
        sample = output.outputs[0]
        steps = prompt.get("compare_steps", len(prompt["output_ids"]))
        assert sample.token_ids[:steps] == prompt["output_ids"][:steps], prompt["name"]
        assert sample.logprobs is not None
        for given, wanted in zip(sample.logprobs[:steps], prompt.get("top5_logprobs", []), strict=False):
            assert set(given) == {token for token, _ in wanted}
            for token, logprob in wanted:
                assert given[token].logprob == pytest.approx(logprob, abs=tolerance)
                compared += 1
    assert compared >= 5 * 32


@pytest.mark.parametrize("name", SMALL)
def test_safetensors_models_match_the_reference(fixtures_dir: Path, name: str) -> None:
    expected = json.loads((fixtures_dir / name / "expected.json").read_text())
    with LLM(str(fixtures_dir / name), quiet=True, backend="reference") as llm:
        check(llm, expected)


@pytest.mark.parametrize("kind", GGUF_TYPES)
def test_gguf_models_match_the_reference(fixtures_dir: Path, kind: str) -> None:
    folder = fixtures_dir / "gguf-tiny-llama"
    expected = json.loads((folder / f"expected-{kind}.json").read_text())
    with LLM(str(folder / f"tiny-llama-{kind}.gguf"), quiet=True, backend="reference") as llm:
        check(llm, expected)


@pytest.mark.model
def test_default_model_matches_the_reference(fixtures_dir: Path, smollm2_path: Path) -> None:
    expected = json.loads((fixtures_dir / "smollm2" / "expected.json").read_text())
    assert len(expected["prompts"]) == 12
    with LLM(str(smollm2_path), quiet=True, backend="reference", max_model_len=1024) as llm:
        check(llm, expected)


@pytest.mark.model
def test_default_model_keeps_its_perplexity(fixtures_dir: Path, smollm2_path: Path) -> None:
    """Mean negative log-likelihood over four windows of 512 tokens, the first token of each unscored."""
    from octavo.backends.reference.backend import ReferenceBackend
    from octavo.loading.open import open_checkpoint
    from octavo.models.registry import build_model
    from octavo.worker.inputs import build_inputs

    passage = json.loads((fixtures_dir / "smollm2" / "expected.json").read_text())["perplexity"]
    with open_checkpoint(smollm2_path) as checkpoint:
        model = build_model(checkpoint)
        program = ReferenceBackend().compile(model.graph, model.weight, lambda done: None)
    program.allocate_kv_cache(512 // 16, 16)
    total = np.float64(0)
    for start in range(0, 2048, 512):
        window = np.array(passage["token_ids"][start : start + 512], np.int32)
        step = one_sequence(window, build_inputs)
        logits = program.run(step)
        shifted = logits - logits.max(axis=1, keepdims=True)
        logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        total -= logprobs[np.arange(511), window[1:]].astype(np.float64).sum()
    program.close()
    assert total / 2044 == pytest.approx(passage["mean_nll"], abs=0.001)


def one_sequence(tokens: np.ndarray, build_inputs: Any) -> Any:
    """A step that computes all of `tokens` as one sequence and wants the logits of every row but the last."""
    from dataclasses import replace

    from octavo.worker.request import GrowingArray, WorkerRequest

    blocks = GrowingArray(list(range(len(tokens) // 16)))
    request = WorkerRequest("only", GrowingArray(list(tokens)), 0, blocks, None)  # type: ignore[arg-type]
    return replace(build_inputs([(request, len(tokens), 0)], 16), logit_rows=np.arange(len(tokens) - 1, dtype=np.int32))
