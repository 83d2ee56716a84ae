"""Which chat template a request is written out by, and what that template takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from octavo.text.chat_template import load_chat_template, variables_of


class _Templates(Protocol):
    chat_template: str | None

    @property
    def named_templates(self) -> Mapping[str, str]: ...


class ChatTemplates:
    """The templates of one server: the one it was started with, or those that the model brings."""

    def __init__(self, tokenizer: _Templates, given: str | None) -> None:
        self._given = load_chat_template(given) if given else None
        self._tokenizer = tokenizer

    def choose(self, *, tools: bool = False, requested: str | None = None) -> str:
        """The text of the template for a request, with or without tools, that brings the template `requested`; empty for a model that has
        none."""
        named = self._tokenizer.named_templates.get("tool_use") if tools else None
        return requested or self._given or named or self._tokenizer.chat_template or ""

    @staticmethod
    def reads(template: str, variable: str, *, unknown: bool = False) -> bool:
        """Whether `template` asks for `variable`; `unknown` of a model that has none."""
        return variable in variables_of(template) if template else unknown
