"""Commands from signatures."""

from __future__ import annotations

from typing import Annotated, Any

import click
import pytest
from click.testing import CliRunner

from octavo.cli.declare import Argument, Option, command_of

Name = Annotated[str, Argument(metavar="NAME", help="Who.")]
Place = Annotated[str | None, Argument(metavar="PLACE", help="Where.")]
Count = Annotated[int, Option(least=1, metavar="N", help="How often.", panel="Numbers")]
Share = Annotated[float | None, Option("--share", "-s", least=0.5, metavar="X", help="How much. Default: all.", panel="Numbers")]
Words = Annotated[list[str] | None, Option("--word", metavar="TEXT", help="May be given again.")]
Loud = Annotated[bool, Option("--loud/--quiet", help="How.")]
Tied = Annotated[bool | None, Option("--tied/--untied", help="Whether. Default: it depends.")]
Doubled = Annotated[int, Option(parser=lambda text: 2 * int(text), metavar="N", help="Twice.")]


def greet(
    ctx: click.Context,
    name: Name,
    place: Place = None,
    count: Count = 3,
    share: Share = None,
    words: Words = None,
    loud: Loud = False,
    tied: Tied = None,
    doubled: Doubled = 4,
) -> None:
    """Greets.

    More of it.
    """
    assert ctx.params["name"] == name
    seen.append((name, place, count, share, tuple(words or ()), loud, tied, doubled))


seen: list[tuple[Any, ...]] = []


@pytest.mark.parametrize(
    ("args", "values"),
    [
        (["a"], ("a", None, 3, None, (), False, None, 8)),
        (["a", "b", "--count", "7", "-s", "0.5", "--loud", "--tied"], ("a", "b", 7, 0.5, (), True, True, 8)),
        (["--word", "x", "--word", "y", "a", "--quiet", "--untied", "--doubled", "5"], ("a", None, 3, None, ("x", "y"), False, False, 10)),
    ],
)
def test_values_reach_the_function(args: list[str], values: tuple[Any, ...]) -> None:
    seen.clear()
    done = CliRunner().invoke(command_of(greet), args)
    assert done.exit_code == 0, done.output
    assert seen == [values]


@pytest.mark.parametrize(
    "args", [[], ["a", "b", "c"], ["a", "--count", "0"], ["a", "--count", "1.5"], ["a", "-s", "0.4"], ["a", "--words", "x"]]
)
def test_what_does_not_fit_is_wrong_usage(args: list[str]) -> None:
    seen.clear()
    assert CliRunner().invoke(command_of(greet), args).exit_code == 2
    assert seen == []


def test_help_stands_under_headings_and_tells_defaults() -> None:
    text = CliRunner().invoke(command_of(greet, "hello"), ["--help"], prog_name="hello").output
    assert text.startswith(
        "Usage: hello [OPTIONS] NAME [PLACE]\n\n  Greets.\n\n  More of it.\n\nArguments:\n  NAME   Who.\n  PLACE  Where.\n"
    )
    numbers, _, options = text.partition("Numbers:\n")[2].partition("Options:\n")
    assert "--count N" in numbers
    assert "[default: 3; x>=1]" in numbers
    assert "How much. Default: all." in numbers
    assert "default: None" not in text
    assert "--loud / --quiet" in options
    assert "--help" in options


def test_a_parameter_that_says_nothing_of_itself() -> None:
    def bare(port: int = 1) -> None: ...

    with pytest.raises(TypeError, match="port"):
        command_of(bare)
