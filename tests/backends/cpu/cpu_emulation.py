"""The CPU backend's roundings in numpy: the same numbers rounded at the same places, every sum in float64.

What the native code computes may then differ by the rounding of its float32 sums only, and by what such a difference tips over the edge of
a rounding further on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from octavo.backends.reference.kv_cache import FORMATS
from octavo.graph.graph import CacheLayer, Graph, Operation, RopeSpec
from octavo.quantization.decode import decode
from octavo.quantization.tensor import CheckpointTensor

Array = np.ndarray[Any, Any]
PARTITION = 256
FLOAT_KINDS = ("F32", "F16", "BF16")
LOSSLESS = ("BF16", "Q8_0", "Q5_0", "Q4_0", "Q4_1", "IQ4_NL")
LOG2_E = np.float32(1.44269504088896340736)


def bf16(x: Array) -> Array:
    """Rounded to bfloat16, to nearest even, as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def quantized(x: Array) -> Array:
    """Rows of float32 to 8 bits, a scale for each group of 32, and back: float64."""
    rows, inner = x.shape
    groups = np.zeros((rows, -(-inner // 32) * 32), np.float32)
    groups[:, :inner] = x
    groups = groups.reshape(rows, -1, 32)
    most = np.abs(groups).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 2.0**-120)
    values = np.rint(groups * inverse).astype(np.float64) * (most / np.float32(127))
    return values.reshape(rows, -1)[:, :inner]


def packed(tensor: CheckpointTensor) -> Array:
    """The values that the packed layout of a tensor holds."""
    values = decode(tensor)
    if tensor.kind in FLOAT_KINDS:
        return bf16(values)
    if tensor.kind in LOSSLESS:
        return values
    if tensor.kind == "Q4_K":
        return q4_k_in_float16(tensor)
    groups = values.reshape(len(values), -1, 32)
    most = np.abs(groups).max(axis=2, keepdims=True)
    scale = (most / np.float32(127)).astype(np.float16)
    scale = np.where(most > scale.astype(np.float32) * np.float32(127.5), np.nextafter(scale, np.float16(np.inf)), scale).astype(np.float32)
    steps = np.divide(groups, scale, out=np.zeros_like(groups), where=scale > 0)
    return (np.clip(np.rint(steps), -127, 127) * scale).reshape(values.shape)


def q4_k_in_float16(tensor: CheckpointTensor) -> Array:
    """A Q4_K whose scales and minima are rounded to float16: the values at q = 0 and q = 15 tell them."""
    ends = []
    for nibbles in (0, 255):
        blocks = tensor.data.reshape(-1, 144).copy()
        blocks[:, 16:] = nibbles
        ends.append(decode(replace(tensor, data=blocks.reshape(tensor.data.shape))).astype(np.float64).reshape(-1, 32)[:, :1])
    exact = decode(tensor).astype(np.float64).reshape(-1, 32)
    step = (ends[1] - ends[0]) / 15
    q = np.rint(np.divide(exact - ends[0], step, out=np.zeros_like(exact), where=step != 0))
    scale, minimum = step.astype(np.float32).astype(np.float16), ends[0].astype(np.float16)
    return (scale.astype(np.float32) * q.astype(np.float32) + minimum.astype(np.float32)).reshape(tensor.shape)


class Emulation:
    """A graph over whole sequences, without a cache."""

    def __init__(self, graph: Graph, weights: dict[str, CheckpointTensor], kv_cache_dtype: str = "bfloat16") -> None:
        self._graph = graph
        self._kv_cache_dtype = kv_cache_dtype
        self._integer = {name: tensor.kind not in FLOAT_KINDS for name, tensor in weights.items()}
        self._weights = {name: packed(tensor) if len(tensor.shape) == 2 else decode(tensor) for name, tensor in weights.items()}

    def logits(self, token_ids: Array) -> Array:
        """`[tokens, vocabulary]` for one sequence."""
        values: dict[int, Array] = {}
        for operation in self._graph.operations:
            inputs = [values[value.index] for value in operation.inputs]
            values[operation.output.index] = self._compute(operation, inputs, token_ids)
        return values[self._graph.operations[-1].output.index]

    def _compute(self, operation: Operation, inputs: list[Array], token_ids: Array) -> Array:
        names = [weight.name for weight in operation.weights]
        match operation.name:
            case "embed":
                return self._weights[names[0]][token_ids] * np.float32(operation.attributes["scale"])
            case "rms_norm" | "head_norm":
                weight = self._weights[names[0]] + np.float32(operation.attributes["offset"])
                x = inputs[0].reshape(len(inputs[0]), -1, len(weight))
                mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
                return (x * (np.float32(1) / np.sqrt(mean + np.float32(operation.attributes["epsilon"]))) * weight).reshape(inputs[0].shape)
            case "linear" | "logits":
                x = quantized(inputs[0]) if self._integer[names[0]] else bf16(inputs[0]).astype(np.float64)
                result = (x @ self._weights[names[0]].astype(np.float64).T).astype(np.float32)
                cap = operation.attributes.get("softcap")
                if cap is not None:
                    return (np.tanh(result.astype(np.float64) / cap) * cap).astype(np.float32)
                return result + self._weights[names[1]] if len(names) > 1 else result
            case "rope":
                return rope(inputs[0], operation.attributes["spec"])
            case "paged_attention":
                cache = operation.attributes["cache"]
                return attention(*inputs, cache, operation.attributes["scale"], self._kv_cache_dtype, operation.attributes["softcap"])
            case "silu_mul":
                gate, up = inputs
                return (gate / (np.float32(1) + np.exp(-gate))) * up
            case "gelu_mul":
                gate, up = (each.astype(np.float64) for each in inputs)
                return (0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up).astype(np.float32)
            case "add":
                return inputs[0] + inputs[1]
        raise AssertionError(operation.name)


def rope(x: Array, spec: RopeSpec) -> Array:
    angles = (np.arange(len(x), dtype=np.float32)[:, None, None] * np.array(spec.inverse_frequencies, np.float32)).astype(np.float64)
    cosine, sine = (np.cos(angles) * spec.scale).astype(np.float32), (np.sin(angles) * spec.scale).astype(np.float32)
    result = x.reshape(len(x), -1, spec.head_dim).copy()
    half = cosine.shape[-1]
    first, second = result[:, :, :half].copy(), result[:, :, half : 2 * half].copy()
    result[:, :, :half] = first * cosine - second * sine
    result[:, :, half : 2 * half] = second * cosine + first * sine
    return result.reshape(x.shape)


def query_rounded(query: Array, kv_cache_dtype: str) -> Array:
    """Scaled queries `[…, head_dim]` in the form that multiplies keys of this type: float64."""
    if kv_cache_dtype in ("bfloat16", "fp8"):
        return bf16(query).astype(np.float64)
    if kv_cache_dtype == "int8":
        most = np.abs(query).max(axis=-1, keepdims=True)
        return np.rint(query * (np.float32(16383) / most)).astype(np.float64) * (most / np.float32(16383))
    return query.astype(np.float64)


def weighted(weights: Array, values: Array, scales: Array | None, kv_cache_dtype: str) -> Array:
    """weights `[kv_heads, group, queries, keys]` times stored values `[keys, kv_heads, head_dim]`: float64."""
    if scales is not None:
        scaled = weights.astype(np.float32) * scales.T[:, None, None, :]
        most = scaled.max(axis=-1, keepdims=True)
        whole = np.rint(scaled * np.divide(np.float32(32767), most, out=np.zeros_like(most), where=most > 0))
        return np.einsum("hgqk,khd->hgqd", whole.astype(np.float64), values) * (most / np.float32(32767))
    rounded = bf16(weights).astype(np.float64) if kv_cache_dtype in ("bfloat16", "fp8") else weights
    return np.einsum("hgqk,khd->hgqd", rounded, values)


def attention(
    query: Array, key: Array, value: Array, cache: CacheLayer, scale: float, kv_cache_dtype: str, softcap: float | None = None
) -> Array:
    """Keys and values as the cache holds them; queries, and the weights too, rounded as each type has it. A weight is rounded after the
    highest score of its partition is taken away."""
    tokens, kind = len(query), FORMATS[kv_cache_dtype]
    shape = (tokens, cache.num_kv_heads, cache.head_dim)
    q = query_rounded((query * (np.float32(scale) * LOG2_E)).reshape(tokens, cache.num_kv_heads, -1, cache.head_dim), kv_cache_dtype)
    k = kind.decode(*kind.encode(key.reshape(shape))).astype(np.float64)
    stored, scales = kind.encode(value.reshape(shape))
    v = stored.astype(np.float64) if kind.scaled else kind.decode(stored, None).astype(np.float64)
    scores = np.einsum("qhgd,khd->hgqk", q, k)
    if softcap is not None:
        cap = softcap * float(LOG2_E)
        scores = np.tanh(scores / cap) * cap
    position = np.arange(tokens)
    seen = position[None, :] <= position[:, None]
    if cache.window:
        seen &= position[None, :] > position[:, None] - cache.window
    scores = np.where(seen, scores, -np.inf)
    maximum = np.full(scores.shape[:3], -np.inf)
    total = np.zeros(scores.shape[:3])
    output = np.zeros((*scores.shape[:3], cache.head_dim))
    for first in range(0, tokens, PARTITION):
        part = scores[..., first : first + PARTITION]
        highest = part.max(axis=-1)
        weights = np.exp2(part - np.where(np.isneginf(highest), 0, highest)[..., None])
        own = slice(first, first + PARTITION)
        added = weighted(weights, v[own], None if scales is None else scales[own], kv_cache_dtype)
        joint = np.maximum(maximum, highest)
        anchor = np.where(np.isneginf(joint), 0, joint)
        kept, new = np.exp2(maximum - anchor), np.exp2(highest - anchor)
        total = total * kept + weights.sum(axis=-1) * new
        output = output * kept[..., None] + added * new[..., None]
        maximum = joint
    output /= total[..., None]
    return np.ascontiguousarray(output.transpose(2, 0, 1, 3)).reshape(tokens, -1).astype(np.float32)
