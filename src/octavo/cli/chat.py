"""`octavo chat` and `octavo complete`: a model in the terminal, in this process or on a server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import click

from octavo.cli import flags
from octavo.cli.declare import Argument, Option
from octavo.cli.run import USAGE, command, fail
from octavo.cli.screen import Screen, note
from octavo.cli.talk import Talker
from octavo.config.server import API_KEY_VARIABLE

_SERVER = "Server"
Url = Annotated[
    str | None,
    Option(metavar="URL", help="Talk to this server instead of loading a model here.", panel=_SERVER),
]
ApiKey = Annotated[
    str | None,
    Option(metavar="KEY", help=f"Key for --url. Default: ${API_KEY_VARIABLE}.", panel=_SERVER),
]
ChatTemplate = Annotated[
    str | None,
    Option(metavar="FILE|TEXT", help="A Jinja chat template instead of the model's own.", panel="Model"),
]
System = Annotated[str | None, Option(metavar="TEXT", help="The system prompt.")]
Quick = Annotated[str | None, Option("--quick", "-q", metavar="TEXT", help="Send this one message, print the answer, leave.")]

# What only a model loaded here can heed, by parameter.
_LOCAL = (
    "revision",
    "download_dir",
    "max_model_len",
    "generation_config",
    "gpu_memory_utilization",
    "kv_cache_memory",
    "backend",
    "threads",
    "pin_threads",
    "chat_template",
)
_PROMPT_TOKENS = 256


@contextmanager
def _talker(ctx: click.Context, model: str | None) -> Iterator[Talker]:
    """The answering side that the flags ask for. Flags that it could not heed are refused."""
    values = ctx.params
    given = [name for name in (*_LOCAL, "api_key") if _is_given(ctx, name)]
    talker: Talker
    if values["url"]:
        if lost := [name for name in given if name != "api_key"]:
            fail(f"{flags.flag_name(lost[0])} has no meaning with --url: the server has its own settings", USAGE)
        from octavo.cli.remote import RemoteTalker

        talker = RemoteTalker(values["url"], model=model, api_key=values["api_key"] or _environment_key())
    else:
        if "api_key" in given:
            fail("--api-key has no meaning without --url", USAGE)
        config = flags.engine_config(model or flags.MODEL.model, values)
        from octavo.cli.local import LocalTalker

        talker = LocalTalker(config, chat_template=values.get("chat_template"))
    try:
        yield talker
    finally:
        talker.close()


def _environment_key() -> str | None:
    return os.environ.get(API_KEY_VARIABLE, "").split(",")[0].strip() or None


def _is_given(ctx: click.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@command
def chat(
    ctx: click.Context,
    model: flags.ModelArgument = None,
    model_option: flags.ModelOption = None,
    system: System = None,
    quick: Quick = None,
    url: Url = None,
    api_key: ApiKey = None,
    temperature: flags.Temperature = None,
    top_p: flags.TopP = None,
    top_k: flags.TopK = None,
    min_p: flags.MinP = None,
    repetition_penalty: flags.RepetitionPenalty = None,
    max_tokens: flags.MaxTokens = None,
    seed: flags.SamplingSeed = None,
    stop: flags.Stop = None,
    revision: flags.Revision = None,
    download_dir: flags.DownloadDir = None,
    max_model_len: flags.MaxModelLen = None,
    generation_config: flags.GenerationConfig = flags.MODEL.generation_config,
    chat_template: ChatTemplate = None,
    gpu_memory_utilization: flags.GpuMemoryUtilization = flags.CACHE.gpu_memory_utilization,
    kv_cache_memory: flags.KvCacheMemory = None,
    backend: flags.Backend = flags.BACKEND.backend,
    threads: flags.Threads = flags.BACKEND.threads,
    pin_threads: flags.PinThreads = flags.BACKEND.pin_threads,
) -> None:
    """Talk with a model: in this process, or on a running server with --url.

    Answers stream as they come and the conversation is kept. /help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves.
    """
    from octavo.cli.conversation import Conversation

    with _talker(ctx, flags.one_model(model, model_option)) as talker:
        conversation = Conversation(talker, flags.sampling_values(ctx.params), system)
        if quick is None:
            conversation.run()
        else:
            conversation.say(quick)


@command
def complete(
    ctx: click.Context,
    model: Annotated[str | None, Argument(metavar="MODEL", help=flags.MODEL_HELP)] = None,
    prompt: Annotated[str | None, Argument(metavar="PROMPT", help="The text to continue; without it, or as -, stdin.")] = None,
    model_option: flags.ModelOption = None,
    url: Url = None,
    api_key: ApiKey = None,
    temperature: flags.Temperature = None,
    top_p: flags.TopP = None,
    top_k: flags.TopK = None,
    min_p: flags.MinP = None,
    repetition_penalty: flags.RepetitionPenalty = None,
    max_tokens: Annotated[int, Option(metavar="N", help="Tokens generated, at most.", panel="Sampling")] = _PROMPT_TOKENS,
    seed: flags.SamplingSeed = None,
    stop: flags.Stop = None,
    revision: flags.Revision = None,
    download_dir: flags.DownloadDir = None,
    max_model_len: flags.MaxModelLen = None,
    generation_config: flags.GenerationConfig = flags.MODEL.generation_config,
    gpu_memory_utilization: flags.GpuMemoryUtilization = flags.CACHE.gpu_memory_utilization,
    kv_cache_memory: flags.KvCacheMemory = None,
    backend: flags.Backend = flags.BACKEND.backend,
    threads: flags.Threads = flags.BACKEND.threads,
    pin_threads: flags.PinThreads = flags.BACKEND.pin_threads,
) -> None:
    """Continue a text: `octavo complete "Once upon"`, `octavo complete MODEL "Once upon"`, or the text on stdin.

    The continuation alone goes to stdout, as it comes.
    """
    if prompt is None:  # a lone argument is the text
        model, prompt = None, model
    if prompt in (None, "-"):
        if prompt is None and sys.stdin.isatty():
            fail("no text to continue: give it as an argument or on stdin", USAGE)
        prompt = sys.stdin.read()
    if not prompt:
        fail("the text to continue is empty", USAGE)
    screen = Screen()
    with _talker(ctx, flags.one_model(model, model_option)) as talker:
        try:
            reply = talker.complete(prompt, flags.sampling_values(ctx.params), screen.write)
        finally:
            screen.end_line()
    if reply.finish_reason == "length" and sys.stdout.isatty():
        note("(cut off: the limit of tokens was reached)")
