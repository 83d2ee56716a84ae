"""The native module, if it was built from the C++ that lies beside it."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from octavo.protocol.errors import ConfigError

SUFFIXES = (".cpp", ".hpp", ".inl")


@cache
def load_native() -> Any:
    """octavo._native. Raises ConfigError (param "backend") where it was built from other sources than this checkout has, as after a merge:
    what Python asks of it may then mean something else to it. An installation without sources has nothing to compare."""
    module = import_module("octavo._native")
    here = Path(__file__).resolve()
    # src/octavo/backends/cpu, as only a checkout has it; elsewhere csrc/ is somebody else's.
    if here.parents[3].name == "src":
        check_sources(module, here.parents[4] / "csrc")
    return module


def check_sources(module: ModuleType, folder: Path) -> None:
    """Raises ConfigError unless `module` was built from the sources in `folder`, if there are any."""
    if (folder / "binding" / "module.cpp").is_file() and getattr(module, "sources_digest", None) != digest_of(folder):
        raise ConfigError("backend: the native module was built from other C++ than csrc/ holds; run make native", param="backend")


def digest_of(folder: Path) -> str:
    """What cmake/sources.cmake writes for the sources in `folder`: SHA-256 over their names and contents, but for the tests'."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()}
    lines = (f"{name} {hashlib.sha256(paths[name].read_bytes()).hexdigest()}\n" for name in sorted(paths) if not name.startswith("tests/"))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
