"""Writing a model's text to stdout as it comes."""

from __future__ import annotations

import re
import sys

# A model's text must not move the cursor, set the title or paste: control characters other than tab and newline go.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Screen:
    """Streams to stdout and remembers what it wrote. To a terminal control characters are dropped; to a file or pipe text goes as it is."""

    def __init__(self) -> None:
        self.text = ""
        self._terminal = sys.stdout.isatty()

    def write(self, text: str) -> None:
        """Shows `text` at once."""
        self.text += text
        sys.stdout.write(_CONTROL.sub("", text) if self._terminal else text)
        sys.stdout.flush()

    def end_line(self) -> None:
        """Goes to a new line unless at the start of one."""
        if self.text and not self.text.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()


def note(text: str) -> None:
    """Says something that is not the model's, on stderr; dim on a terminal."""
    print(f"\x1b[2m{text}\x1b[0m" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)
