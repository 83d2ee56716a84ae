"""Every option's type is checked where the configuration is made, by the option's name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config.engine import BackendConfig, CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.config.server import ServerOptions
from octavo.protocol.errors import ConfigError

KINDS: list[Any] = [ModelConfig, CacheConfig, SchedulerConfig, BackendConfig, EngineConfig, ServerOptions]
FIELDS = [(kind, field.name) for kind in KINDS for field in dataclasses.fields(kind)]


@pytest.mark.parametrize(("kind", "name"), FIELDS)
@pytest.mark.parametrize("value", [object(), [5], b"1", {"a": 1}, 1j])
def test_no_field_takes_a_value_of_another_type(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: must be ") as caught:
        kind(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        (ModelConfig, "model", 5, "must be a string or a path, not 5"),
        (ModelConfig, "model", None, "must be a string or a path, not None"),
        (ModelConfig, "max_model_len", "256", "must be a whole number, or None, not '256'"),
        (ModelConfig, "max_model_len", 1, "must be at least 2: a token of prompt and one of output"),
        (ModelConfig, "max_model_len", True, "must be a whole number, or None, not True"),
        (ModelConfig, "max_logprobs", -2, "must be from 0 to 9223372036854775807, or -1 for the whole vocabulary, not -2"),
        (ModelConfig, "revision", 5, "must be a string, or None, not 5"),
        (ModelConfig, "revision", Path("main"), "must be a string, or None, not PosixPath('main')"),
        (ModelConfig, "download_dir", 5, "must be a string or a path, or None, not 5"),
        (ModelConfig, "generation_config", 5, "must be a string, not 5"),
        (CacheConfig, "gpu_memory_utilization", "0.5", "must be a number, not '0.5'"),
        (CacheConfig, "gpu_memory_utilization", float("nan"), "must be over 0 and at most 1, not nan"),
        (CacheConfig, "gpu_memory_utilization", 10**400, "must be over 0 and at most 1, not inf"),
        (CacheConfig, "block_size", "16", "must be a whole number, not '16'"),
        (CacheConfig, "block_size", 16.0, "must be a whole number, not 16.0"),
        (CacheConfig, "kv_cache_memory", 2.5, 'must be a whole number or text like "2GiB", or None, not 2.5'),
        (CacheConfig, "kv_cache_memory", "much", "'much' is not a size; write it like 2GiB, 512MiB, 1.5GB or 1073741824"),
        (CacheConfig, "num_blocks_override", 2.5, "must be a whole number, or None, not 2.5"),
        (SchedulerConfig, "max_num_seqs", 1.5, "must be a whole number, not 1.5"),
        (SchedulerConfig, "max_num_seqs", True, "must be a whole number, not True"),
        (SchedulerConfig, "max_num_batched_tokens", np.float64(8), "must be a whole number, not "),
        (BackendConfig, "threads", "x", "must be a whole number, not 'x'"),
        (BackendConfig, "threads", -(2**200), "must be from 0 to 4096, not an integer of 201 bits"),
        (EngineConfig, "seed", "a", "must be a whole number, or None, not 'a'"),
        (EngineConfig, "model", "smollm2", "must be ModelConfig, not 'smollm2'"),
        (ServerOptions, "port", "8000", "must be a whole number, not '8000'"),
        (ServerOptions, "access_log", 1, "must be True or False, not 1"),
        (ServerOptions, "api_key", ["a", 5], "must be a list of strings, not ['a', 5]"),
        (ServerOptions, "shutdown_timeout", "soon", "must be a number, not 'soon'"),
    ],
)
def test_the_message_names_field_value_and_what_is_wanted(kind: Any, name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**{name: value})
    assert caught.value.message.startswith(f"{name}: {message}")
    assert caught.value.param == name


def test_numpy_numbers_become_python_s() -> None:
    model = ModelConfig(max_model_len=np.int64(256))
    cache = CacheConfig(np.uint8(32), np.float32(0.25), np.int32(1 << 20), np.int16(9))
    scheduler = SchedulerConfig(np.int64(7), np.int8(3))
    values = [model.max_model_len, *dataclasses.astuple(cache), *dataclasses.astuple(scheduler), BackendConfig(threads=np.int64(2)).threads]
    assert values == [256, 32, 0.25, 1 << 20, 9, True, "auto", None, 0, 7, 3, "fcfs", "auto", 2]
    assert [type(value) for value in values] == [int, int, float, int, int, bool, str, type(None), int, int, int, str, str, int]
    assert type(EngineConfig(seed=np.int64(5)).seed) is int


def test_paths_and_sizes_may_be_given_as_such() -> None:
    model = ModelConfig(Path("/models/x.gguf"), download_dir=Path("/d"))  # type: ignore[arg-type]
    assert (model.model, model.download_dir) == ("/models/x.gguf", "/d")
    assert CacheConfig(kv_cache_memory="1GiB").kv_cache_memory == 1 << 30  # type: ignore[arg-type]
    options = ServerOptions(chat_template=Path("a.jinja"), max_body_bytes="1MiB", api_key=["a", "b"], allowed_origins="*")  # type: ignore[arg-type]
    assert (options.chat_template, options.max_body_bytes) == ("a.jinja", 1 << 20)
    assert (options.api_key, options.allowed_origins) == (("a", "b"), ("*",))
