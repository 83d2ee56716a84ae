"""The commands of `octavo`. What a command needs is imported when it runs, so that --help and --version answer at once."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from octavo._version import __version__
from octavo.cli.bench import bench
from octavo.cli.chat import chat, complete
from octavo.cli.info import env, version
from octavo.cli.pull import pull
from octavo.cli.refused import UsageError, without_refused
from octavo.cli.run import USAGE
from octavo.cli.serve import serve

app = typer.Typer(
    name="octavo",
    help="Serve large language models on any machine: paged KV cache, continuous batching, OpenAI API.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
for _command in (serve, pull, chat, complete, env, version):
    app.command()(_command)
app.add_typer(bench)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"octavo {__version__}\n")
        raise typer.Exit


@app.callback()
def _octavo(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def run(args: list[str]) -> None:
    """Runs the command line `args` and exits with its code."""
    try:
        if args[:1] == ["serve"]:
            args = ["serve", *without_refused(args[1:])]
    except UsageError as error:
        print(f"octavo serve: {error}", file=sys.stderr)
        sys.exit(USAGE)
    app(args=args, prog_name="octavo")
