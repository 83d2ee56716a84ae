"""The keywords that an engine is made with, under vLLM's names, to an EngineConfig."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from octavo.config.engine import BackendConfig, CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, StructuredOutputsConfig
from octavo.config.without_effect import REASONS, WITHOUT_EFFECT
from octavo.protocol.errors import ConfigError
from octavo.utils.nearest import did_you_mean

PARTS: dict[str, Any] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "backend": BackendConfig,
    "structured_outputs": StructuredOutputsConfig,
}

# Fields of the configuration whose keyword has another name.
OWN_NAMES = {"num_blocks_override": "num_gpu_blocks_override", "kv_cache_memory": "kv_cache_memory_bytes"}

# Keyword → the part of EngineConfig and the field in it.
FIELDS = {OWN_NAMES.get(each.name, each.name): (part, each.name) for part, kind in PARTS.items() for each in fields(kind)}

# None is the default of these.
_DEFAULTED = (
    "max_logprobs",
    "block_size",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_grammar_size",
    "max_compiled_grammars",
)


def engine_config(who: str, model: Any, keywords: Mapping[str, Any], *, seed: Any = None) -> EngineConfig:
    """EngineConfig from vLLM's keywords. `who` takes the keywords, for errors.

    Raises ConfigError for a value that can't hold, or that asks for what this version has not, TypeError for a keyword that nobody knows.
    """
    parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    others: dict[str, Any] = {}
    for name, value in keywords.items():
        if name not in FIELDS:
            others[name] = value
        elif value is not None or name not in _DEFAULTED:
            part, field = FIELDS[name]
            parts[part][field] = value
    refuse_others(who, model, others)
    with own_names():
        parts["model"]["model"] = model
        return EngineConfig(**{part: kind(**parts[part]) for part, kind in PARTS.items()}, seed=seed)


def refuse_others(who: str, model: Any, others: Mapping[str, Any]) -> None:
    """Raises ConfigError for an argument of vLLM's that would have to do something, TypeError for one that nobody knows."""
    for name, value in others.items():
        if name == "tokenizer":
            allowed: tuple[Any, ...] = (None, str(model))
        elif name in WITHOUT_EFFECT:
            allowed = WITHOUT_EFFECT[name]
        else:
            raise unknown_argument(who, name)
        if not any(_alike(value, each) for each in allowed):
            hint = f": {REASONS[name]}" if name in REASONS else ""
            shown = "a token" if name == "hf_token" else repr(value)
            raise ConfigError(f"{name}: {shown} is not supported by this version of Octavo{hint}", param=name)


def unknown_argument(who: str, name: str, short: Iterable[str] = ()) -> TypeError:
    """The error of an argument that nobody knows, with the nearest of those that `who` has, of which `short` are its own."""
    return TypeError(f"{who}() has no argument {name!r}{did_you_mean(name, [*short, *FIELDS, *WITHOUT_EFFECT])}")


def _alike(value: object, allowed: object) -> bool:
    """Whether they are equal; 1 is 1.0, but not True."""
    plain = value is None or isinstance(value, bool | int | float | str)
    return plain and value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


@contextmanager
def own_names() -> Iterator[None]:
    """Names a keyword at fault as vLLM has it, where the configuration calls it otherwise."""
    try:
        yield
    except ConfigError as error:
        name = OWN_NAMES.get(error.param or "")
        if name is None:
            raise
        raise ConfigError(error.message.replace(f"{error.param}:", f"{name}:", 1), param=name) from error
