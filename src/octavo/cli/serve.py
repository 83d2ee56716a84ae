"""`octavo serve`: the OpenAI-compatible server."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from typing import Annotated, Any

import click

from octavo.cli import flags
from octavo.cli.declare import Option
from octavo.cli.run import command
from octavo.config.server import API_KEY_VARIABLE, LOG_LEVELS, ServerOptions
from octavo.protocol.errors import ConfigError
from octavo.protocol.pooling import POOLINGS
from octavo.text.reasoning.registry import REASONING_PARSERS
from octavo.text.tools.registry import TOOL_PARSERS

_SERVER, _CHAT = "Server", "Chat"


_D = ServerOptions()

Host = Annotated[
    str, Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 opens it to the network (add --api-key).", panel=_SERVER)
]
Port = Annotated[
    int, Option("--port", "--server-port", metavar="N", help="Port to listen on; 0 lets the system choose one.", panel=_SERVER)
]
ApiKeys = Annotated[
    list[str] | None,
    Option(
        metavar="KEY",
        help=f"A key that clients must bring; may be given again. Default: ${API_KEY_VARIABLE}.",
        panel=_SERVER,
    ),
]
Names = Annotated[
    list[str] | None,
    Option(
        metavar="NAME",
        help="Name that requests use for the model; may be given again. Default: MODEL.",
        panel=_SERVER,
    ),
]
Origins = Annotated[
    list[str] | None,
    Option(
        metavar="ORIGIN",
        help='Origin that browsers may call from, or "*" for any; may be given again. Default: none.',
        panel=_SERVER,
    ),
]
RootPath = Annotated[str, Option(metavar="PATH", help="Prefix under which a proxy offers this server.", panel=_SERVER)]
MaxBody = Annotated[
    int,
    Option(
        "--max-body-size",
        parser=flags.size,
        metavar="SIZE",
        help="Longest request body. Default: 10MiB.",
        panel=_SERVER,
    ),
]
LogLevel = Annotated[
    str,
    Option("--log-level", "--uvicorn-log-level", metavar="|".join(LOG_LEVELS), help="What uvicorn logs.", panel=_SERVER),
]
AccessLog = Annotated[bool, Option("--access-log/--no-access-log", help="Log each request.", panel=_SERVER)]
ShutdownTimeout = Annotated[
    float, Option(metavar="SECONDS", help="How long running requests get to finish after a signal to stop.", panel=_SERVER)
]
RequestTimeout = Annotated[
    float | None, Option(metavar="SECONDS", help="How long a request may take. Default: as long as it needs.", panel=_SERVER)
]
MaxQueued = Annotated[
    int | None,
    Option(
        "--max-queued-requests",
        "--max-num-queued-reqs",
        metavar="N",
        help="Most requests that wait for a seat; more are refused (503). Default: any number.",
        panel=_SERVER,
    ),
]
ChatTemplate = Annotated[
    str | None,
    Option(metavar="FILE|TEXT", help="A Jinja chat template instead of the model's own.", panel=_CHAT),
]
ResponseRole = Annotated[str, Option(metavar="ROLE", help="Role of the answers.", panel=_CHAT)]
TrustTemplates = Annotated[
    bool,
    Option(
        "--trust-request-chat-template/--no-trust-request-chat-template",
        help="Write conversations out by the template that a request brings.",
        panel=_CHAT,
    ),
]
AutoToolChoice = Annotated[
    bool,
    Option(
        "--enable-auto-tool-choice/--no-enable-auto-tool-choice",
        help="Let the model choose whether to call a tool, where its format of calls is known.",
        panel=_CHAT,
    ),
]
ToolCallParser = Annotated[
    str | None,
    Option(
        metavar="|".join(TOOL_PARSERS),
        help="Format that the model writes tool calls in. Default: the one that its chat template shows.",
        panel=_CHAT,
    ),
]
ToolParserPlugin = Annotated[
    str | None,
    Option(metavar="FILE", help="A Python file, which is run, with further parsers for --tool-call-parser.", panel=_CHAT),
]
ReasoningParser = Annotated[
    str,
    Option(
        metavar="|".join(REASONING_PARSERS),
        help="Tell what the model thinks from what it answers. Default: it is all answer.",
        panel=_CHAT,
    ),
]
Pooling = Annotated[
    str,
    Option(
        metavar="|".join(POOLINGS), help="What /v1/embeddings makes a vector of: the last token's hidden state, or the mean.", panel=_SERVER
    ),
]


@command
def serve(
    ctx: click.Context,
    model: flags.ModelArgument = None,
    model_option: flags.ModelOption = None,
    served_model_name: Names = None,
    revision: flags.Revision = None,
    download_dir: flags.DownloadDir = None,
    max_model_len: flags.MaxModelLen = flags.MODEL.max_model_len,
    generation_config: flags.GenerationConfig = flags.MODEL.generation_config,
    dtype: flags.Dtype = flags.MODEL.dtype,
    max_logprobs: flags.MaxLogprobs = flags.MODEL.max_logprobs,
    chat_template: ChatTemplate = _D.chat_template,
    response_role: ResponseRole = _D.response_role,
    trust_request_chat_template: TrustTemplates = _D.trust_request_chat_template,
    enable_auto_tool_choice: AutoToolChoice = _D.enable_auto_tool_choice,
    tool_call_parser: ToolCallParser = _D.tool_call_parser,
    tool_parser_plugin: ToolParserPlugin = _D.tool_parser_plugin,
    reasoning_parser: ReasoningParser = _D.reasoning_parser,
    host: Host = _D.host,
    port: Port = _D.port,
    api_key: ApiKeys = None,
    allowed_origins: Origins = None,
    root_path: RootPath = _D.root_path,
    max_body_bytes: MaxBody = _D.max_body_bytes,
    uvicorn_log_level: LogLevel = _D.uvicorn_log_level,
    access_log: AccessLog = _D.access_log,
    shutdown_timeout: ShutdownTimeout = _D.shutdown_timeout,
    pooling: Pooling = _D.pooling,
    request_timeout: RequestTimeout = _D.request_timeout,
    max_queued_requests: MaxQueued = _D.max_queued_requests,
    block_size: flags.BlockSize = flags.CACHE.block_size,
    gpu_memory_utilization: flags.GpuMemoryUtilization = flags.CACHE.gpu_memory_utilization,
    kv_cache_memory: flags.KvCacheMemory = flags.CACHE.kv_cache_memory,
    num_blocks_override: flags.NumBlocksOverride = flags.CACHE.num_blocks_override,
    kv_cache_dtype: flags.KvCacheDtype = flags.CACHE.kv_cache_dtype,
    enable_prefix_caching: flags.EnablePrefixCaching = flags.CACHE.enable_prefix_caching,
    prefix_cache_dir: flags.PrefixCacheDir = flags.CACHE.prefix_cache_dir,
    swap_space: flags.SwapSpace = flags.CACHE.swap_space,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = flags.SCHEDULER.max_num_batched_tokens,
    max_num_seqs: flags.MaxNumSeqs = flags.SCHEDULER.max_num_seqs,
    scheduling_policy: flags.SchedulingPolicy = flags.SCHEDULER.scheduling_policy,
    preemption_mode: flags.PreemptionMode = flags.SCHEDULER.preemption_mode,
    backend: flags.Backend = flags.BACKEND.backend,
    threads: flags.Threads = flags.BACKEND.threads,
    pin_threads: flags.PinThreads = flags.BACKEND.pin_threads,
    max_grammar_size: flags.MaxGrammarSize = flags.STRUCTURED.max_grammar_size,
    max_compiled_grammars: flags.MaxCompiledGrammars = flags.STRUCTURED.max_compiled_grammars,
    seed: flags.EngineSeed = flags.ENGINE.seed,
) -> None:
    """Serve a model over HTTP with the OpenAI API.

    Flags are named as in `vllm serve`; one of vLLM's that this version does not offer is refused by name.
    """
    config = flags.engine_config(flags.one_model(model, model_option) or flags.MODEL.model, ctx.params, seed=seed)
    options = server_options(ctx.params).with_environment(os.environ)
    from octavo.server.run import serve as run_server

    raise click.exceptions.Exit(run_server(config, options))


def server_options(values: dict[str, Any]) -> ServerOptions:
    """ServerOptions from the command's parameters by name. Raises ConfigError."""
    given = {f.name: values[f.name] for f in fields(ServerOptions)}
    for name in ("api_key", "served_model_name"):
        given[name] = tuple(given[name] or ())
    given["allowed_origins"] = tuple(origin for text in given["allowed_origins"] or () for origin in _origins(text))
    return ServerOptions(**given)


def _origins(text: str) -> list[str]:
    """One origin, or vLLM's spelling of several: a JSON list of strings."""
    if not text.startswith("["):
        return [text]
    try:
        origins = json.loads(text)
    except ValueError:
        origins = None
    if not isinstance(origins, list) or not all(isinstance(origin, str) for origin in origins):
        raise ConfigError(f"allowed_origins: must be an origin or a JSON list of them, not {text!r}", param="allowed_origins")
    return origins
