"""Flags of `vllm serve` that Octavo does not offer: each is refused by name, unless the value asks for what Octavo does anyway."""

from __future__ import annotations

from dataclasses import dataclass


class UsageError(Exception):
    """A command line that can't be meant as written. The message is one sentence that names the flag."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A flag that is not offered. `harmless` are the values that change nothing here; `switch` marks a flag that takes no value; `aliases`
    are its other spellings."""

    flag: str
    harmless: tuple[str, ...] = ()
    switch: bool = False
    hint: str = ""
    aliases: tuple[str, ...] = ()

    def message(self, typed: str) -> str:
        """The sentence that refuses it, by the name that was typed."""
        name = self.flag if typed == self.flag else f"{typed} ({self.flag})"
        return f"{name} is not supported by this version of Octavo" + (f": {self.hint}" if self.hint else "")


def _switches(*flags: str) -> list[Refused]:
    return [Refused(flag, switch=True) for flag in flags]


def _values(*flags: str) -> list[Refused]:
    return [Refused(flag) for flag in flags]


_ONE_DEVICE = "it runs on one device"
_QUANTIZATION = (
    "checkpoints that say so themselves (GGUF) are read without it, and awq, gptq or other quantized safetensors can't be read yet; "
    "serve a GGUF file of the model instead"
)

REFUSED: tuple[Refused, ...] = (
    Refused("--tensor-parallel-size", ("1",), hint=_ONE_DEVICE, aliases=("-tp", "--parallel-size")),
    Refused("--pipeline-parallel-size", ("1",), hint=_ONE_DEVICE, aliases=("-pp",)),
    Refused("--data-parallel-size", ("1",), hint=_ONE_DEVICE, aliases=("-dp",)),
    Refused("--enable-expert-parallel", switch=True),
    Refused("--distributed-executor-backend"),
    Refused("--api-server-count", ("1",)),
    Refused("--quantization", hint=_QUANTIZATION, aliases=("-q", "--quant")),
    Refused("--load-format", ("auto",), hint="the format is read from the checkpoint itself"),
    Refused("--tokenizer", hint="the tokenizer is the checkpoint's own"),
    Refused("--tokenizer-mode", ("auto",)),
    Refused("--hf-overrides"),
    Refused("--override-generation-config"),
    Refused("--logprobs-mode", ("raw_logprobs",)),
    Refused("--prefix-caching-hash-algo"),
    Refused("--cpu-offload-gb", ("0",)),
    Refused("--long-prefill-token-threshold", ("0",)),
    Refused("--async-scheduling", switch=True),
    Refused("--stream-interval", ("1",)),
    Refused("--enable-lora", switch=True),
    *_values("--lora-modules", "--max-loras", "--max-lora-rank", "--max-cpu-loras"),
    *_values("--speculative-config", "--spec-method", "--spec-model", "--structured-outputs-config"),
    *_values("--compilation-config", "--attention-backend", "--max-seq-len-to-capture"),
    *_switches("--calculate-kv-scales", "--use-v2-block-manager"),
    Refused("--num-scheduler-steps", ("1",)),
    *_values("--chat-template-content-format", "--default-chat-template-kwargs"),
    *_switches("--enable-force-include-usage"),
    *_values("--ssl-keyfile", "--ssl-certfile", "--uds", "--middleware", "--otlp-traces-endpoint"),
    *_values("--allowed-local-media-path", "--allowed-media-domains", "--limit-mm-per-prompt"),
    *_switches("--headless", "--enable-request-id-headers", "--enable-log-requests", "--disable-log-stats", "--kv-cache-metrics"),
    *_switches("--enable-server-load-tracking", "--enable-per-request-metrics", "--disable-fastapi-docs"),
    Refused("--disable-uvicorn-access-log", switch=True, hint="use --no-access-log"),
    Refused("--max-log-len"),
    Refused("--config", hint="write the flags on the command line"),
)

# Switches for what Octavo always does, so that asking for it is no news and only the opposite is refused.
ALWAYS_ON = ("--enable-chunked-prefill", "--enforce-eager", "--enable-prompt-tokens-details", "--disable-log-requests")
# A permission that Octavo needs for no model: it never runs code that a checkpoint brings.
PERMISSIONS = ("--trust-remote-code", "--no-trust-remote-code", "--trust-remote")

_SHORT = {alias: refused.flag for refused in REFUSED for alias in refused.aliases}
_BY_FLAG = {refused.flag: refused for refused in REFUSED}


def without_refused(args: list[str]) -> list[str]:
    """The arguments of `octavo serve` less the harmless ones, with --flag_name written --flag-name as vLLM allows.

    Raises UsageError for a flag that this version does not offer.
    """
    kept: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg == "--":
            return [*kept, arg, *rest]
        name, equals, value = arg.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        typed, name = name, _SHORT.get(name, name)
        if name in (*ALWAYS_ON, *PERMISSIONS) and not equals:
            continue
        off = name.startswith("--no-")
        refused = _BY_FLAG.get("--" + name.removeprefix("--no-") if off else name)
        if off and "--" + name.removeprefix("--no-") in ALWAYS_ON:
            raise UsageError(f"{name} is not supported by this version of Octavo")
        if refused is None:
            kept.append(name + equals + value)
        elif not (off and refused.switch):
            if not equals and not refused.switch and rest:
                value = rest.pop(0)
            if value.lower() not in refused.harmless:
                raise UsageError(refused.message(typed))
    return kept
