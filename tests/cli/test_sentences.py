"""How an error is told at the command line."""

import pytest

from octavo.cli.run import sentence
from octavo.protocol.errors import ConfigError, ModelLoadError


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ConfigError("kv_cache_memory: is too little. Raise gpu_memory_utilization or kv_cache_memory.", param="kv_cache_memory"),
            "--kv-cache-memory is too little. Raise --gpu-memory-utilization or --kv-cache-memory.",
        ),
        (
            ConfigError('preemption_mode: "swap" needs a swap_space to swap to', param="preemption_mode"),
            '--preemption-mode: "swap" needs a --swap-space to swap to',
        ),
        (
            ConfigError("prefix_cache_dir: can't be /tmp/swap_space", param="prefix_cache_dir"),
            "--prefix-cache-dir can't be /tmp/swap_space",
        ),
        (ConfigError("lower max_model_len"), "lower --max-model-len"),
        (ConfigError("OCTAVO_CPU_ISA: no such block_size", param="OCTAVO_CPU_ISA"), "OCTAVO_CPU_ISA: no such --block-size"),
        (ModelLoadError("config.json: has no block_size"), "config.json: has no block_size"),
    ],
)
def test_fields_of_the_configuration_are_named_as_flags(error, told):
    assert sentence(error) == told
