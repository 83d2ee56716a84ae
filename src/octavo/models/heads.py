"""Sizes of attention heads, and the projections around them, as most families have them."""

from __future__ import annotations

from octavo.graph.graph import Graph, Value
from octavo.models.fields import Fields

HUGE = 1 << 24
MAX_HEAD_DIM = 1 << 14


def read_kv_heads(fields: Fields, key: str, heads: int) -> int:
    """The number of KV heads, which divides that of the heads and is the same where `key` is absent."""
    count = fields.integer(key, heads, most=HUGE)
    if heads % count:
        raise fields.wrong(key, count, f"a divisor of the {heads} heads")
    return count


def check_head_dim(fields: Fields, key: str, head_dim: int) -> int:
    """A head's width, which rope needs to be even."""
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise fields.wrong(key, head_dim, f"an even number up to {MAX_HEAD_DIM}")
    return head_dim


def linears(graph: Graph, x: Value, stem: str, widths: dict[str, int], *, bias: bool) -> list[Value]:
    """Linears of one input: `{stem}.{name}.weight`, and `.bias` with `bias`, for each name with its width."""
    return [graph.linear(x, f"{stem}.{name}.weight", width, f"{stem}.{name}.bias" if bias else None) for name, width in widths.items()]
