"""The commands of `octavo`. What a command needs is imported when it runs, so that --help and --version answer at once."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import click

from octavo._version import __version__
from octavo.cli.bench import bench
from octavo.cli.chat import chat, complete
from octavo.cli.declare import command_of
from octavo.cli.info import env, version
from octavo.cli.pull import pull
from octavo.cli.refused import UsageError, without_refused
from octavo.cli.run import INTERRUPTED, USAGE
from octavo.cli.serve import serve


def _print_version(ctx: click.Context, parameter: click.Parameter, wanted: Any) -> None:
    if wanted:
        sys.stdout.write(f"{_version_line(Path(sys.argv[0]).stem)}\n")
        ctx.exit()


def _version_line(program: str) -> str:
    """What `program --version` prints. Scripts read a version of vLLM's out of what `vllm` does."""
    if program != "vllm" or importlib.util.find_spec("vllm") is None:
        return f"octavo {__version__}"
    import vllm

    return str(vllm.__version__)


app = click.Group(
    "octavo",
    help="Serve large language models on any machine: paged KV cache, continuous batching, OpenAI API.",
    params=[
        click.Option(
            ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version and leave."
        )
    ],
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120},
)
for _command in (serve, pull, chat, complete, env, version):
    app.add_command(command_of(_command))
app.add_command(bench)


def run(args: list[str]) -> None:
    """Runs the command line `args` and exits with its code. Wrong usage is one sentence on stderr, as any other error is."""
    try:
        if args[:1] == ["serve"]:
            args = ["serve", *without_refused(args[1:])]
        code = app.main(args, prog_name="octavo", standalone_mode=False)
    except UsageError as error:
        print(f"octavo serve: {error}", file=sys.stderr)
        code = USAGE
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = USAGE
    except click.ClickException as error:
        where = getattr(error, "ctx", None)
        print(f"{where.command_path if where else 'octavo'}: {' '.join(error.format_message().split())}", file=sys.stderr)
        code = error.exit_code
    except click.Abort:
        code = INTERRUPTED
    sys.exit(code or 0)
