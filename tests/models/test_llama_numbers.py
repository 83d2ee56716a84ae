"""Small random models of the Llama family against a plain forward pass in float64."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import (
    HEAD_DIM,
    HEADS,
    Tensors,
    default_frequencies,
    gguf_tensors,
    interleaved,
    octavo_forward,
    plain_forward,
    random_tensors,
    write_folder,
    write_gguf,
)
from safetensors.numpy import save_file

from octavo.loading.open import open_checkpoint
from octavo.models.llama import half_split_rows
from octavo.models.registry import build_model
from octavo.quantization.decode import decode
from octavo.quantization.tensor import CheckpointTensor

TOKENS = [(7 * place * place + 3 * place) % 40 for place in range(44)]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama3(theta: float = 10_000.0, factor: float = 8.0, low: float = 1.0, high: float = 4.0, original: int = 64) -> list[float]:
    """Llama 3.1's rule, one wave at a time."""
    result = []
    for frequency in default_frequencies(theta):
        wave = 2 * math.pi / frequency
        if wave < original / high:
            result.append(frequency)
        elif wave > original / low:
            result.append(frequency / factor)
        else:
            share = (original / wave - low) / (high - low)
            result.append((1 - share) * frequency / factor + share * frequency)
    return result


def check(path: Path, tensors: Tensors, **options: Any) -> None:
    np.testing.assert_allclose(octavo_forward(path, TOKENS), plain_forward(tensors, TOKENS, **options)[2:], rtol=2e-4, atol=2e-4)


def test_the_plain_forward_tells_models_apart() -> None:
    """Each option of it changes the numbers by far more than `check` lets pass, so that no comparison below is empty."""
    tensors = random_tensors(attention_bias=True, mlp_bias=True)
    base = plain_forward(tensors, TOKENS)
    others = [
        plain_forward(tensors, TOKENS, window=32),
        plain_forward(tensors, TOKENS, frequencies=llama3()),
        plain_forward(tensors, TOKENS, frequencies=[frequency / 4 for frequency in default_frequencies()]),
        plain_forward({k: v for k, v in tensors.items() if not ("mlp" in k and "bias" in k)}, TOKENS),
        plain_forward({k: v for k, v in tensors.items() if not ("attn" in k and "bias" in k)}, TOKENS),
    ]
    for other in others:
        assert np.abs(other - base).max() > 0.05


@pytest.mark.parametrize("attention_bias", [False, True])
@pytest.mark.parametrize("mlp_bias", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_safetensors_with_any_biases_and_ends(tmp_path: Path, attention_bias: bool, mlp_bias: bool, tied: bool) -> None:
    tensors = random_tensors(attention_bias=attention_bias, mlp_bias=mlp_bias, tied=tied)
    changes = {"attention_bias": attention_bias, "mlp_bias": mlp_bias, "tie_word_embeddings": tied}
    check(write_folder(tmp_path, tensors, changes), tensors)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_gguf_with_any_biases_and_ends(tmp_path: Path, biases: bool, tied: bool) -> None:
    tensors = random_tensors(attention_bias=biases, mlp_bias=biases, tied=tied)
    check(write_gguf(tmp_path / "model.gguf", gguf_tensors(tensors)), tensors)


def test_a_tied_model_may_hold_its_table_twice(tmp_path: Path) -> None:
    """Some files keep a copy of the table as lm_head; with tied embeddings it counts for nothing."""
    tensors = random_tensors(tied=True)
    folder = write_folder(tmp_path, {**tensors, "lm_head.weight": np.zeros((40, 32), np.float32)}, {"tie_word_embeddings": True})
    check(folder, tensors)


def test_buffers_of_old_checkpoints_are_passed_over(tmp_path: Path) -> None:
    tensors = random_tensors()
    check(write_folder(tmp_path, {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, np.float32)}), tensors)


def test_a_sharded_checkpoint(tmp_path: Path) -> None:
    tensors = random_tensors()
    write_folder(tmp_path, tensors)
    (tmp_path / "model.safetensors").unlink()
    places = {name: f"model-{1 + index % 3:05}-of-00003.safetensors" for index, name in enumerate(tensors)}
    for file in sorted(set(places.values())):
        save_file({name: tensors[name] for name, place in places.items() if place == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    check(tmp_path, tensors)


@pytest.mark.parametrize("changes", [{"hidden_act": "swish"}, {"head_dim": None}, {"head_dim": HEAD_DIM}, {"rope_scaling": {}}])
def test_harmless_spellings(tmp_path: Path, changes: dict[str, Any]) -> None:
    tensors = random_tensors()
    check(write_folder(tmp_path, tensors, changes), tensors)


@pytest.mark.parametrize(
    ("changes", "window"),
    [({"sliding_window": 32}, 32), ({"sliding_window": 5}, 5), ({"sliding_window": None}, None), ({"sliding_window": 4096}, None)],
)
def test_mistral_windows(tmp_path: Path, changes: dict[str, Any], window: int | None) -> None:
    tensors = random_tensors()
    check(write_folder(tmp_path, tensors, {"architectures": ["MistralForCausalLM"], **changes}), tensors, window=window)


def test_mistral_without_the_key_has_the_window_of_transformers(tmp_path: Path) -> None:
    with open_checkpoint(write_folder(tmp_path, random_tensors(), {"architectures": ["MistralForCausalLM"]})) as checkpoint:
        graph = build_model(checkpoint).graph
    assert {layer.window for layer in graph.cache_layers} == {4096}


def test_gguf_window(tmp_path: Path) -> None:
    tensors = random_tensors()
    check(write_gguf(tmp_path / "model.gguf", gguf_tensors(tensors), {"attention.sliding_window": 9}), tensors, window=9)


@pytest.mark.parametrize(
    ("changes", "frequencies"),
    [
        ({"rope_theta": 500.0}, default_frequencies(500.0)),
        ({"rope_scaling": {"type": "default"}}, default_frequencies()),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, [f / 4 for f in default_frequencies()]),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.5}, "rope_theta": 300}, [f / 2.5 for f in default_frequencies(300)]),
        ({"rope_scaling": LLAMA3}, llama3()),
        ({"rope_scaling": LLAMA3, "rope_theta": 500_000.0}, llama3(500_000.0)),
        ({"rope_scaling": {**LLAMA3, "factor": 3, "high_freq_factor": 2}}, llama3(factor=3, high=2)),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 700.0}}, llama3(700.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}, "rope_theta": 5.0}, default_frequencies(700.0)),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}}, default_frequencies()),
    ],
)
def test_rope_variants(tmp_path: Path, changes: dict[str, Any], frequencies: list[float]) -> None:
    tensors = random_tensors()
    check(write_folder(tmp_path, tensors, changes), tensors, frequencies=frequencies)


@pytest.mark.parametrize(
    ("changes", "divisor"),
    [
        ({"rope.scaling.type": "none", "rope.dimension_count": HEAD_DIM}, 1),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4),
        ({"rope.scaling.factor": 4.0}, 4),
        ({"rope.scale_linear": 2.0}, 2),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1),
    ],
)
def test_gguf_rope_scaling(tmp_path: Path, changes: dict[str, Any], divisor: float) -> None:
    """As llama.cpp reads it: a factor without a type is linear, and type none turns it off."""
    tensors = random_tensors()
    path = write_gguf(tmp_path / "model.gguf", gguf_tensors(tensors), {"rope.freq_base": 600.0, **changes})
    check(path, tensors, frequencies=[frequency / divisor for frequency in default_frequencies(600.0)])


def test_gguf_carries_llama3_as_divisors(tmp_path: Path) -> None:
    tensors = random_tensors()
    factors = np.array(default_frequencies()) / np.array(llama3())
    path = write_gguf(tmp_path / "model.gguf", {**gguf_tensors(tensors), "rope_freqs.weight": factors.astype(np.float32)})
    check(path, tensors, frequencies=llama3())


@pytest.mark.parametrize("heads", [1, 3, HEADS])
@pytest.mark.parametrize("head_dim", [2, 8, 64])
def test_half_split_rows_undoes_the_converter(heads: int, head_dim: int) -> None:
    rows = np.random.default_rng(1).standard_normal((heads * head_dim, 6)).astype(np.float32)
    written = CheckpointTensor("q", "F32", rows.shape, interleaved(rows, heads).view(np.uint8))
    assert decode(half_split_rows(written, head_dim)).tobytes() == rows.tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_half_split_rows_of_a_bias(dtype: type) -> None:
    bias = np.arange(24).astype(dtype)
    kind = {np.float16: "F16", np.float32: "F32"}[dtype]
    written = CheckpointTensor("b", kind, (24,), interleaved(bias, 3).view(np.uint8).reshape(1, -1))
    moved = half_split_rows(written, 8)
    assert moved.shape == (24,)
    assert decode(moved).tolist() == list(range(24))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "BF16"])
def test_half_split_rows_of_packed_kinds(kind: str) -> None:
    """Rows move whole: decoding before or after is the same."""
    qtype = gguf.GGMLQuantizationType[kind]
    rows = np.random.default_rng(2).standard_normal((16, 64)).astype(np.float32)
    packed = gguf.quants.quantize(rows, qtype)
    written = CheckpointTensor("q", kind, rows.shape, packed)
    order = interleaved(np.arange(16), 2).argsort()
    assert decode(half_split_rows(written, 8)).tobytes() == decode(written)[order].tobytes()
