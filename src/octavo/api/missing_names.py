"""Attributes of vLLM's classes that Octavo's have not: an AttributeError, as `hasattr` expects, that says what to do instead."""

from __future__ import annotations

from typing import NoReturn

_SCORES = "it serves decoders that generate or embed, not models that classify or score; embed gives vectors to compare"
_SLEEP = "weights can't be set aside; end the engine, and make it again when it is needed"
_WORKERS = "its worker is no process that programs may call into"


class Missing:
    """Stands for an attribute that there is not."""

    def __init__(self, reason: str) -> None:
        self._reason, self._name = reason, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__}.{self._name} is not supported by this version of Octavo: {self._reason}", name=self._name)


class MissingFromEngines:
    """Of every kind of engine."""

    sleep = Missing(_SLEEP)
    wake_up = Missing(_SLEEP)
    collective_rpc = Missing(_WORKERS)


class MissingFromLLM(MissingFromEngines):
    """Of LLM."""

    score = Missing(_SCORES)
    classify = Missing(_SCORES)
    reward = Missing(_SCORES)
    apply_model = Missing(_WORKERS)
    llm_engine = Missing("LLM has get_tokenizer, get_metrics and reset_prefix_cache itself, and LLMEngine makes single steps")


class MissingFromLLMEngine(MissingFromEngines):
    """Of LLMEngine."""

    from_vllm_config = Missing("LLMEngine.from_engine_args takes EngineArgs")


class MissingFromEngineArgs:
    """Of EngineArgs."""

    add_cli_args = Missing("octavo serve has the flags; a program's own parser gives EngineArgs its values by keyword")
    from_cli_args = Missing("give EngineArgs the values by keyword, as in EngineArgs(**vars(arguments))")
