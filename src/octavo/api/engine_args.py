"""vLLM's way to describe an engine before it is made."""

from __future__ import annotations

import os
from typing import Any

from octavo.api.arguments import engine_config
from octavo.api.missing_names import MissingFromEngineArgs
from octavo.config.engine import EngineConfig


class EngineArgs(MissingFromEngineArgs):
    """The keywords that `LLM` takes for its engine, checked at once; `keywords` are those that were given.

    Raises ConfigError for a value that can't hold or that this version has no code for, TypeError for a keyword that nobody knows.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "smollm2",
        *,
        seed: int | None = 0,
        chat_template: str | None = None,
        quiet: bool = False,
        **keywords: Any,
    ) -> None:
        self.model, self.seed, self.chat_template, self.quiet, self.keywords = model, seed, chat_template, quiet, keywords
        self._config = engine_config(type(self).__name__, model, keywords, seed=seed)

    def create_engine_config(self) -> EngineConfig:
        """What the engine is started with."""
        return self._config


class AsyncEngineArgs(EngineArgs):
    """The same, for AsyncLLMEngine."""
