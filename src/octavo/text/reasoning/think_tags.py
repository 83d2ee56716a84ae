"""Thinking between `<think>` and `</think>`."""

from __future__ import annotations

from enum import Enum, auto

from octavo.text.answer import Content, Piece, Reasoning, held_start, merged
from octavo.text.reasoning.parser import ReasoningParser

OPEN, CLOSE = "<think>", "</think>"
_SPACES = " \t\n\r"


class _At(Enum):
    START = auto()
    THINKING = auto()
    AFTER = auto()
    CONTENT = auto()


class Qwen3ReasoningParser(ReasoningParser):
    """Thinking that the prompt began, or that the answer begins with; without either all is content. White space next to the tags is
    theirs."""

    markers = (OPEN, CLOSE)
    # Whether an answer thinks from its beginning though neither it nor the prompt says so.
    always_thinks = False

    def __init__(self, prompt: str) -> None:
        opened, closed = prompt.rfind(OPEN), prompt.rstrip(_SPACES).endswith(CLOSE)
        self._open = opened >= 0 and not prompt[opened + len(OPEN) :].strip(_SPACES)
        self._closed = closed
        self._at = _At.START
        self._held = ""

    @property
    def thinks_first(self) -> bool:
        """Whether the answer begins with thinking."""
        return self._open or (self.always_thinks and not self._closed)

    def feed(self, text: str) -> list[Piece]:
        """Takes more text."""
        self._held += text
        pieces: list[Piece] = []
        while self._held and self._step(pieces):
            pass
        return merged(pieces)

    def finish(self) -> list[Piece]:
        """The rest. Thinking that never ended is reasoning all the same."""
        held, self._held = self._held, ""
        if self._at is _At.START and held.strip(_SPACES) == OPEN:
            return []
        thinking = self._at is _At.THINKING or (self._at is _At.START and self.thinks_first)
        if thinking:
            return merged([Reasoning(held.rstrip(_SPACES) if self._at is _At.THINKING else held.strip(_SPACES))])
        return merged([Content("" if self._at is _At.AFTER else held)])

    def _step(self, pieces: list[Piece]) -> bool:
        match self._at:
            case _At.START:
                return self._start()
            case _At.THINKING:
                return self._think(pieces)
            case _At.AFTER:
                self._held = self._held.lstrip(_SPACES)
                self._at = _At.CONTENT if self._held else _At.AFTER
                return bool(self._held)
            case _At.CONTENT:
                pieces.append(Content(self._held))
                self._held = ""
        return False

    def _start(self) -> bool:
        written = self._held.lstrip(_SPACES)
        if written.startswith(OPEN):
            written = written[len(OPEN) :].lstrip(_SPACES)
            if written:
                self._held, self._at = written, _At.THINKING
            return bool(written)
        if OPEN.startswith(written):
            return False
        if self.thinks_first:
            self._held, self._at = written, _At.THINKING
        else:
            self._at = _At.CONTENT
        return True

    def _think(self, pieces: list[Piece]) -> bool:
        before, found, after = self._held.partition(CLOSE)
        if found:
            pieces.append(Reasoning(before.rstrip(_SPACES)))
            self._held, self._at = after, _At.AFTER
            return True
        free = self._held[: len(self._held) - held_start(self._held, (CLOSE,))].rstrip(_SPACES)
        pieces.append(Reasoning(free))
        self._held = self._held[len(free) :]
        return False


class DeepSeekR1ReasoningParser(Qwen3ReasoningParser):
    """As for Qwen 3, but an answer thinks from its beginning unless the prompt ended the thinking: not every template writes the tag."""

    always_thinks = True
