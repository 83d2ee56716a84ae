"""Bytes and operations of a small model, worked out by hand, and the limits that follow."""

import pytest
from machines import ROUND

from octavo.backends.cpu.packing import Layout
from octavo.bench.cost import ModelCost, graph_cost, model_cost
from octavo.bench.machine import measure_machine
from octavo.graph.graph import CacheLayer, Graph, RopeSpec

COST = ModelCost(weights_bytes=200, body_int8=400, body_bf16=100, head_int8=0, head_bf16=50, attention_ops=10, kv_bytes=4)


def small_graph(*, tied: bool) -> Graph:
    """One layer of width 32: q of 2 heads, k and v of 1, a gated part of 64; a vocabulary of 96."""
    graph = Graph(96)
    x = graph.embed("embed", 32)
    h = graph.rms_norm(x, "norm", 1e-5)
    spec = RopeSpec(16, (1.0,) * 8)
    q, k, v = graph.linear(h, "q", 32), graph.linear(h, "k", 16), graph.linear(h, "v", 16)
    attended = graph.paged_attention(graph.rope(q, spec), graph.rope(k, spec), v, CacheLayer(1, 16), 0.25)
    x = graph.add(x, graph.linear(attended, "o", 32))
    gated = graph.silu_mul(graph.linear(x, "gate", 64), graph.linear(x, "up", 64))
    x = graph.add(x, graph.linear(gated, "down", 32))
    graph.logits(graph.rms_norm(x, "last", 1e-5), "embed" if tied else "head")
    return graph


def test_operations_of_a_graph():
    layouts = {"embed": Layout.INT8, "v": Layout.BF16}
    cost = graph_cost(small_graph(tied=True), lambda name: layouts.get(name, Layout.INT4), 1000, 64)
    assert cost.body_int8 == 2 * 32 * (32 + 16 + 32 + 64 + 64) + 2 * 64 * 32
    assert cost.body_bf16 == 2 * 32 * 16
    assert (cost.head_int8, cost.head_bf16) == (2 * 96 * 32, 0)
    assert cost.attention_ops == 4 * 32
    assert (cost.weights_bytes, cost.kv_bytes) == (1000, 64)


def test_a_table_that_only_embeds_is_not_read_through():
    cost = graph_cost(small_graph(tied=False), lambda name: Layout.BF16, 1_000_000, 64)
    head = 96 * 32
    body = 32 * (32 + 16 + 16 + 32 + 64 + 64) + 64 * 32
    assert cost.weights_bytes == round(1_000_000 * (head + body) / (2 * head + body))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_cost_of_a_checkpoint(fixtures_dir, backend):
    cost = model_cost(fixtures_dir / "gguf-tiny-llama" / "tiny-llama-Q4_0.gguf", backend, 10**6, 1024)
    reference = model_cost(fixtures_dir / "tiny-llama", backend, 10**6, 1024)
    assert cost.body_int8 + cost.body_bf16 == reference.body_int8 + reference.body_bf16 > 0
    assert (cost.body_int8 > cost.body_bf16) == (backend == "cpu")
    assert reference.body_int8 == 0


def test_the_machine_waits_for_memory_or_for_arithmetic():
    assert ROUND.seconds(read_bytes=200, int8_ops=1000) == 2.0
    assert ROUND.seconds(read_bytes=50, int8_ops=1000, bf16_ops=500) == 2.0


def test_limits_of_a_step_and_of_a_prompt():
    # 200 + 4·10 bytes take 2.4 s; the operations of one token less.
    assert COST.decode_bytes([10]) == 240
    assert COST.decode_ops([10]) == 400 + 100 + 50 + 100
    assert COST.decode_seconds(ROUND, [10]) == pytest.approx(2.4)
    # 20 tokens: 20·400 in int8; 20·100 + 50 and 10·(1 + … + 20) in bf16.
    assert COST.prefill_ops(20) == 8000 + 2050 + 2100
    assert COST.prefill_seconds(ROUND, 20) == pytest.approx(8.0 + 8.3)


def test_limits_of_a_batch():
    # (3, 2): 4 tokens computed, 2 of them sampled, 1 + 2 + 3 + 4 seen. (1, 1): 1 computed and sampled.
    int8, bf16 = COST.batch_ops([(3, 2), (1, 1)])
    assert int8 == 5 * 400
    assert bf16 == 5 * 100 + 3 * 50 + 10 * (10 + 1)
    assert COST.batch_seconds(ROUND, [(3, 2), (1, 1)]) == pytest.approx(max(2 * 2.0, 2000 / 1000 + 760 / 500))
    # A long answer can't take fewer steps than it has tokens.
    assert COST.batch_seconds(ROUND, [(1, 100)]) == pytest.approx(max(100 * 2.0, 100 * 400 / 1000 + (100 * 150 + 50_500) / 500))


def test_the_machine_is_measured(monkeypatch):
    monkeypatch.setattr("octavo.bench.machine.READ_BYTES", 8 << 20)
    machine = measure_machine(1)
    assert machine.threads == 1
    assert machine.processor
    # A megabyte a second and a million operations are beyond any doubt.
    assert machine.read_bytes_s > 1e6
    assert min(machine.int8_ops_s, machine.bf16_ops_s) > 1e6


def test_the_machine_is_measured_without_native_code(monkeypatch):
    monkeypatch.setattr("octavo.bench.machine.READ_BYTES", 8 << 20)
    monkeypatch.setattr("octavo.bench.machine.has_native", lambda: False)
    machine = measure_machine(1)
    assert machine.isa == "numpy"
    assert min(machine.read_bytes_s, machine.int8_ops_s) > 1e6
