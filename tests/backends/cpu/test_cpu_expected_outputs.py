"""The CPU backend on real checkpoints, teacher-forced against independent float32 references, on every instruction set.

It rounds activations, to bfloat16 or to 8 bits; the thresholds are those of the fixtures for engines that do: a token may differ only where
the reference's first two logits lie closer than the gap.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_models import Sequence, advance

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.program import CpuProgram
from octavo.backends.reference.kv_cache import FORMATS
from octavo.loading.open import open_checkpoint
from octavo.models.registry import build_model
from octavo.quantization.decode import decode
from octavo.quantization.tensor import CheckpointTensor

native = pytest.importorskip("octavo._native", reason="Octavo was installed without a C++ compiler")

ISAS = native.available_isas()
# What a program takes unless it is told otherwise. The kernels of all sets are compared with one another elsewhere, for every format.
BEST = ISAS[-1]


@dataclass(frozen=True)
class Tolerance:
    """Of logits: the gap below which tokens may differ, and how far the five best logprobs may be off, in the mean and at most."""

    gap: float
    mean: float
    most: float


BF16 = Tolerance(gap=0.15, mean=0.06, most=0.25)
INT8 = Tolerance(gap=0.25, mean=0.15, most=0.5)
# llama.cpp on the same file, with 8-bit activations as well, has 567 of 576 tokens equal and differs at gaps of up to 0.63.
DEFAULT_MODEL = Tolerance(gap=0.65, mean=0.15, most=2.0)
MODELS = {
    "tiny-llama": ("tiny-llama", "expected.json", BF16),
    "tiny-llama3-rope": ("tiny-llama3-rope", "expected.json", BF16),
    "tiny-mistral": ("tiny-mistral", "expected.json", BF16),
    "tiny-gemma2": ("tiny-gemma2", "expected.json", BF16),
    "tiny-gemma3-text": ("tiny-gemma3-text", "expected.json", BF16),
    "F16": ("gguf-tiny-llama/tiny-llama-F16.gguf", "gguf-tiny-llama/expected-F16.json", BF16),
    "Q8_0": ("gguf-tiny-llama/tiny-llama-Q8_0.gguf", "gguf-tiny-llama/expected-Q8_0.json", INT8),
    "Q4_0": ("gguf-tiny-llama/tiny-llama-Q4_0.gguf", "gguf-tiny-llama/expected-Q4_0.json", INT8),
    "Q4_1": ("gguf-tiny-llama/tiny-llama-Q4_1.gguf", "gguf-tiny-llama/expected-Q4_1.json", INT8),
    "Q4_K_M": ("gguf-tiny-llama/tiny-llama-Q4_K_M.gguf", "gguf-tiny-llama/expected-Q4_K_M.json", INT8),
    "IQ4_NL": ("gguf-tiny-llama/tiny-llama-IQ4_NL.gguf", "gguf-tiny-llama/expected-IQ4_NL.json", INT8),
}


def compiled(path: Path, isa: str, kv_cache_dtype: str = "auto") -> CpuProgram:
    with open_checkpoint(path) as checkpoint:
        model = build_model(checkpoint)
        program = CpuBackend(isa=isa).compile(model.graph, model.weight, lambda done: None, kv_cache_dtype)
    program.allocate_kv_cache(64, 16)
    return program


def logprobs(program: CpuProgram, token_ids: list[int]) -> Any:
    """`[tokens, vocabulary]` of one sequence from its start."""
    logits = advance(program, [(Sequence(np.array(token_ids), list(range(64))), len(token_ids))])[0]
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def check(program: CpuProgram, expected: dict[str, Any], tolerance: Tolerance, least: float) -> None:
    """`least` is the share of tokens that must be equal."""
    equal, off = [], []
    for prompt in expected["prompts"]:
        outputs = prompt["output_ids"]
        found = logprobs(program, prompt["input_ids"] + outputs)[len(prompt["input_ids"]) - 1 : -1]
        for step, (row, token, gap) in enumerate(zip(found, outputs, prompt["gaps"], strict=True)):
            equal.append(int(row.argmax()) == token)
            assert equal[-1] or gap < tolerance.gap, (prompt["name"], step, gap)
        for row, best in zip(found, prompt.get("top5_logprobs", []), strict=False):
            off += [abs(row[token] - logprob) for token, logprob in best]
    assert np.mean(equal) >= least
    assert len(off) >= 5 * 32
    assert np.mean(off) < tolerance.mean
    assert max(off) < tolerance.most


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", list(MODELS))
def test_small_models_match_the_reference(fixtures_dir: Path, name: str, isa: str) -> None:
    path, expected, tolerance = MODELS[name]
    file = fixtures_dir / (expected if "/" in expected else f"{path}/{expected}")
    program = compiled(fixtures_dir / path, isa)
    check(program, json.loads(file.read_text()), tolerance, least=0.9)
    program.close()


@pytest.mark.model
@pytest.mark.parametrize("isa", ISAS)
def test_the_default_model_matches_the_reference(fixtures_dir: Path, smollm2_path: Path, isa: str) -> None:
    """Tokens, and the perplexity of a passage to half a percent; with portable code, ten times slower, a third of the tokens."""
    expected = json.loads((fixtures_dir / "smollm2" / "expected.json").read_text())
    program = compiled(smollm2_path, isa)
    if isa == "portable":
        check(program, {"prompts": expected["prompts"][::3]}, DEFAULT_MODEL, least=0.97)
    else:
        check(program, expected, DEFAULT_MODEL, least=0.97)
        assert abs(perplexity_ratio(program, expected) - 1) < 0.005
    program.close()


@pytest.mark.model
@pytest.mark.parametrize(("kv_cache_dtype", "limit"), [("float32", 0.005), ("float16", 0.005), ("int8", 0.005), ("fp8", 0.02)])
def test_types_of_the_cache_keep_the_perplexity(fixtures_dir: Path, smollm2_path: Path, kv_cache_dtype: str, limit: float) -> None:
    """Against the reference with a float32 cache, weights and activations. What fp8's three bits of a significand cost is 1.6 percent on
    the reference backend as well."""
    expected = json.loads((fixtures_dir / "smollm2" / "expected.json").read_text())
    program = compiled(smollm2_path, BEST, kv_cache_dtype)
    assert program.kv_cache_dtype == kv_cache_dtype
    ratio = perplexity_ratio(program, expected)
    print(f"{kv_cache_dtype}: {ratio - 1:+.2%}")
    assert abs(ratio - 1) < limit
    program.close()


@pytest.mark.model
def test_bfloat16_weights_keep_the_perplexity(fixtures_dir: Path, smollm2_path: Path) -> None:
    """The default model's weights rounded to bfloat16, with a cache that rounds nothing: the activations alone are rounded besides."""
    expected = json.loads((fixtures_dir / "smollm2" / "expected.json").read_text())
    with open_checkpoint(smollm2_path) as checkpoint:
        model = build_model(checkpoint)

        def rounded(name: str) -> CheckpointTensor:
            stored = model.weight(name)
            values, _ = FORMATS["bfloat16"].encode(np.ascontiguousarray(decode(stored)).reshape(-1))
            return CheckpointTensor(name, "BF16", stored.shape, values.view(np.uint8).reshape(-1, 2 * stored.shape[-1]))

        program = CpuBackend(isa=BEST).compile(model.graph, rounded, lambda done: None, "float32")
    program.allocate_kv_cache(64, 16)
    ratio = perplexity_ratio(program, expected)
    print(f"bfloat16 weights: {ratio - 1:+.3%}")
    assert abs(ratio - 1) < 0.001
    program.close()


def perplexity_ratio(program: CpuProgram, expected: dict[str, Any]) -> float:
    """The passage's perplexity by the reference's: four windows of 512 tokens, the first token of each unscored."""
    passage = expected["perplexity"]
    total = 0.0
    for start in range(0, 2048, 512):
        window = passage["token_ids"][start : start + 512]
        total -= float(logprobs(program, window)[np.arange(511), window[1:]].sum(dtype=np.float64))
    return math.exp(total / 2044 - passage["mean_nll"])
