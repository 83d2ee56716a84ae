"""A model as a short list of operations.

A model family writes a Graph; a backend turns it into a Program. The graph owns no tensors and knows no device. Values are
activations of one step, with one row a token. Weights are named; their shapes are declared so that a checkpoint can be checked
before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Value:
    """An activation: `[tokens, width]`, in order of creation."""

    index: int
    width: int


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter by its canonical name and shape; a linear's is `[out_features, in_features]`."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One node: `inputs` are earlier values, `output` the value it makes, `attributes` its constants."""

    name: str
    inputs: tuple[Value, ...]
    weights: tuple[Weight, ...]
    output: Value
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding (Su et al., 2021) in the half-split layout: `inverse_frequencies` has `rotary_dim / 2` entries, in radians a
    position; `scale` multiplies cosine and sine."""

    head_dim: int
    inverse_frequencies: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """What one attention layer keeps of each token: keys and values of `num_kv_heads × head_dim`.

    `window` is how many tokens back a query sees, itself included; None means all.
    """

    num_kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(slots=True)
class Graph:
    """A list of operations in the order they run, with what they need: weights and cache layers."""

    vocab_size: int
    operations: list[Operation] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)
    cache_layers: list[CacheLayer] = field(default_factory=list)
    num_values: int = 0

    @property
    def mixes_windows(self) -> bool:
        """Whether some layers see a window and others everything."""
        return len({layer.window is None for layer in self.cache_layers}) == 2

    @property
    def hidden_size(self) -> int:
        """Width of what the logits are made from."""
        return self.operations[-1].inputs[0].width

    def _add(self, name: str, inputs: tuple[Value, ...], width: int, weights: tuple[Weight, ...] = (), **attributes: Any) -> Value:
        for weight in weights:
            known = self.weights.setdefault(weight.name, weight)
            if known.shape != weight.shape:
                raise ValueError(f"weight {weight.name} is declared as {known.shape} and as {weight.shape}")
        output = Value(self.num_values, width)
        self.num_values += 1
        self.operations.append(Operation(name, inputs, weights, output, attributes))
        return output

    def embed(self, weight: str, width: int, scale: float = 1.0) -> Value:
        """Rows of a `[vocab_size, width]` table, one a token, times `scale`."""
        return self._add("embed", (), width, (Weight(weight, (self.vocab_size, width)),), scale=scale)

    def rms_norm(self, x: Value, weight: str, epsilon: float, offset: float = 0.0) -> Value:
        """`x / sqrt(mean(x²) + epsilon) · (offset + weight)` over each row (Zhang and Sennrich, 2019)."""
        return self._add("rms_norm", (x,), x.width, (Weight(weight, (x.width,)),), epsilon=epsilon, offset=offset)

    def head_norm(self, x: Value, weight: str, head_dim: int, epsilon: float, offset: float = 0.0) -> Value:
        """The same over each head of `[tokens, heads · head_dim]`, whose weight `[head_dim]` they share."""
        return self._add("head_norm", (x,), x.width, (Weight(weight, (head_dim,)),), epsilon=epsilon, offset=offset)

    def linear(self, x: Value, weight: str, out_features: int, bias: str | None = None) -> Value:
        """`x · weightᵀ + bias`."""
        weights: tuple[Weight, ...] = (Weight(weight, (out_features, x.width)),)
        if bias is not None:
            weights += (Weight(bias, (out_features,)),)
        return self._add("linear", (x,), out_features, weights)

    def rope(self, x: Value, spec: RopeSpec) -> Value:
        """Rotates each head of `[tokens, heads · head_dim]` by its token's position."""
        return self._add("rope", (x,), x.width, spec=spec)

    def paged_attention(
        self, query: Value, key: Value, value: Value, layer: CacheLayer, scale: float, softcap: float | None = None
    ) -> Value:
        """Writes key and value to the cache's next layer, then attends from each query to all that the cache holds of its
        sequence up to its own position (causal; grouped heads share a KV head). With a `softcap` a score x becomes
        `softcap · tanh(x / softcap)` before the softmax (Gemma Team, 2024)."""
        self.cache_layers.append(layer)
        index = len(self.cache_layers) - 1
        return self._add("paged_attention", (query, key, value), query.width, layer=index, cache=layer, scale=scale, softcap=softcap)

    def silu_mul(self, gate: Value, up: Value) -> Value:
        """`gate · sigmoid(gate) · up`, elementwise (SwiGLU: Shazeer, 2020)."""
        return self._add("silu_mul", (gate, up), gate.width)

    def gelu_mul(self, gate: Value, up: Value) -> Value:
        """`gelu(gate) · up`, elementwise, with GELU's approximation by tanh (Hendrycks and Gimpel, 2016; Shazeer, 2020)."""
        return self._add("gelu_mul", (gate, up), gate.width)

    def add(self, a: Value, b: Value) -> Value:
        """Elementwise sum."""
        return self._add("add", (a, b), a.width)

    def logits(self, x: Value, weight: str, softcap: float | None = None) -> Value:
        """`x · weightᵀ` in float32, for the rows that are sampled only; the graph's last operation. With tied embeddings `weight` is
        the table of `embed`. With a `softcap` a logit y becomes `softcap · tanh(y / softcap)`."""
        return self._add("logits", (x,), self.vocab_size, (Weight(weight, (self.vocab_size, x.width)),), softcap=softcap)
