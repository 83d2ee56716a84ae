"""Whoever answers: a model in this process, or a server somewhere. Both stream text to a callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Message = dict[str, str]
OnText = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Reply:
    """How an answer ended: `finish_reason` is "stop", "length", or what else the server says."""

    finish_reason: str | None


class Talker(Protocol):
    """Answers one request at a time. A KeyboardInterrupt while it answers aborts that request and leaves it ready for the next."""

    model: str

    def chat(self, messages: list[Message], sampling: dict[str, Any], on_text: OnText) -> Reply:
        """Answers a conversation; `sampling` holds SamplingParams fields. Raises OctavoError."""

    def complete(self, prompt: str, sampling: dict[str, Any], on_text: OnText) -> Reply:
        """Continues a text. Raises OctavoError."""

    def close(self) -> None:
        """Frees what it holds."""
