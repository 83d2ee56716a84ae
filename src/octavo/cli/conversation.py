"""The loop of `octavo chat`: read a message or a /command, stream the answer, keep the history."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from octavo.cli.screen import Screen, note
from octavo.cli.talk import Message, Talker
from octavo.protocol.errors import EngineDeadError, OctavoError

HELP = """\
/reset         forget the conversation
/system TEXT   set the system prompt (no TEXT: remove it), keeping the conversation
/help          show this
/quit          leave; so does Ctrl-D
Ctrl-C         stop the answer
A message that starts with a space is sent as it is, even if a / follows."""


class Conversation:
    """Talks with `talker` until the end of input. `sampling` goes with every request."""

    def __init__(self, talker: Talker, sampling: dict[str, Any], system: str | None = None) -> None:
        self.talker = talker
        self.sampling = sampling
        self.system = system
        self.history: list[Message] = []
        self._terminal = sys.stdin.isatty()

    def run(self) -> None:
        """Reads stdin to its end or /quit. On a terminal it prompts, edits lines, and an error ends only that answer.

        Raises OctavoError when the engine has died, and, where no person can react, for every error.
        """
        if self._terminal:
            with suppress(ImportError):
                import readline  # noqa: F401  (gives input() its line editing)
            note(f"{self.talker.model}: /help lists commands, Ctrl-D leaves")
        while (line := self._read()) is not None:
            if line.startswith("/"):
                if not self._command(line.rstrip()):
                    return
            elif line.strip():
                try:
                    self.say(line.strip())
                except OctavoError as error:
                    if not self._terminal or isinstance(error, EngineDeadError):
                        raise
                    note(f"error: {error.message}")

    def say(self, message: str) -> None:
        """Sends one message and streams the answer; both join the history, unless the request fails or is stopped before any text.

        On a terminal KeyboardInterrupt ends only the answer. Raises OctavoError.
        """
        ask: Message = {"role": "user", "content": message}
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        screen = Screen()
        reason: str | None = None
        try:
            reason = self.talker.chat([*system, *self.history, ask], self.sampling, screen.write).finish_reason
        except KeyboardInterrupt:
            screen.end_line()
            if not self._terminal:
                raise
            note("(stopped)")
            if not screen.text:
                return
        except OctavoError:
            screen.end_line()
            raise
        else:
            screen.end_line()
        if reason == "length":
            note("(cut off: the limit of tokens was reached)")
        self.history += [ask, {"role": "assistant", "content": screen.text}]

    def _read(self) -> str | None:
        """The next line without its newline, None at the end of input."""
        while True:
            try:
                if self._terminal:
                    return input("> ")
                line = sys.stdin.readline()
                return line.rstrip("\n") if line else None
            except EOFError:
                print(file=sys.stderr)
                return None
            except KeyboardInterrupt:
                if not self._terminal:
                    raise
                note("\n(Ctrl-D or /quit leaves)")

    def _command(self, line: str) -> bool:
        """Carries out a /command; False to leave."""
        name, _, text = line.partition(" ")
        match name:
            case "/quit" | "/exit":
                return False
            case "/help":
                note(HELP)
            case "/reset":
                self.history.clear()
                note("(forgotten)")
            case "/system":
                self.system = text.strip() or None
                note("(system prompt set)" if self.system else "(no system prompt)")
            case _:
                note(f"no command {name}; /help lists them")
        return True
