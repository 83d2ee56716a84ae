"""Flags that several commands share, each written once, and what is built from them.

A parameter of a command has the name of the field that it fills in EngineConfig or SamplingParams, so that no flag is accepted and lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any

import click

from octavo.cli.declare import Argument, Option
from octavo.config.engine import (
    BACKENDS,
    DTYPES,
    KV_CACHE_DTYPES,
    POLICIES,
    PREEMPTION_MODES,
    BackendConfig,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
)
from octavo.utils.sizes import parse_count, parse_size

MODEL, CACHE, SCHEDULER, BACKEND, ENGINE = ModelConfig(), CacheConfig(), SchedulerConfig(), BackendConfig(), EngineConfig()  # the defaults
STRUCTURED = StructuredOutputsConfig()


def _for_click(parse: Callable[[str], int]) -> Callable[[str | int], int]:
    """`parse` as click wants it, which sends defaults through it too. Raises click.BadParameter."""

    def parsed(text: str | int) -> int:
        try:
            return text if isinstance(text, int) else parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return parsed


size, count = _for_click(parse_size), _for_click(parse_count)


MODEL_HELP = "An alias (smollm2), a .gguf file, a folder with safetensors, pypi:PACKAGE, or ORG/NAME on the hub."

_MODEL, _CACHE, _SCHEDULER, _BACKEND, _SAMPLING = "Model", "KV cache", "Scheduler", "Backend", "Sampling"
_STRUCTURED = "Structured outputs"

ModelArgument = Annotated[str | None, Argument(metavar="MODEL", help=MODEL_HELP + " Default: smollm2.")]
ModelOption = Annotated[str | None, Option("--model", "-m", metavar="MODEL", help="The same as the argument.", panel=_MODEL)]
Revision = Annotated[
    str | None,
    Option(metavar="REV", help="Branch, tag or commit of a hub model.", panel=_MODEL),
]
DownloadDir = Annotated[
    str | None,
    Option(metavar="DIR", help="Where models are kept. Default: $OCTAVO_CACHE, or the user's cache folder.", panel=_MODEL),
]
MaxModelLen = Annotated[
    int | None,
    Option(
        parser=count, metavar="TOKENS", help="Prompt and output together, like 8192 or 8K. Default: the model's own limit.", panel=_MODEL
    ),
]
GenerationConfig = Annotated[
    str,
    Option(metavar="auto|vllm", help="Sampling defaults: the model's own, or none of them.", panel=_MODEL),
]
MaxLogprobs = Annotated[
    int,
    Option(metavar="N", help="Most alternatives that a request may ask for at each token; -1 for the whole vocabulary.", panel=_MODEL),
]
Dtype = Annotated[
    str,
    Option(
        "--dtype",
        "--precision",
        metavar="|".join(DTYPES),
        help="What keys and values are kept in where --kv-cache-dtype is auto. Weights stay as the checkpoint has them.",
        panel=_MODEL,
    ),
]

BlockSize = Annotated[int, Option(metavar="TOKENS", help="Tokens a block of the KV cache holds.", panel=_CACHE)]
GpuMemoryUtilization = Annotated[
    float,
    Option(
        "--gpu-memory-utilization",
        "--gpu-mem-usage",
        metavar="SHARE",
        help="Share of the machine's (or cgroup's) memory for weights and KV cache together.",
        panel=_CACHE,
    ),
]


KvCacheMemory = Annotated[
    int | None,
    Option(
        "--kv-cache-memory",
        "--kv-cache-memory-bytes",
        parser=size,
        metavar="SIZE",
        help="Memory for the KV cache alone, like 2GiB; wins over --gpu-memory-utilization.",
        panel=_CACHE,
    ),
]
NumBlocksOverride = Annotated[
    int | None,
    Option("--num-gpu-blocks-override", metavar="N", help="Blocks of the KV cache, exactly.", panel=_CACHE),
]
KvCacheDtype = Annotated[
    str,
    Option(
        metavar="|".join(KV_CACHE_DTYPES),
        help="What the cache rounds keys and values to. auto is bfloat16 on the cpu backend, float32 on the reference backend.",
        panel=_CACHE,
    ),
]
EnablePrefixCaching = Annotated[
    bool,
    Option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        "--prefix-caching/--no-prefix-caching",
        help="Take over what the cache still holds of a prompt from earlier requests.",
        panel=_CACHE,
    ),
]
PrefixCacheDir = Annotated[
    str | None,
    Option(
        metavar="DIR",
        help="Folder that the prefix cache is saved to at the end, and taken from at the start. Default: it is not saved.",
        panel=_CACHE,
    ),
]
SwapSpace = Annotated[
    int,
    Option(
        parser=size,
        metavar="SIZE",
        help="Memory for blocks of preempted requests beside the cache, like 4GiB; 0 computes them again.",
        panel=_CACHE,
    ),
]
MaxNumBatchedTokens = Annotated[
    int, Option(parser=count, metavar="N", help="Tokens computed in one step, at most, like 2048 or 2K.", panel=_SCHEDULER)
]
MaxNumSeqs = Annotated[int, Option("--max-num-seqs", "--max-batch", metavar="N", help="Requests in one step, at most.", panel=_SCHEDULER)]
SchedulingPolicy = Annotated[
    str,
    Option(
        metavar="|".join(POLICIES),
        help="Who is served first, and keeps its blocks longest: who came first, or whose priority is lowest.",
        panel=_SCHEDULER,
    ),
]
PreemptionMode = Annotated[
    str,
    Option(
        metavar="|".join(PREEMPTION_MODES),
        help="What becomes of a preempted request's blocks: swapped, computed again, or what is expected to take less time.",
        panel=_SCHEDULER,
    ),
]
Backend = Annotated[str, Option(metavar="|".join(BACKENDS), help="Where the numbers are computed.", panel=_BACKEND)]
Threads = Annotated[int, Option(metavar="N", help="Threads; 0 is one for each physical core that may be used.", panel=_BACKEND)]
PinThreads = Annotated[
    bool | None,
    Option(
        "--pin-threads/--no-pin-threads",
        help="Keep each thread on a CPU of its own while it computes. Default: where each gets one and no cgroup's quota holds.",
        panel=_BACKEND,
    ),
]
EngineSeed = Annotated[
    int | None,
    Option(
        metavar="N",
        help="Gives requests without a seed theirs, by order of arrival. Default: random ones.",
        panel=_BACKEND,
    ),
]

MaxGrammarSize = Annotated[
    int,
    Option(
        parser=size,
        metavar="SIZE",
        help="Largest grammar that a request's schema, expression or grammar may make. Default: 64KiB.",
        panel=_STRUCTURED,
    ),
]
MaxCompiledGrammars = Annotated[int, Option(metavar="N", help="Grammars that are kept compiled for requests to come.", panel=_STRUCTURED)]

Temperature = Annotated[float | None, Option(metavar="T", help="0 is greedy. Default: the model's own.", panel=_SAMPLING)]
TopP = Annotated[
    float | None,
    Option(metavar="P", help="Keep the likeliest tokens that make up this share.", panel=_SAMPLING),
]
TopK = Annotated[int | None, Option(metavar="K", help="Keep the K likeliest tokens.", panel=_SAMPLING)]
MinP = Annotated[
    float | None,
    Option(metavar="P", help="Drop tokens less likely than this share of the likeliest.", panel=_SAMPLING),
]
RepetitionPenalty = Annotated[float | None, Option(metavar="X", help="Over 1 makes repetition less likely.", panel=_SAMPLING)]
MaxTokens = Annotated[
    int | None,
    Option(metavar="N", help="Tokens generated, at most. Default: what the context has room for.", panel=_SAMPLING),
]
SamplingSeed = Annotated[int | None, Option(metavar="N", help="The same seed gives the same text.", panel=_SAMPLING)]
Stop = Annotated[
    list[str] | None,
    Option(metavar="TEXT", help="End before this text; may be given again.", panel=_SAMPLING),
]

SAMPLING_FLAGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed", "stop")


def one_model(argument: str | None, option: str | None) -> str | None:
    """The model that the command line names, if it names any. Raises click.BadParameter when it names two."""
    if argument and option and argument != option:
        raise click.BadParameter(f"two models are named: {argument} and {option}")
    return argument or option


def _part(kind: type[Any], values: dict[str, Any]) -> Any:
    return kind(**{f.name: values[f.name] for f in fields(kind) if f.name in values})


def engine_config(model: str, values: dict[str, Any], *, seed: int | None = ENGINE.seed) -> EngineConfig:
    """EngineConfig from a command's parameters by name; what the command does not offer keeps its default. Raises ConfigError."""
    return EngineConfig(
        model=_part(ModelConfig, {**values, "model": model}),
        cache=_part(CacheConfig, values),
        scheduler=_part(SchedulerConfig, values),
        backend=_part(BackendConfig, values),
        structured_outputs=_part(StructuredOutputsConfig, values),
        seed=seed,
    )


def sampling_values(values: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters that were given, by SamplingParams' names."""
    given = {name: values[name] for name in SAMPLING_FLAGS if values.get(name) not in (None, [], ())}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


_RENAMED = {
    "num_blocks_override": "num_gpu_blocks_override",
    "max_body_bytes": "max_body_size",
    "uvicorn_log_level": "log_level",
    "json_file": "json",
    "most_seconds": "max_seconds",
    "iterations": "num_iters",
    "pools": "pool",
    "traces": "trace",
    "plot_file": "plot",
}


# What a message may name as a field of EngineConfig, and a person at the command line as a flag.
ENGINE_FIELDS = frozenset(each.name for part in (MODEL, CACHE, SCHEDULER, BACKEND, ENGINE) for each in fields(part))


def flag_name(param: str) -> str:
    """The flag that fills the field `param`."""
    return "--" + _RENAMED.get(param, param).replace("_", "-")


def flag_words(param: str, value: object) -> list[str]:
    """The words of a command line that give the field `param` this value."""
    flag = flag_name(param)
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag.removeprefix("--")]
    return [flag, str(value)]
