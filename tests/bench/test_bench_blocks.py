"""`octavo bench blocks`: what it measures is there, and does not grow with the pool."""

import json

import pytest

from octavo.bench.block_management import KINDS, BlockOptions, run_blocks
from octavo.protocol.errors import ConfigError

SMALL = BlockOptions(pools=(100, 20_000), block_size=4, requests=4, prompt_len=64, iterations=20)


def test_every_kind_of_step_in_every_pool():
    report = run_blocks(SMALL)
    whole = json.loads(report.json())
    assert whole["settings"]["pools"] == [100, 20_000]
    pools = whole["results"]["pools"]
    assert [pool["num_blocks"] for pool in pools] == [100, 20_000]
    for pool in pools:
        assert set(pool["step_s"]) == set(KINDS)
        assert all(0 < seconds < 0.1 for seconds in pool["step_s"].values())
    assert all(0 < ratio < 20 for ratio in whole["results"]["largest_to_smallest"].values())
    (table,) = report.tables
    assert [row[0] for row in table.rows] == list(KINDS)
    assert [row[1] for row in table.rows] == ["4", "64", "64", "0"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        (BlockOptions(pools=(1_000, 10)), "pools"),
        (BlockOptions(pools=(1_000,), block_size=0), "block_size"),
        (BlockOptions(pools=(100_000,), iterations=15), "iterations"),
    ],
)
def test_sizes_that_can_t_hold(options, param):
    with pytest.raises(ConfigError) as found:
        run_blocks(options)
    assert found.value.param == param
