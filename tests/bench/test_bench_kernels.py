"""`octavo bench kernels` on small shapes."""

import json

import numpy as np
import pytest
from machines import ROUND, measured_round

from octavo.backends.cpu.packing import Layout
from octavo.backends.select import has_native
from octavo.bench.kernels import KernelOptions, ProductTime, products_in_step, random_weights, run_kernels
from octavo.protocol.errors import ConfigError

SMALL = KernelOptions(rows=(1, 5, 70), outputs=40, inner=64, threads=1, iterations=1)
native = pytest.mark.skipif(not has_native(), reason="the native module is not built")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("octavo.bench.kernels.measure_machine", measured_round)
    monkeypatch.setattr("octavo.bench.kernels.FEW_ROWS_BYTES", 1 << 14)
    monkeypatch.setattr("octavo.bench.kernels.MANY_ROWS_OPS", 1_000_000)


@native
def test_every_layout_on_every_instruction_set():
    from octavo import _native

    report = run_kernels(SMALL)
    whole = json.loads(report.json())
    products = whole["results"]["products"]
    isas = _native.available_isas()[::-1]
    assert [(each["isa"], each["layout"], each["rows"]) for each in products] == [
        (isa, layout, rows) for isa in isas for layout in ("int4", "int8", "bf16") for rows in (1, 5, 70)
    ]
    for each in products:
        assert each["ops_per_s"] == pytest.approx(2 * 40 * 64 * each["rows"] / each["seconds"])
        assert each["share_of_limit"] > 0
    assert len(report.tables) == 1 + len(isas)


@native
def test_some_can_be_picked():
    report = run_kernels(KernelOptions(rows=(2,), outputs=16, inner=32, threads=1, iterations=1, isas=("portable",), layouts=("int8",)))
    assert [(each["isa"], each["layout"]) for each in report.results["products"]] == [("portable", "int8")]


@native
@pytest.mark.parametrize(
    ("options", "param"),
    [
        (KernelOptions(isas=("sse9",)), "isa"),
        (KernelOptions(layouts=("int3",)), "layout"),
        (KernelOptions(inner=33), "inner"),
    ],
)
def test_what_is_not_there_is_refused_by_name(options, param):
    with pytest.raises(ConfigError) as found:
        run_kernels(options)
    assert found.value.param == param


def test_without_native_code_there_is_nothing_to_measure(monkeypatch):
    monkeypatch.setattr("octavo.bench.kernels.has_native", lambda: False)
    with pytest.raises(ConfigError, match="no native code"):
        run_kernels(SMALL)


def test_shares_of_the_limit_by_hand():
    # 2 s to read 200 bytes at 100 a second; 1 s for 1000 operations in int8, 2 s in bf16.
    assert ProductTime("x", Layout.INT4, 1, 4.0, 200, 1000).share(ROUND) == 0.5
    assert ProductTime("x", Layout.BF16, 1, 4.0, 100, 1000).share(ROUND) == 0.5
    assert ProductTime("x", Layout.INT8, 1, 4.0, 100, 1000).share(ROUND) == 0.25


def test_few_rows_pass_over_more_memory_than_a_cache_holds(monkeypatch):
    monkeypatch.undo()
    assert products_in_step(1, 1e6, 1 << 20) * (1 << 20) >= 100 << 20
    assert products_in_step(512, 1e9, 1 << 20) == 2
    assert products_in_step(512, 1e12, 1 << 20) == 1


@pytest.mark.parametrize(("layout", "row_bytes"), [(Layout.INT4, 40), (Layout.INT8, 68), (Layout.BF16, 128)])
def test_random_weights_are_rows_of_a_checkpoint(layout, row_bytes):
    rows = random_weights(np.random.default_rng(0), layout, 3, 64)
    assert rows.shape == (3, row_bytes)
    assert rows.dtype == np.uint8
