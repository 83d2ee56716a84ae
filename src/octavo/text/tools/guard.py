"""Tool call parsers that others wrote: what goes wrong in one ends the request that met it, in a sentence."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from octavo.protocol.errors import OctavoError
from octavo.text.answer import CallArguments, CallStart, Content, Piece, Reasoning
from octavo.text.tools.parser import CallForm, ToolParser


def guarded(name: str, kind: type[ToolParser], file: str) -> type[ToolParser]:
    """A subclass of `kind`, the parser that `file` registers by `name`. Whatever its methods raise, SystemExit too, comes as an OctavoError
    that names the parser, and so does what they give that is none of an answer's pieces."""

    class Guarded(kind):  # type: ignore[valid-type, misc]
        def __init__(self, tool_names: Collection[str]) -> None:
            self._has_begun = False
            with _failures(name, file):
                super().__init__(tool_names)

        def feed(self, text: str) -> list[Piece]:
            with _failures(name, file):
                return self._checked("feed", super().feed(text))

        def finish(self) -> list[Piece]:
            with _failures(name, file):
                return self._checked("finish", super().finish())

        @staticmethod
        def form(template: str) -> CallForm:
            with _failures(name, file):
                found = kind.form(template)
                if not isinstance(found, CallForm):
                    raise TypeError(f"form gives {_kind(found)} instead of a CallForm")
                return found

        @staticmethod
        def new_call_id() -> str:
            with _failures(name, file):
                return _text("new_call_id", kind.new_call_id())

        def _checked(self, method: str, pieces: object) -> list[Piece]:
            if not isinstance(pieces, list):
                raise TypeError(f"{method} gives {_kind(pieces)} instead of a list of pieces")
            for piece in pieces:
                if not isinstance(piece, Content | Reasoning | CallStart | CallArguments):
                    raise TypeError(f"{method} gives {_kind(piece)} instead of a piece")
                _text(method, piece.name if isinstance(piece, CallStart) else piece.text)
                self._has_begun = self._has_begun or isinstance(piece, CallStart)
                if isinstance(piece, CallArguments) and not self._has_begun:
                    raise ValueError(f"{method} gives arguments before any call has begun")
            return pieces

    return Guarded


def described(error: BaseException) -> str:
    """The kind of an error that others' code raised, and its words; these may fail, too."""
    try:
        words = str(error)
    except (Exception, SystemExit):
        words = ""
    return type(error).__name__ + (f": {words}" if words else "")


def line_in(file: str, error: BaseException) -> int | None:
    """The last line of `file` that `error` came through, if any."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return lines[-1] if lines else None


@contextmanager
def _failures(name: str, file: str) -> Iterator[None]:
    try:
        yield
    except OctavoError:
        raise
    except BaseException as error:
        # Not Exception alone: sys.exit() would end the server. It handles signals by itself, so that no interrupt comes from outside.
        line = line_in(file, error)
        place = f" in line {line} of its file" if line else ""
        raise OctavoError(f"The tool call parser {name!r} fails{place} with {described(error)}.") from error


def _text(method: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{method} gives {_kind(value)} where a text belongs")
    return value


def _kind(value: object) -> str:
    return type(value).__name__
