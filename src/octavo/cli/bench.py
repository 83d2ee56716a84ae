"""`octavo bench`: how fast this machine serves a model, and how far that is from what it could do."""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Annotated, Any

from octavo.cli import flags
from octavo.cli.declare import Group, Option, command_of
from octavo.cli.run import USAGE, command, fail
from octavo.config.engine import CacheConfig, EngineConfig
from octavo.config.server import API_KEY_VARIABLE

_BENCH, _LOAD = "Benchmark", "Load"
TERMINATED = 143

bench = Group("bench", help="Measure this machine and a model on it, or any OpenAI-compatible server.", no_args_is_help=True)

Json = Annotated[
    str | None,
    Option(
        "--json",
        metavar="FILE",
        help='Write the results there as one JSON object; "-" is stdout, and the tables go to stderr.',
        panel=_BENCH,
    ),
]
Iterations = Annotated[int, Option("--num-iters", least=1, metavar="N", help="Runs; figures are medians.", panel=_BENCH)]
Warmup = Annotated[int, Option("--num-iters-warmup", least=0, metavar="N", help="Runs before these.", panel=_BENCH)]
InputLen = Annotated[int, Option(least=1, metavar="TOKENS", help="Tokens of a random prompt.", panel=_BENCH)]
OutputLen = Annotated[int, Option(least=1, metavar="TOKENS", help="Tokens generated for it.", panel=_BENCH)]
NumPrompts = Annotated[
    int | None,
    Option(least=1, metavar="N", help="Requests of a random workload. Default: 64, or 32 with a shared prefix.", panel=_BENCH),
]
RandomInputLen = Annotated[
    int | None,
    Option("--input-len", least=1, metavar="TOKENS", help="Their prompts. Default: 128, or 32 after a shared prefix.", panel=_BENCH),
]
RandomOutputLen = Annotated[
    int | None,
    Option("--output-len", least=1, metavar="TOKENS", help="Their answers. Default: 128, or 32 after a shared prefix.", panel=_BENCH),
]
PrefixLen = Annotated[
    int | None,
    Option(least=1, metavar="TOKENS", help="The prefix that prompts of shared-prefix begin with. Default: 512.", panel=_BENCH),
]
WorkloadName = Annotated[
    str,
    Option(
        metavar="chat64|random|shared-prefix",
        help="64 chat-like requests, random prompts of one length, or such after the same beginning.",
        panel=_BENCH,
    ),
]

# A run repeats the prompts of the one before, and figures are of work that is done.
_WITHOUT_CACHE = EngineConfig(cache=CacheConfig(enable_prefix_caching=False))

# The flags of a model and its engine, as `octavo serve` has them.
_ENGINE: dict[str, tuple[Any, Any]] = {
    "model": (flags.ModelArgument, None),
    "model_option": (flags.ModelOption, None),
    "revision": (flags.Revision, None),
    "download_dir": (flags.DownloadDir, None),
    "max_model_len": (flags.MaxModelLen, flags.MODEL.max_model_len),
    "dtype": (flags.Dtype, flags.MODEL.dtype),
    "block_size": (flags.BlockSize, flags.CACHE.block_size),
    "gpu_memory_utilization": (flags.GpuMemoryUtilization, flags.CACHE.gpu_memory_utilization),
    "kv_cache_memory": (flags.KvCacheMemory, flags.CACHE.kv_cache_memory),
    "num_blocks_override": (flags.NumBlocksOverride, flags.CACHE.num_blocks_override),
    "kv_cache_dtype": (flags.KvCacheDtype, flags.CACHE.kv_cache_dtype),
    "enable_prefix_caching": (flags.EnablePrefixCaching, _WITHOUT_CACHE.cache.enable_prefix_caching),
    "max_num_batched_tokens": (flags.MaxNumBatchedTokens, flags.SCHEDULER.max_num_batched_tokens),
    "max_num_seqs": (flags.MaxNumSeqs, flags.SCHEDULER.max_num_seqs),
    "backend": (flags.Backend, flags.BACKEND.backend),
    "threads": (flags.Threads, flags.BACKEND.threads),
    "pin_threads": (flags.PinThreads, flags.BACKEND.pin_threads),
    "seed": (
        Annotated[int, Option(least=0, metavar="N", help="Draws prompts, tokens and arrivals.", panel=_BENCH)],
        0,
    ),
}


def _add(name: str, flag_sets: Sequence[dict[str, tuple[Any, Any]]] = (_ENGINE,)) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a function a command of `octavo bench`: it gets `config` and `seed` from the engine's flags, which are added to its own."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        shared = {flag: entry for flags_of_one in flag_sets for flag, entry in flags_of_one.items()}

        @functools.wraps(function)
        def run(**values: Any) -> None:
            if shared:
                given = {flag: values.pop(flag) for flag in shared}
                chosen = flags.one_model(given["model"], given["model_option"])
                values |= {"named": chosen, "config": flags.engine_config(chosen or flags.MODEL.model, given, seed=given["seed"])}
            # A benchmark that is told to end takes its servers with it.
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))
            function(**values)

        hidden = {"config", "named"} if shared else set()
        own = [parameter for parameter in inspect.signature(function, eval_str=True).parameters.values() if parameter.name not in hidden]
        kind = inspect.Parameter.KEYWORD_ONLY
        added = [inspect.Parameter(flag, kind, default=default, annotation=hint) for flag, (hint, default) in shared.items()]
        parameters = [*added[:2], *(parameter.replace(kind=kind) for parameter in own), *added[2:]]
        whole = command(run)
        whole.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        bench.add_command(command_of(whole, name))
        return whole

    return decorate


@_add("latency")
def latency(
    config: EngineConfig,
    named: str | None,
    *,
    input_len: InputLen = 32,
    output_len: OutputLen = 128,
    prefill_len: Annotated[int, Option(least=0, metavar="TOKENS", help="A prompt timed by itself; 0 for none.", panel=_BENCH)] = 1024,
    context: Annotated[
        int,
        Option(least=0, metavar="TOKENS", help="Time tokens at this length of context and at 100; 0 for not.", panel=_BENCH),
    ] = 0,
    breakdown: Annotated[bool, Option("--breakdown/--no-breakdown", help="Show where a step's time goes.", panel=_BENCH)] = True,
    iterations: Iterations = 5,
    warmup: Warmup = 1,
    json_file: Json = None,
) -> None:
    """Time one request at a time: first token, further tokens, a long prompt, and the parts of a step with 1 and with 64 requests."""
    from octavo.bench.latency import LatencyOptions, run_latency
    from octavo.bench.report import check_target, publish

    check_target(json_file)
    options = LatencyOptions(input_len, output_len, prefill_len, context, breakdown, iterations, warmup, config.seed or 0)
    publish(run_latency(config, options, quiet=json_file == "-"), json_file)


@_add("throughput")
def throughput(
    config: EngineConfig,
    named: str | None,
    *,
    workload: WorkloadName = "chat64",
    num_prompts: NumPrompts = None,
    input_len: RandomInputLen = None,
    output_len: RandomOutputLen = None,
    prefix_len: PrefixLen = None,
    iterations: Iterations = 3,
    json_file: Json = None,
) -> None:
    """Time a batch of requests in this process, as a script with LLM would run it."""
    from octavo.bench.report import check_target, publish
    from octavo.bench.throughput import ThroughputOptions, run_throughput

    check_target(json_file)
    lengths = _lengths(workload, num_prompts=num_prompts, input_len=input_len, output_len=output_len, prefix_len=prefix_len)
    options = ThroughputOptions(workload, **lengths, iterations=iterations, seed=config.seed or 0)
    publish(run_throughput(config, options, quiet=json_file == "-"), json_file)


@_add("serve")
def serve(
    config: EngineConfig,
    named: str | None,
    *,
    url: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="A server that runs already; MODEL is then the name to ask for, by default the first that it lists.",
            panel=_LOAD,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        Option(metavar="KEY", help=f"Key for --url. Default: ${API_KEY_VARIABLE}.", panel=_LOAD),
    ] = None,
    rate: Annotated[
        float,
        Option(metavar="R", help="Requests a second, arriving as a Poisson process; inf sends all at once.", panel=_LOAD),
    ] = float("inf"),
    clients: Annotated[int, Option(least=0, metavar="N", help="Requests under way at once, at most; 0 for any number.", panel=_LOAD)] = 0,
    prompt_form: Annotated[
        str, Option(metavar="ids|text", help="Send token ids, or words for a server that takes none.", panel=_LOAD)
    ] = "ids",
    warmup: Annotated[int, Option(least=0, metavar="N", help="Short requests sent beforehand.", panel=_LOAD)] = 4,
    timeout: Annotated[float, Option(least=0.001, metavar="SECONDS", help="A request that takes longer has failed.", panel=_LOAD)] = 300.0,
    most_seconds: Annotated[
        float,
        Option("--max-seconds", least=0.001, metavar="SECONDS", help="The whole load may take no longer.", panel=_LOAD),
    ] = 900.0,
    workload: WorkloadName = "chat64",
    num_prompts: NumPrompts = None,
    input_len: RandomInputLen = None,
    output_len: RandomOutputLen = None,
    prefix_len: PrefixLen = None,
    vocab_size: Annotated[
        int | None,
        Option(
            least=1,
            metavar="N",
            help="Random token ids are below this. Default: the model's, or 32000 with --url.",
            panel=_BENCH,
        ),
    ] = None,
    json_file: Json = None,
) -> None:
    """Put a server under load: `octavo serve`, started and ended here, or any OpenAI-compatible one at --url.

    Requests go to /v1/completions and are streamed. Times count from when a request is sent, its connection included.
    """
    from octavo.bench.report import check_target, publish
    from octavo.bench.serve import ServeOptions, run_serve

    arguments = server_arguments(config)
    lost = [argument for argument in server_arguments(config, _WITHOUT_CACHE) if argument.startswith("--") and argument != "--seed"]
    if url and lost:
        fail(f"{lost[0]} has no meaning with --url: the server has its own settings", USAGE)
    if api_key and not url:
        fail("--api-key has no meaning without --url", USAGE)
    if vocab_size is not None and workload == "chat64":
        fail("--vocab-size has no meaning with chat64, whose prompts are given; add --workload random", USAGE)
    check_target(json_file)
    options = ServeOptions(
        url=url,
        model=named,
        workload=workload,
        **_lengths(workload, num_prompts=num_prompts, input_len=input_len, output_len=output_len, prefix_len=prefix_len),
        prompt_form=prompt_form,
        rate=rate,
        clients=clients,
        warmup=warmup,
        timeout=timeout,
        most_seconds=most_seconds,
        vocab_size=vocab_size,
        seed=config.seed or 0,
    )
    key = api_key or os.environ.get(API_KEY_VARIABLE, "").split(",")[0].strip() or None
    publish(run_serve(options, config, arguments, api_key=key if url else None), json_file)


# A start has one request, so that the cache has nothing to give.
@_add("startup", (_ENGINE, {"enable_prefix_caching": (flags.EnablePrefixCaching, flags.CACHE.enable_prefix_caching)}))
def startup(config: EngineConfig, named: str | None, *, iterations: Iterations = 5, json_file: Json = None) -> None:
    """Time `octavo serve` from the start of its process to the first token of a first request, and show the memory that it takes."""
    from octavo.bench.report import check_target, publish
    from octavo.bench.startup import StartupOptions, run_startup

    check_target(json_file)
    publish(run_startup(config, StartupOptions(iterations), server_arguments(config)), json_file)


# Its traces say how large the cache is, and every policy meets it without what others have left there.
_SET_BY_THE_TRACE = ("gpu_memory_utilization", "kv_cache_memory", "num_blocks_override", "enable_prefix_caching")


_LONGEST = Annotated[
    int | None,
    Option(
        "--max-model-len",
        parser=flags.count,
        least=1,
        metavar="TOKENS",
        help="The maximum length. Default: 1024 for chat64, 2048 for log-normal.",
        panel=_BENCH,
    ),
]


@_add("memory", ({name: entry for name, entry in _ENGINE.items() if name not in _SET_BY_THE_TRACE} | {"max_model_len": (_LONGEST, None)},))
def memory(
    config: EngineConfig,
    named: str | None,
    *,
    traces: Annotated[
        list[str] | None,
        Option("--trace", metavar="chat64|log-normal", help="May be given again. Default: both.", panel=_BENCH),
    ] = None,
    full_requests: Annotated[
        int, Option(least=1, metavar="N", help="KV memory: what N requests of the maximum length take.", panel=_BENCH)
    ] = 4,
    num_prompts: Annotated[
        int | None, Option(least=1, metavar="N", help="Requests of the log-normal trace. Default: 64.", panel=_BENCH)
    ] = None,
    iterations: Iterations = 1,
    json_file: Json = None,
    plot_file: Annotated[str | None, Option("--plot", metavar="FILE", help="Draw the figures there, as SVG.", panel=_BENCH)] = None,
) -> None:
    """Replay a trace under two static allocators and under the paged KV cache, in the same memory, with the real engine.

    Static is the maximum length for each request, or its prompt and the longest answer rounded up to a power of two of blocks (buddies).
    """
    from octavo.bench.memory import MemoryOptions, charts, run_memory
    from octavo.bench.report import check_target, publish, write_file

    check_target(json_file)
    check_target(plot_file, "plot_file")
    if num_prompts is not None and traces and "log-normal" not in traces:
        fail("--num-prompts has no meaning without --trace log-normal", USAGE)
    given: dict[str, Any] = {"traces": tuple(traces)} if traces else {}
    given |= {"num_prompts": num_prompts} if num_prompts else {}
    options = MemoryOptions(**given, full_requests=full_requests, iterations=iterations, seed=config.seed or 0)
    report = run_memory(config, options, quiet=json_file == "-")
    publish(report, json_file)
    if plot_file is not None:
        write_file(plot_file, charts(report.results), "plot_file")


@_add("blocks", ())
def blocks(
    *,
    pools: Annotated[
        list[int] | None, Option("--pool", least=1, metavar="BLOCKS", help="May be given again. Default: 1000 and 1000000.", panel=_BENCH)
    ] = None,
    block_size: flags.BlockSize = flags.CACHE.block_size,
    requests: Annotated[int, Option(least=1, metavar="N", help="Requests that run at once.", panel=_BENCH)] = 32,
    prompt_len: Annotated[int, Option(least=1, metavar="TOKENS", help="Tokens of a prompt.", panel=_BENCH)] = 512,
    iterations: Annotated[int, Option("--num-iters", least=1, metavar="N", help="Steps of each kind.", panel=_BENCH)] = 160,
    json_file: Json = None,
) -> None:
    """Time what a step spends on planning and block management, without a model, in pools of different sizes."""
    from octavo.bench.block_management import BlockOptions, run_blocks
    from octavo.bench.report import check_target, publish

    check_target(json_file)
    given = {"pools": tuple(pools)} if pools else {}
    publish(
        run_blocks(BlockOptions(**given, block_size=block_size, requests=requests, prompt_len=prompt_len, iterations=iterations)), json_file
    )


@_add("kernels", ())
def kernels(
    *,
    rows: Annotated[list[int] | None, Option(least=1, metavar="N", help="Rows; may be given again. Default: 1, 4, 16, 64, 512.")] = None,
    outputs: Annotated[int, Option(least=1, metavar="N", help="Outputs of the weight.")] = 1536,
    inner: Annotated[int, Option(least=32, metavar="N", help="Inputs of the weight, a multiple of 32.")] = 576,
    layout: Annotated[list[str] | None, Option(metavar="int4|int8|bf16", help="May be given again. Default: all.")] = None,
    isa: Annotated[
        list[str] | None,
        Option(metavar="ISA", help="An instruction set, as OCTAVO_CPU_ISA names it; may be given again. Default: all of this machine."),
    ] = None,
    threads: flags.Threads = 0,
    iterations: Iterations = 5,
    seed: Annotated[int, Option(least=0, metavar="N", help="Draws the weights.", panel=_BENCH)] = 0,
    json_file: Json = None,
) -> None:
    """Time products of packed weights alone, for each layout and instruction set, against what the machine could do."""
    from octavo.bench.kernels import KernelOptions, run_kernels
    from octavo.bench.report import check_target, publish

    check_target(json_file)
    given = {"rows": tuple(rows)} if rows else {}
    options = KernelOptions(
        **given,
        outputs=outputs,
        inner=inner,
        isas=tuple(isa or ()),
        layouts=tuple(layout or ()),
        threads=threads,
        iterations=iterations,
        seed=seed,
    )
    publish(run_kernels(options), json_file)


def _lengths(workload: str, **given: int | None) -> dict[str, int]:
    """What of the random workloads was given; it has no meaning with another."""
    lengths = {name: value for name, value in given.items() if value is not None}
    if lengths and workload == "chat64":
        fail(f"{flags.flag_name(next(iter(lengths)))} has no meaning with chat64; add --workload random", USAGE)
    if "prefix_len" in lengths and workload == "random":
        fail("--prefix-len has no meaning with random; add --workload shared-prefix", USAGE)
    return lengths


def server_arguments(config: EngineConfig, defaults: EngineConfig | None = None) -> list[str]:
    """What follows `octavo serve` for an engine of this configuration, where it differs from `defaults`, by default the server's own."""
    from octavo.api.arguments import PARTS

    arguments = [config.model.model, "--seed", str(config.seed)] if config.seed is not None else [config.model.model]
    defaults = defaults or EngineConfig()
    for part in PARTS:
        for each in fields(getattr(config, part)):
            value = getattr(getattr(config, part), each.name)
            if each.name != "model" and value != getattr(getattr(defaults, part), each.name):
                arguments += flags.flag_words(each.name, value)
    return arguments
