"""The command `octavo`. All imports are inside, so that Ctrl-C ends it without a traceback from its first moments on."""

import contextlib
import sys
from collections.abc import Iterator


def main(argv: list[str] | None = None) -> None:
    """Runs the command line `argv` (sys.argv by default) and exits with its code: 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    try:
        open_closed_streams()
        with interrupts_that_end_at_once():
            from octavo.cli.app import run

        run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        sys.exit(130)


@contextlib.contextmanager
def interrupts_that_end_at_once() -> Iterator[None]:
    """Ctrl-C exits with 130 then and there, for while modules are imported: an exception that is raised in the import system's own
    callbacks is printed and forgotten, and there is nothing yet that must be closed. Where interrupts are ignored they stay so."""
    import os
    import signal

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    except ValueError:  # in another thread than the main one, which no signal interrupts
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def open_closed_streams() -> None:
    """Makes standard streams that whoever started this process had closed lead nowhere.

    Python leaves such a stream None, which libraries trip over, and the next file or socket to be opened would take its descriptor.
    """
    import os

    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        # For child processes too.
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - theirs is the process's life
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - theirs is the process's life
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - theirs is the process's life
