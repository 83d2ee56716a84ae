"""How every command ends: errors are one sentence on stderr, and each cause has its exit code."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec

import click

from octavo.cli.declare import as_typed
from octavo.cli.flags import ENGINE_FIELDS, flag_name
from octavo.protocol.errors import ConfigError, OctavoError

FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141

# A message that begins with one of these goes on from the flag's name.
_VERBS = ("must ", "is ", "holds ", "can't ")

# A name of several words that is no part of a path, nor quoted.
_FIELD = re.compile(r"(?<![\w./'\"-])[a-z]+(?:_[a-z]+)+(?![\w/'\"-]|\.\w)")

P = ParamSpec("P")


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Says why on stderr and ends the command with `code`."""
    print(f"octavo: {message}", file=sys.stderr)
    raise click.exceptions.Exit(code)


def sentence(error: OctavoError) -> str:
    """The error's message, with configuration fields named as the flags that set them."""
    prefix = f"{error.param}: "
    if not isinstance(error, ConfigError):
        return error.message
    # A name in capitals is an environment variable's.
    if not error.param or error.param.isupper() or not error.message.startswith(prefix):
        return _with_flags(error.message)
    rest = error.message.removeprefix(prefix)
    colon = "" if rest.startswith(_VERBS) else ":"
    return f"{as_typed(flag_name(error.param))}{colon} {_with_flags(rest)}"


def _with_flags(text: str) -> str:
    return _FIELD.sub(lambda word: flag_name(word[0]) if word[0] in ENGINE_FIELDS else word[0], text)


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Makes a command end cleanly: 1 for an error that Octavo raises on purpose, 130 for Ctrl-C, 141 for a reader that went away."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except OctavoError as error:
            fail(sentence(error))
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # Python flushes stdout once more at exit, which must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(PIPE_CLOSED) from None

    return wrapped
