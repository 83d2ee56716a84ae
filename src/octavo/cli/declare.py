"""Commands from signatures: a parameter that is annotated with an Option or an Argument becomes one of click's.

`Port = Annotated[int, Option(metavar="N", help="…")]` and `def serve(port: Port = 8000)` make `--port N`. The function's docstring is the
command's help, and its parameters' types and defaults are those of the flags.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

import click

OPTIONS = "Options"
TYPED = "octavo.typed"


def as_typed(flag: str) -> str:
    """The flag as errors of the running command name it: with the spelling that was typed, where that is another one."""
    context = click.get_current_context(silent=True)
    for option in context.command.params if context else ():
        for name in option.opts if flag in option.opts else ():
            if name != flag and name in context.meta[TYPED]:  # type: ignore[union-attr]
                return f"{name} ({flag})"
    return flag


@dataclass(frozen=True, slots=True)
class Argument:
    """What stands by its place."""

    metavar: str
    help: str


class Option:
    """A flag. `names` are its spellings, by default the parameter's name; `--on/--off` makes a pair. `panel` is the heading that it stands
    under, `least` the lowest number it takes, and `parser` turns its text into a value.

    A help text that ends with "Default: …" says itself what holds without the flag.
    """

    def __init__(
        self,
        *names: str,
        help: str,
        metavar: str | None = None,
        panel: str = OPTIONS,
        least: float | None = None,
        parser: Callable[[Any], Any] | None = None,
    ) -> None:
        self.names, self.help, self.metavar, self.panel, self.least, self.parser = names, help, metavar, panel, least, parser


class Flag(click.Option):
    """click's option with its heading, and the parameter's own default."""

    def __init__(self, *arguments: Any, panel: str, fallback: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.panel = panel
        self.fallback = fallback


class Described(click.Command):
    """click's command that a list of commands describes with a whole sentence."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """The help's first sentence, whatever the `limit`; click would cut it to fit a line."""
        return super().get_short_help_str(len(self.help or ""))


class Group(Described, click.Group):
    """click's group, described with a whole sentence."""


class Command(Described):
    """click's command with the flags in its help under their headings. It keeps the words of the command line, for errors."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments that are left over once flags are read."""
        ctx.meta[TYPED] = frozenset(word.partition("=")[0] for word in args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the arguments and each panel of flags."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels.setdefault(getattr(parameter, "panel", OPTIONS), []).append(record)
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records)


class Positional(click.Argument):
    """click's argument with a help text."""

    panel = "Arguments"

    def __init__(self, *arguments: Any, help: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.text = help

    def make_metavar(self, ctx: click.Context) -> str:
        """Its name, in brackets where it may be left out."""
        return super().make_metavar(ctx) if self.required else f"[{super().make_metavar(ctx)}]"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Its name and its help."""
        return super().make_metavar(ctx), self.text


def command_of(function: Callable[..., None], name: str | None = None) -> Command:
    """The command that calls `function`, which gets click's context as `ctx` if it has such a parameter."""
    parameters = inspect.signature(function, eval_str=True).parameters
    takes_context = "ctx" in parameters

    def call(**values: Any) -> None:
        if takes_context:
            values["ctx"] = click.get_current_context()
        function(**values)

    made = [_parameter(parameter) for parameter in parameters.values() if parameter.name != "ctx"]
    return Command(name or function.__name__, params=made, callback=call, help=inspect.cleandoc(function.__doc__ or ""))


def _parameter(parameter: inspect.Parameter) -> click.Parameter:
    if get_origin(parameter.annotation) is not Annotated:
        raise TypeError(f"the parameter {parameter.name} of a command has neither Option nor Argument")
    kind, info = get_args(parameter.annotation)[:2]
    members = [member for member in get_args(kind) if member is not type(None)]
    if get_origin(kind) is not list and members:
        kind = members[0]
    required = parameter.default is inspect.Parameter.empty
    if isinstance(info, Argument):
        default = {} if required else {"default": parameter.default}
        return Positional([parameter.name], type=kind, required=required, metavar=info.metavar, help=info.help, **default)
    several = get_origin(kind) is list
    if several:
        kind = get_args(kind)[0]
    names = info.names or ("--" + parameter.name.replace("_", "-"),)
    shown = parameter.default not in (None, "") and " Default: " not in info.help
    return Flag(
        [parameter.name, *names],
        type=_type(kind, info),
        is_flag=kind is bool,
        multiple=several,
        default=parameter.default,
        show_default=shown,
        metavar=info.metavar,
        help=info.help,
        panel=info.panel,
        fallback=parameter.default,
    )


def _type(kind: Any, info: Option) -> Any:
    if info.parser is not None:
        return click.types.FuncParamType(info.parser)
    if info.least is None:
        return kind
    return click.IntRange(min=int(info.least)) if kind is int else click.FloatRange(min=info.least)
