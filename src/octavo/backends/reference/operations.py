"""The readable definition of each elementwise and row operation. Activations are float32 `[tokens, width]`; nothing crosses rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.graph.graph import RopeSpec

Floats = npt.NDArray[np.float32]


def embed(table: Floats, token_ids: npt.NDArray[np.int32], scale: float = 1.0) -> Floats:
    """Rows of `table` `[vocab, width]`, times `scale`."""
    return table[token_ids] * np.float32(scale)


def rms_norm(x: Floats, weight: Floats, epsilon: float, offset: float = 0.0) -> Floats:
    """`x / sqrt(mean(x²) + epsilon) · (offset + weight)` over each row (Zhang and Sennrich, 2019)."""
    mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    scaled: Floats = x * np.reciprocal(np.sqrt(mean + np.float32(epsilon)))
    return scaled * (np.float32(offset) + weight)


def head_norm(x: Floats, weight: Floats, epsilon: float, offset: float = 0.0) -> Floats:
    """The same over each head of `[tokens, heads · head_dim]`, with one weight `[head_dim]`."""
    return rms_norm(x.reshape(len(x), -1, len(weight)), weight, epsilon, offset).reshape(x.shape)


def rotations(positions: npt.NDArray[np.int32], spec: RopeSpec) -> tuple[Floats, Floats]:
    """Cosine and sine `[tokens, 1, rotary_dim / 2]`. The angle is a float32 product, as in the models' training code; its cosine is
    taken in float64, which rounds alike wherever the token stands in the batch."""
    angles = positions.astype(np.float32)[:, None, None] * np.asarray(spec.inverse_frequencies, np.float32)
    wide = angles.astype(np.float64)
    scale = np.float64(spec.scale)
    return (np.cos(wide) * scale).astype(np.float32), (np.sin(wide) * scale).astype(np.float32)


def rope(x: Floats, cosine: Floats, sine: Floats, head_dim: int) -> Floats:
    """Rotates pairs (i, i + half) of each head (Su et al., 2021, in the half-split layout); dimensions beyond twice the number of
    frequencies pass through."""
    heads = x.reshape(len(x), -1, head_dim)
    half = cosine.shape[-1]
    first, second = heads[:, :, :half], heads[:, :, half : 2 * half]
    result = heads.copy()
    result[:, :, :half] = first * cosine - second * sine
    result[:, :, half : 2 * half] = second * cosine + first * sine
    return result.reshape(x.shape)


def silu_mul(gate: Floats, up: Floats) -> Floats:
    """`gate · sigmoid(gate) · up` (SwiGLU: Shazeer, 2020)."""
    with np.errstate(over="ignore"):  # exp(−gate) may reach infinity, and gate / infinity is the right limit, −0
        activated: Floats = np.divide(gate, np.add(np.exp(-gate), np.float32(1)))
    return activated * up


def gelu_mul(gate: Floats, up: Floats) -> Floats:
    """`gelu(gate) · up`, where GELU is `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))` (Hendrycks and Gimpel, 2016): the same as x times
    the sigmoid of twice what the tanh is of, which loses no digits where that is far below 0."""
    with np.errstate(over="ignore"):
        twice = np.float32(2 * (2 / np.pi) ** 0.5) * (gate + np.float32(0.044715) * (gate * gate * gate))
        activated: Floats = np.divide(gate, np.add(np.exp(-twice), np.float32(1)))
    return activated * up


def softcap(x: Floats, cap: float) -> Floats:
    """`cap · tanh(x / cap)`: nearly x where that is small, and never beyond ±cap (Gemma Team, 2024)."""
    capped: Floats = np.tanh(x / np.float32(cap)) * np.float32(cap)
    return capped


def add(a: Floats, b: Floats) -> Floats:
    """Elementwise sum."""
    return a + b
