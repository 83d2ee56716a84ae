"""Who is compared, with what weights, and how each is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from comparison.tasks import TASKS

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
# What vLLM's page on processors says to load first; tcmalloc where the system has it.
VLLM_PRELOAD = ("libiomp5.so", "libtcmalloc_minimal.so.4")
VLLM = {**OFFLINE, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_CPU_KVCACHE_SPACE": "4"}


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine with certain weights. `bits` of a weight say which contenders are of a kind: 4, 8 or 16.

    `model` names a file or folder of artifacts.py, `environment` one of environments.py ("" for Octavo's own interpreter), `runner` a
    script in runners/. `preload` names libraries of the environment or the system. `how` says in words what tables can't. `timeout` is for
    one round, in seconds; it runs in the first `most_rounds` rounds.
    """

    key: str
    engine: str
    weights: str
    bits: int
    model: str
    environment: str
    runner: str
    options: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    tasks: tuple[str, ...] = TASKS
    how: str = ""
    timeout: float = 900.0
    most_rounds: int = 1000

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.engine} {self.weights}"

    @property
    def ours(self) -> bool:
        """Whether it is Octavo."""
        return self.engine == "Octavo"


@dataclass(frozen=True, slots=True)
class Server:
    """A contender as an HTTP server: `python -m`, `command`, the model, `arguments`."""

    key: str
    contender: str
    environment: str
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    start_seconds: float = 900.0


def _octavo(key: str, weights: str, bits: int, model: str) -> Contender:
    return Contender(
        key, "Octavo", weights, bits, model, "", "run_octavo.py", {"enable_prefix_caching": False}, OFFLINE, how="LLM.generate"
    )


def _llamacpp(weights: str, bits: int) -> Contender:
    key, model = f"llamacpp-{weights.lower()}", f"gguf-{weights.lower()}"
    how = "llama_decode with 64 sequences, keys and values of each apart"
    return Contender(key, "llama.cpp", weights, bits, model, "llama-cpp-python", "run_llamacpp.py", how=how)


def _openvino(weights: str, bits: int) -> Contender:
    options = {
        "scheduler": {"cache_size": 4, "max_num_seqs": 64, "enable_prefix_caching": False},
        "properties": {"KV_CACHE_PRECISION": "u8"},
    }
    key = f"openvino-{weights}"
    how = "ContinuousBatchingPipeline, 8-bit KV cache"
    return Contender(key, "OpenVINO GenAI", weights, bits, key, "openvino-genai", "run_openvino.py", options, OFFLINE, how=how)


def _transformers(key: str, weights: str, batch_size: int, tasks: tuple[str, ...], how: str) -> Contender:
    options = {"batch_size": batch_size}
    return Contender(
        key,
        "transformers",
        weights,
        16,
        "checkpoint",
        "transformers",
        "run_transformers.py",
        options,
        OFFLINE,
        (),
        tasks,
        how,
        1800.0,
        most_rounds=1,
    )


CONTENDERS = (
    _octavo("octavo-q4_1", "Q4_1", 4, "gguf-q4_1"),
    _llamacpp("Q4_0", 4),
    _llamacpp("Q4_1", 4),
    _openvino("int4", 4),
    _octavo("octavo-int8", "Q8_0", 8, "gguf-q8_0"),
    _llamacpp("Q8_0", 8),
    _openvino("int8", 8),
    _octavo("octavo-bf16", "bf16", 16, "checkpoint"),
    _llamacpp("BF16", 16),
    Contender(
        "vllm-bf16",
        "vLLM",
        "bf16",
        16,
        "checkpoint",
        "vllm-cpu",
        "run_vllm.py",
        {"dtype": "bfloat16"},
        VLLM,
        VLLM_PRELOAD,
        how="LLM.generate, prefix caching off, compiled",
    ),
    _transformers("transformers-bf16", "bf16", 1, TASKS, "model.generate, one request at a time"),
    _transformers("transformers-bf16-batches", "bf16 in batches", 16, ("chat64",), "model.generate, static batches of 16"),
)

_OCTAVO, _OCTAVO_SERVE = ("octavo", "serve"), ("--no-enable-prefix-caching",)
# What `vllm serve` runs; the command itself asks for the version of a package named vllm, and this one's name is vllm-cpu.
_VLLM = ("vllm.entrypoints.openai.api_server", "--model")
_VLLM_SERVE = ("--dtype", "bfloat16", "--max-num-seqs", "64", "--no-enable-prefix-caching", "--disable-uvicorn-access-log")
SERVERS = (
    Server("octavo-q4_1", "octavo-q4_1", "", _OCTAVO, _OCTAVO_SERVE, OFFLINE),
    Server("octavo-bf16", "octavo-bf16", "", _OCTAVO, _OCTAVO_SERVE, OFFLINE),
    Server("vllm-bf16", "vllm-bf16", "vllm-cpu", _VLLM, _VLLM_SERVE, VLLM, VLLM_PRELOAD),
)
