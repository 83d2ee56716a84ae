"""The command `octavo`. All imports are inside, so that Ctrl-C ends it without a traceback from its first moments on."""

import sys


def main(argv: list[str] | None = None) -> None:
    """Runs the command line `argv` (sys.argv by default) and exits with its code: 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    try:
        from octavo.cli.app import run

        run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        sys.exit(130)
