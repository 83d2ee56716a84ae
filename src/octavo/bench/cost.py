"""What a model's tokens cost at least: bytes read and operations, from its graph and the layouts of its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.backends.cpu.packing import Layout, layout_of
from octavo.bench.machine import Machine
from octavo.graph.graph import Graph
from octavo.loading.open import open_checkpoint
from octavo.models.registry import build_model

# Of a packed weight, with its scales: csrc/kernels/layout.hpp.
VALUE_BYTES = {Layout.INT4: 320 / 512, Layout.INT8: 544 / 512, Layout.BF16: 2.0}
LayoutOf = Callable[[str], Layout]


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Least work of a step.

    `weights_bytes` are read once a step; each token does `body_int8` and `body_bf16` operations and each sampled one `head_int8` and
    `head_bf16` more; a token that sees `c` tokens does `c · attention_ops` operations and, where it is alone, reads `c · kv_bytes`.
    """

    weights_bytes: int
    body_int8: int
    body_bf16: int
    head_int8: int
    head_bf16: int
    attention_ops: int
    kv_bytes: int

    def decode_bytes(self, contexts: Sequence[float]) -> float:
        """Bytes that one step reads in which each of `contexts` requests, which hold that many tokens, gets one more."""
        return self.weights_bytes + self.kv_bytes * sum(contexts)

    def decode_ops(self, contexts: Sequence[float]) -> float:
        """Operations of that step."""
        token = self.body_int8 + self.body_bf16 + self.head_int8 + self.head_bf16
        return len(contexts) * token + self.attention_ops * sum(contexts)

    def decode_seconds(self, machine: Machine, contexts: Sequence[float]) -> float:
        """The least time of that step."""
        count = len(contexts)
        return machine.seconds(
            read_bytes=self.decode_bytes(contexts),
            int8_ops=count * (self.body_int8 + self.head_int8),
            bf16_ops=count * (self.body_bf16 + self.head_bf16) + self.attention_ops * sum(contexts),
        )

    def prefill_ops(self, tokens: int) -> float:
        """Operations of a prompt of `tokens` tokens, the logits of its last one with it."""
        seen = tokens * (tokens + 1) / 2
        return tokens * (self.body_int8 + self.body_bf16) + self.head_int8 + self.head_bf16 + self.attention_ops * seen

    def prefill_seconds(self, machine: Machine, tokens: int) -> float:
        """The least time of that prompt."""
        seen = tokens * (tokens + 1) / 2
        return machine.seconds(
            read_bytes=self.weights_bytes,
            int8_ops=tokens * self.body_int8 + self.head_int8,
            bf16_ops=tokens * self.body_bf16 + self.head_bf16 + self.attention_ops * seen,
        )

    def batch_ops(self, requests: Sequence[tuple[int, int]]) -> tuple[float, float]:
        """Operations, in int8 and in bf16, of requests of (prompt, output) tokens."""
        int8 = bf16 = 0.0
        for prompt, output in requests:
            # The last token is never computed.
            tokens = prompt + output - 1
            int8 += tokens * self.body_int8 + output * self.head_int8
            bf16 += tokens * self.body_bf16 + output * self.head_bf16 + self.attention_ops * tokens * (tokens + 1) / 2
        return int8, bf16

    def batch_seconds(self, machine: Machine, requests: Sequence[tuple[int, int]]) -> float:
        """The least time of requests that all run at once: their arithmetic, and no fewer steps than the longest answer has tokens."""
        int8, bf16 = self.batch_ops(requests)
        steps = max(output for _, output in requests)
        return machine.seconds(read_bytes=steps * self.weights_bytes, int8_ops=int8, bf16_ops=bf16)


def model_cost(path: Path, backend: str, weights_bytes: int, kv_bytes: int) -> ModelCost:
    """The cost of the model at `path`, whose packed weights take `weights_bytes` and whose cache takes `kv_bytes` a token. Other backends
    than cpu compute in float32, which counts as bf16 here."""
    with open_checkpoint(path) as checkpoint:
        model = build_model(checkpoint)
        if backend != "cpu":
            return graph_cost(model.graph, lambda name: Layout.BF16, weights_bytes, kv_bytes)
        store, origins = model.store, model.origins
        return graph_cost(model.graph, lambda name: layout_of(store.tensor(origins[name].name).kind), weights_bytes, kv_bytes)


def graph_cost(graph: Graph, layout: LayoutOf, weights_bytes: int, kv_bytes: int) -> ModelCost:
    """The same from a graph, with `layout` telling a weight's by its name."""
    ops = {(part, integer): 0 for part in ("body", "head") for integer in (True, False)}
    values: dict[str, float] = {}
    attention = 0
    for operation in graph.operations:
        if operation.name in ("linear", "logits"):
            weight = operation.weights[0]
            outputs, inner = weight.shape
            values[weight.name] = outputs * inner * VALUE_BYTES[layout(weight.name)]
            ops["head" if operation.name == "logits" else "body", layout(weight.name).integer] += 2 * outputs * inner
        elif operation.name == "paged_attention":
            # Scores and weighted values: two products over the width of all query heads.
            attention += 4 * operation.output.width
    return ModelCost(
        round(weights_bytes * _share_read(graph, layout, values)),
        ops["body", True],
        ops["body", False],
        ops["head", True],
        ops["head", False],
        attention,
        kv_bytes,
    )


def _share_read(graph: Graph, layout: LayoutOf, products: dict[str, float]) -> float:
    """The share of the weights that a step reads: a table that only embeds is not read through, a step takes single rows of it."""
    unread = 0.0
    for operation in graph.operations:
        table = operation.weights[0] if operation.name == "embed" else None
        if table is not None and table.name not in products:
            unread += table.shape[0] * table.shape[1] * VALUE_BYTES[layout(table.name)]
    read = sum(products.values())
    return read / (read + unread) if read else 1.0
