"""Flags of `vllm serve` that Octavo does not offer: each is refused by name, unless the value asks for what Octavo does anyway."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config.without_effect import REASONS, WITHOUT_EFFECT


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


# Switches for what Octavo always does, so that asking for it is no news and only the opposite is refused.
ALWAYS_ON = ("--enable-chunked-prefill", "--enforce-eager", "--enable-prompt-tokens-details", "--disable-log-requests")
# Permissions that Octavo needs for no model: it never runs code that a checkpoint brings, and has no all-reduce that could be disabled.
PERMISSIONS = (
    "--trust-remote-code",
    "--no-trust-remote-code",
    "--trust-remote",
    "--disable-custom-all-reduce",
    "--no-disable-custom-all-reduce",
)

_ALIASES = {
    "tensor_parallel_size": ("-tp", "--parallel-size"),
    "pipeline_parallel_size": ("-pp",),
    "data_parallel_size": ("-dp",),
    "quantization": ("-q", "--quant"),
}
# What the command has as a flag of its own.
_OFFERED = ("served_model_name",)


def _of_the_engine() -> list[Refused]:
    """The engine's arguments, which LLM() answers alike."""
    found = []
    for name, values in WITHOUT_EFFECT.items():
        flag = "--" + name.replace("_", "-")
        if name in _OFFERED or flag in (*ALWAYS_ON, *PERMISSIONS):
            continue
        switch = any(isinstance(value, bool) for value in values)
        harmless = () if switch else tuple(str(value).lower() for value in values)
        found.append(Refused(flag, harmless, switch, REASONS.get(name, ""), _ALIASES.get(name, ())))
    return found


REFUSED: tuple[Refused, ...] = (
    *_of_the_engine(),
    Refused("--api-server-count", ("1",)),
    Refused("--tokenizer", hint=REASONS["tokenizer"]),
    Refused("--lora-modules", hint=REASONS["enable_lora"]),
    *_values("--chat-template-content-format", "--default-chat-template-kwargs"),
    *_switches("--enable-force-include-usage"),
    *_values("--ssl-keyfile", "--ssl-certfile", "--uds", "--middleware", "--otlp-traces-endpoint"),
    *_switches("--headless", "--enable-request-id-headers"),
    *_switches("--enable-server-load-tracking", "--enable-per-request-metrics", "--disable-fastapi-docs"),
    Refused("--disable-uvicorn-access-log", switch=True, hint="use --no-access-log"),
    Refused("--max-log-len"),
    Refused("--config", hint="write the flags on the command line"),
)

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
