"""Tiny random checkpoints in both formats, and the same model computed plainly."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from octavo.backends.reference.backend import ReferenceBackend
from octavo.loading.open import open_checkpoint
from octavo.models.registry import build_model
from octavo.worker.inputs import build_inputs
from octavo.worker.request import GrowingArray, WorkerRequest

Array = np.ndarray[Any, Any]
Tensors = dict[str, Array]

VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 40, 32, 48, 4, 2, 8, 2

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "max_position_embeddings": 128,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
}
GGUF_FIELDS: dict[str, Any] = {
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "block_count": LAYERS,
    "context_length": 128,
    "embedding_length": HIDDEN,
    "feed_forward_length": INNER,
}
PROJECTIONS = {
    "self_attn.q_proj": ("attn_q", HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": ("attn_k", KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": ("attn_v", KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": ("attn_output", HIDDEN, HEADS * HEAD_DIM),
    "mlp.gate_proj": ("ffn_gate", INNER, HIDDEN),
    "mlp.up_proj": ("ffn_up", INNER, HIDDEN),
    "mlp.down_proj": ("ffn_down", HIDDEN, INNER),
}


def random_tensors(*, tied: bool = False, attention_bias: bool = False, mlp_bias: bool = False, seed: int = 0) -> Tensors:
    """Every tensor, by transformers' names."""
    made = np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        return (made.standard_normal(shape) * 0.3).astype(np.float32)

    tensors = {"model.embed_tokens.weight": draw(VOCAB, HIDDEN), "model.norm.weight": 1 + draw(HIDDEN)}
    for index in range(LAYERS):
        block = f"model.layers.{index}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{block}.{norm}.weight"] = 1 + draw(HIDDEN)
        for name, (_, outputs, inputs) in PROJECTIONS.items():
            tensors[f"{block}.{name}.weight"] = draw(outputs, inputs)
            if attention_bias if name.startswith("self_attn") else mlp_bias:
                tensors[f"{block}.{name}.bias"] = draw(outputs)
    if not tied:
        tensors["lm_head.weight"] = draw(VOCAB, HIDDEN)
    return tensors


def write_folder(folder: Path, tensors: Tensors, changes: dict[str, Any] | None = None, *, without: str | None = None) -> Path:
    """A safetensors checkpoint; `changes` go into config.json, `without` is taken out of it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, **(changes or {})}
    if without is not None:
        del config[without]
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def interleaved(rows: Array, heads: int) -> Array:
    """What llama.cpp's converter does to the rows of q and k: `[heads, 2, half, …]` becomes `[heads, half, 2, …]`."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_tensors(tensors: Tensors) -> Tensors:
    """The same tensors as llama.cpp's converter writes them."""
    made = {"token_embd.weight": tensors["model.embed_tokens.weight"], "output_norm.weight": tensors["model.norm.weight"]}
    if "lm_head.weight" in tensors:
        made["output.weight"] = tensors["lm_head.weight"]
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", **{k: v[0] for k, v in PROJECTIONS.items()}}
    for name, tensor in tensors.items():
        if name.startswith("model.layers."):
            _, _, index, rest = name.split(".", 3)
            part, suffix = rest.rsplit(".", 1)
            heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(part)
            made[f"blk.{index}.{names[part]}.{suffix}"] = interleaved(tensor, heads) if heads else tensor
    return made


def write_gguf(path: Path, tensors: Tensors, changes: dict[str, Any] | None = None, *, without: str | None = None) -> Path:
    """A GGUF file with tensors as `gguf_tensors` gives them; `changes` go into its key-values, `without` is taken out of them."""
    writer = gguf.GGUFWriter(path, "llama")
    fields = {**GGUF_FIELDS, **(changes or {})}
    if without is not None:
        del fields[without]
    for key, value in fields.items():
        add: Callable[[str, Any], None] = {
            bool: writer.add_bool,
            int: writer.add_int64 if isinstance(value, int) and not 0 <= value < 1 << 32 else writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }[type(value)]
        add(f"llama.{key}", value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def default_frequencies(theta: float = 10_000.0, head_dim: int = HEAD_DIM) -> list[float]:
    return [theta ** (-2 * index / head_dim) for index in range(head_dim // 2)]


def plain_forward(tensors: Tensors, tokens: list[int], *, frequencies: list[float] | None = None, window: int | None = None) -> Array:
    """Logits of every position, `[tokens, vocab]`, in float64 and without any cache."""
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    angles = np.outer(np.arange(len(tokens)), frequencies or default_frequencies())

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * weights[f"{name}.weight"]

    def linear(x: Array, name: str) -> Array:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def rotated(x: Array) -> Array:
        heads = x.reshape(len(tokens), -1, 2, HEAD_DIM // 2)
        turned = (heads[:, :, 0] + 1j * heads[:, :, 1]) * np.exp(1j * angles)[:, None]
        return np.concatenate([turned.real, turned.imag], axis=-1)

    x = weights["model.embed_tokens.weight"][tokens]
    age = np.arange(len(tokens))[:, None] - np.arange(len(tokens))
    hidden = (age < 0) | (age >= (window or len(tokens)))
    for index in range(LAYERS):
        block = f"model.layers.{index}"
        h = norm(x, f"{block}.input_layernorm")
        q, k = (rotated(linear(h, f"{block}.self_attn.{name}_proj")) for name in "qk")
        v = linear(h, f"{block}.self_attn.v_proj").reshape(len(tokens), KV_HEADS, HEAD_DIM)
        heads = []
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            scores = q[:, head] @ k[:, shared].T / math.sqrt(HEAD_DIM)
            scores[hidden] = -np.inf
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append(shares / shares.sum(axis=1, keepdims=True) @ v[:, shared])
        x = x + linear(np.concatenate(heads, axis=1), f"{block}.self_attn.o_proj")
        h = norm(x, f"{block}.post_attention_layernorm")
        gate, up = linear(h, f"{block}.mlp.gate_proj"), linear(h, f"{block}.mlp.up_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * up, f"{block}.mlp.down_proj")
    return norm(x, "model.norm") @ weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).T


def octavo_forward(path: Path, tokens: list[int]) -> Array:
    """Logits after each token, by Octavo: one at a time after a first chunk of three."""
    with open_checkpoint(path) as checkpoint:
        model = build_model(checkpoint)
        program = ReferenceBackend(threads=1).compile(model.graph, model.weight, lambda done: None)
    program.allocate_kv_cache(16, 4)
    blocks = GrowingArray([11, 3, 7, 15, 0, 8, 2, 9, 5, 1, 13, 6])
    rows = []
    for last in range(3, len(tokens) + 1):
        first = 0 if last == 3 else last - 1
        request = WorkerRequest("only", GrowingArray(tokens[:last]), first, blocks, None)  # type: ignore[arg-type]
        rows.append(program.run(build_inputs([(request, last - first, 0)], 4))[0])
    program.close()
    return np.stack(rows)
