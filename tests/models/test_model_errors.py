"""What a checkpoint gets wrong is said in one sentence that names the file and the key or tensor, before anything big is made."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import KV_HEADS, Tensors, gguf_tensors, random_tensors, write_folder, write_gguf

from octavo.loading.open import open_checkpoint
from octavo.models.model import Model
from octavo.models.registry import build_model
from octavo.protocol.errors import ModelLoadError, UnsupportedModelError

HUGE = [10**9, 10**12, 10**30, 10**400]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def open_model(path: Path) -> Model:
    with open_checkpoint(path) as checkpoint:
        return build_model(checkpoint)


def refused(path: Path) -> str:
    """The message of the error that this checkpoint gives, which is one short line that names the file."""
    with pytest.raises(ModelLoadError) as caught:
        open_model(path)
    message = caught.value.message
    assert message.startswith(str(path)), message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 300
    return message.removeprefix(str(path)).removeprefix("/config.json").removeprefix(": ")


def unsupported(path: Path) -> str:
    with pytest.raises(UnsupportedModelError):
        open_model(path)
    return refused(path)


@pytest.mark.parametrize(
    "key", ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"], ids=lambda key: key
)
def test_config_sizes(tmp_path: Path, key: str) -> None:
    assert refused(write_folder(tmp_path, random_tensors(), without=key)) == f"{key} is missing from the model's description"
    for value in [0, -4, 2.0, 2.5, "32", True, [32], {"a": 1}, float("nan"), float("inf"), *HUGE]:
        message = refused(write_folder(tmp_path, random_tensors(), {key: value}))
        assert message.startswith(f"{key} must be a whole number from 1 to "), message
    assert refused(write_folder(tmp_path, random_tensors(), {key: None})).startswith(f"{key} is missing")


@pytest.mark.parametrize("key", ["num_key_value_heads", "max_position_embeddings", "head_dim"])
def test_config_sizes_with_a_default(tmp_path: Path, key: str) -> None:
    for value in [0, -1, 2.5, "8", True, [], *HUGE[1:]]:
        assert refused(write_folder(tmp_path, random_tensors(), {key: value})).startswith(f"{key} must be "), value


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta"])
def test_config_numbers(tmp_path: Path, key: str) -> None:
    for value in [0, -1e-5, "1e-5", True, float("nan"), float("inf"), 1e300, 1e-300, 10**400, []]:
        message = refused(write_folder(tmp_path, random_tensors(), {key: value}))
        assert message.startswith(f"{key} must be a number from 1e-30 to 1e+30, not "), message


@pytest.mark.parametrize("key", ["attention_bias", "mlp_bias", "tie_word_embeddings"])
def test_config_flags(tmp_path: Path, key: str) -> None:
    for value in [0, 1, "true", []]:
        assert refused(write_folder(tmp_path, random_tensors(), {key: value})) == f"{key} must be true or false, not {value!r}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads must be a divisor of the 4 heads, not 3"),
        ({"num_key_value_heads": 8}, "num_key_value_heads must be a divisor of the 4 heads, not 8"),
        (
            {"num_attention_heads": 5, "num_key_value_heads": 1},
            "num_attention_heads must be a divisor of the hidden size, 32, where there is no head_dim, not 5",
        ),
        ({"num_attention_heads": 64}, "num_attention_heads must be a divisor of the hidden size, 32, where there is no head_dim, not 64"),
        ({"num_attention_heads": 32}, "head_dim must be an even number up to 16384, not 1"),
        ({"head_dim": 7}, "head_dim must be an even number up to 16384, not 7"),
        ({"head_dim": 1 << 20}, "head_dim must be an even number up to 16384, not 1048576"),
        (
            {"hidden_size": 1 << 24, "num_attention_heads": 1, "num_key_value_heads": 1},
            "head_dim must be an even number up to 16384, not 16777216",
        ),
        ({"hidden_act": 3}, "hidden_act must be a string, not 3"),
        ({"rope_scaling": "llama3"}, "rope_scaling must be an object, not 'llama3'"),
        ({"rope_scaling": {"rope_type": 7}}, "rope_scaling.rope_type must be a string, not 7"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing from the model's description"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor must be a number from 1e-30 to 1e+30, not 0"),
        (
            {"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}},
            "rope_scaling.high_freq_factor must be over low_freq_factor, 1.0, not 1.0",
        ),
        (
            {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 64.5}},
            "rope_parameters.original_max_position_embeddings must be a whole number from 1 to 2147483648, not 64.5",
        ),
        (
            {"rope_theta": 1e-30, "rope_scaling": {"type": "linear", "factor": 1e-30}},
            "its rope settings give frequencies that are not numbers",
        ),
    ],
)
def test_config_that_can_t_hold(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert refused(write_folder(tmp_path, random_tensors(), changes)) == message


@pytest.mark.parametrize("missing", ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"])
def test_llama3_needs_all_of_its_settings(tmp_path: Path, missing: str) -> None:
    scaling = {key: value for key, value in LLAMA3.items() if key != missing}
    message = refused(write_folder(tmp_path, random_tensors(), {"rope_scaling": scaling}))
    assert message == f"rope_scaling.{missing} is missing from the model's description"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported (known: silu)"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            "rope_scaling.rope_type 'yarn' is not supported (known: default, linear, llama3)",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic"}},
            "rope_parameters.rope_type 'dynamic' is not supported (known: default, linear, llama3)",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported (only 1 is known)"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
            "rope_parameters.partial_rotary_factor 0.25 is not supported (only 1 is known)",
        ),
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "architecture GPT2LMHeadModel is not supported "
            "(known: Gemma2ForCausalLM, Gemma3ForCausalLM, LlamaForCausalLM, MistralForCausalLM)",
        ),
    ],
)
def test_unsupported_config(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert unsupported(write_folder(tmp_path, random_tensors(), changes)) == message


@pytest.mark.parametrize("value", ["x" * 10_000, [1] * 10_000, "a\nb"], ids=["text", "list", "lines"])
def test_a_message_stays_a_sentence(tmp_path: Path, value: Any) -> None:
    assert refused(write_folder(tmp_path, random_tensors(), {"hidden_size": value})).startswith("hidden_size must be a whole number")


@pytest.mark.parametrize("window", [0, -1, "32", 1.5, True])
def test_mistral_window(tmp_path: Path, window: Any) -> None:
    folder = write_folder(tmp_path, random_tensors(), {"architectures": ["MistralForCausalLM"], "sliding_window": window})
    assert refused(folder).startswith("sliding_window must be a whole number from 1 to ")


def changed(tensors: Tensors, name: str, value: np.ndarray | None) -> Tensors:
    made = {key: tensor for key, tensor in tensors.items() if key != name}
    return made if value is None else {**made, name: value}


@pytest.mark.parametrize(
    "name",
    ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.1.self_attn.q_proj.weight"],
)
def test_tensors_of_a_folder(tmp_path: Path, name: str) -> None:
    tensors = random_tensors()
    assert refused(write_folder(tmp_path, changed(tensors, name, None))) == f"tensor {name} is missing"
    right = list(tensors[name].shape)
    for shape in ([3], [2, 2], [1, *right], [*right[:-1], right[-1] + 2], right[::-1] if len(right) == 2 and right[0] != right[1] else []):
        message = refused(write_folder(tmp_path, changed(tensors, name, np.zeros(shape, np.float32))))
        assert message == f"tensor {name} has shape {shape}, but the model's configuration needs {right}"


def test_surplus_tensors(tmp_path: Path) -> None:
    tensors = {**random_tensors(), "model.layers.2.mlp.up_proj.weight": np.zeros((2, 2), np.float32), "extra": np.zeros(1, np.float32)}
    assert refused(write_folder(tmp_path, tensors)) == (
        "tensor extra (and 1 more) is not part of a LlamaForCausalLM model as Octavo knows it"
    )


def test_biases_that_the_config_does_not_speak_of(tmp_path: Path) -> None:
    tensors = random_tensors(attention_bias=True)
    message = refused(write_folder(tmp_path / "more", tensors))
    assert message.startswith("tensor model.layers.0.self_attn.k_proj.bias (and 7 more) is not part of a LlamaForCausalLM")
    message = refused(write_folder(tmp_path / "less", random_tensors(), {"mlp_bias": True}))
    assert message == "tensor model.layers.0.mlp.gate_proj.bias is missing"


@pytest.mark.parametrize("key", ["block_count", "attention.head_count", "embedding_length", "feed_forward_length", "context_length"])
def test_gguf_sizes(tmp_path: Path, key: str) -> None:
    tensors = gguf_tensors(random_tensors())
    assert refused(write_gguf(tmp_path / "a.gguf", tensors, without=key)) == f"llama.{key} is missing from the model's description"
    for value in [0, -1, 2.0, "2", True, [2, 2], 10**12]:
        message = refused(write_gguf(tmp_path / "b.gguf", tensors, {key: value}))
        assert message.startswith(f"llama.{key} must be a whole number from 1 to "), message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.head_count_kv": 3}, "llama.attention.head_count_kv must be a divisor of the 4 heads, not 3"),
        ({"attention.head_count_kv": [2, 2]}, "llama.attention.head_count_kv must be a whole number from 1 to 16777216, not [2, 2]"),
        ({"attention.key_length": 9}, "llama.attention.key_length must be an even number up to 16384, not 9"),
        (
            {"attention.head_count": 5, "attention.head_count_kv": 5},
            "llama.attention.head_count must be a divisor of the hidden size, 32, where there is no llama.attention.key_length, not 5",
        ),
        ({"attention.layer_norm_rms_epsilon": 0.0}, "llama.attention.layer_norm_rms_epsilon must be a number from 1e-30 to 1e+30, not 0.0"),
        ({"rope.freq_base": float("nan")}, "llama.rope.freq_base must be a number from 1e-30 to 1e+30, not nan"),
        ({"rope.scaling.type": "linear"}, "llama.rope.scaling.factor is missing from the model's description"),
        ({"rope.scaling.type": 3}, "llama.rope.scaling.type must be a string, not 3"),
    ],
)
def test_gguf_that_can_t_hold(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert refused(write_gguf(tmp_path / "model.gguf", gguf_tensors(random_tensors()), changes)) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.value_length": 16}, "llama.attention.value_length 16 is not supported (only the keys' length, 8, is known)"),
        ({"rope.dimension_count": 4}, "llama.rope.dimension_count 4 is not supported (only the head's own size, 8, is known)"),
        ({"rope.scaling.type": "yarn"}, "llama.rope.scaling.type 'yarn' is not supported (known: none, linear)"),
        ({"expert_count": 8}, "llama.expert_count 8 is not supported (mixtures of experts are not known yet)"),
    ],
)
def test_unsupported_gguf(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert unsupported(write_gguf(tmp_path / "model.gguf", gguf_tensors(random_tensors()), changes)) == message


def test_unknown_gguf_architecture(fixtures_dir: Path) -> None:
    path = fixtures_dir / "gguf-tiny-qwen2" / "tiny-qwen2-Q4_0.gguf"
    assert unsupported(path) == "architecture qwen2 is not supported (known: llama)"


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.1.attn_q.weight", "blk.0.ffn_norm.weight"])
def test_tensors_of_a_gguf(tmp_path: Path, name: str) -> None:
    tensors = gguf_tensors(random_tensors())
    assert refused(write_gguf(tmp_path / "a.gguf", changed(tensors, name, None))) == f"tensor {name} is missing"
    right = tensors[name].shape
    message = refused(write_gguf(tmp_path / "b.gguf", changed(tensors, name, np.zeros((*right[:-1], 3), np.float32))))
    assert message == f"tensor {name} has shape {[*right[:-1], 3]}, but the model's configuration needs {list(right)}"


def test_surplus_tensor_of_a_gguf(tmp_path: Path) -> None:
    tensors = {**gguf_tensors(random_tensors()), "blk.0.attn_q_norm.weight": np.ones(8, np.float32)}
    message = refused(write_gguf(tmp_path / "model.gguf", tensors))
    assert message == "tensor blk.0.attn_q_norm.weight is not part of a llama model as Octavo knows it"


@pytest.mark.parametrize("factors", [[1.0, 1.0], [1.0, 1.0, 0.0, 1.0], [1.0, -1.0, 1.0, 1.0], [1.0, float("nan"), 1.0, 1.0]])
def test_rope_freqs_of_a_gguf(tmp_path: Path, factors: list[float]) -> None:
    tensors = {**gguf_tensors(random_tensors()), "rope_freqs.weight": np.array(factors, np.float32)}
    assert refused(write_gguf(tmp_path / "model.gguf", tensors)) == "tensor rope_freqs.weight must hold 4 numbers over 0"


ABSURD: list[dict[str, Any]] = [
    {"hidden_size": 10**9},
    {"num_hidden_layers": 10**9},
    {"num_hidden_layers": 10_000},
    {"hidden_size": 1 << 24, "num_attention_heads": 1 << 12},
    {"intermediate_size": 1 << 24},
    {"vocab_size": 1 << 24},
    {"num_attention_heads": 1 << 24, "head_dim": 16384, "num_key_value_heads": 1},
    {"num_attention_heads": KV_HEADS, "head_dim": 16384, "num_hidden_layers": 10_000},
]


@pytest.mark.parametrize("changes", ABSURD, ids=json.dumps)
def test_absurd_sizes_end_quickly_and_take_no_memory(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = write_folder(tmp_path, random_tensors(), changes)
    started = time.process_time()  # which a busy machine doesn't stretch
    refused(folder)
    assert time.process_time() - started < 5
    few = {key: min(value, 64) if key == "num_hidden_layers" and value <= 10_000 else value for key, value in changes.items()}
    write_folder(tmp_path, random_tensors(), few)
    tracemalloc.start()
    try:
        refused(folder)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
