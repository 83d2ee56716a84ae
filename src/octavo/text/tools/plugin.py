"""Tool call parsers from a file that the server is started with."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from functools import lru_cache
from pathlib import Path

from octavo.protocol.errors import ConfigError
from octavo.text.tools.registry import TOOL_PARSERS

_MODULE = "octavo_tool_parser_plugin"
_PARAM = "tool_parser_plugin"


@lru_cache(maxsize=16)
def load_tool_parsers(path: str) -> tuple[str, ...]:
    """The names that the Python file at `path`, which is run once, registers by `octavo.text.tools.registry.register_tool_parser`.

    Raises ConfigError for a file that can't be read, that fails, with its own words and line, or that registers nothing.
    """
    before = dict(TOOL_PARSERS)
    try:
        _run(Path(path))
        names = tuple(name for name in TOOL_PARSERS if name not in before)
        if not names:
            raise ConfigError(f"{_PARAM}: {path} registers no tool parser (see register_tool_parser in docs/tools.md)", param=_PARAM)
    except BaseException:
        for name in TOOL_PARSERS.keys() - before.keys():
            del TOOL_PARSERS[name]
        sys.modules.pop(_MODULE, None)
        raise
    return names


def _run(path: Path) -> None:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{_PARAM}: {path} can't be read: {error.strerror or error}", param=_PARAM) from error
    spec = importlib.util.spec_from_loader(_MODULE, loader=None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    # Dataclasses and the like look their module up.
    sys.modules[_MODULE] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Not Exception alone: sys.exit() would end the process without a word.
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        place = f"{path}, line {line}," if line else f"{path}"
        raise ConfigError(f"{_PARAM}: {place} fails with {_described(error)}", param=_PARAM) from error


def _described(error: BaseException) -> str:
    """The error's kind and words; those of a plugin's own error may fail, too."""
    try:
        words = str(error)
    except (Exception, SystemExit):
        words = ""
    return type(error).__name__ + (f": {words}" if words else "")
