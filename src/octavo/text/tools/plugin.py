"""Tool call parsers from a file that the server is started with."""

from __future__ import annotations

import importlib.util
import sys
from functools import lru_cache
from pathlib import Path

from octavo.protocol.errors import ConfigError
from octavo.text.tools.guard import described, guarded, line_in
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
        for name in names:
            _check_markers(path, name)
            TOOL_PARSERS[name] = guarded(name, TOOL_PARSERS[name], path)
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
        line = line_in(str(path), error) or getattr(error, "lineno", None)
        place = f"{path}, line {line}," if line else f"{path}"
        raise ConfigError(f"{_PARAM}: {place} fails with {described(error)}", param=_PARAM) from error


def _check_markers(path: str, name: str) -> None:
    markers = TOOL_PARSERS[name].markers
    if not isinstance(markers, tuple) or not all(isinstance(marker, str) and marker for marker in markers):
        raise ConfigError(f"{_PARAM}: {path} gives {name!r} markers that are no tuple of strings", param=_PARAM)
