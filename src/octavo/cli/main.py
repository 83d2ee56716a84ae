"""The command `octavo`. All imports are inside, so that Ctrl-C ends it without a traceback from its first moments on."""

import sys


def main(argv: list[str] | None = None) -> None:
    """Runs the command line `argv` (sys.argv by default) and exits with its code: 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    try:
        open_closed_streams()
        from octavo.cli.app import run

        run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        sys.exit(130)


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
