"""Packages whose names are loaded when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], *own: str, refused: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for the module `package`: each name comes from the module, or as `MODULE:NAME` the object, that `homes`
    has for it. `own` are names that the package has itself. Those that are `refused` are an ImportError, with what it says to do instead:
    of an AttributeError, `from … import …` would not show the text."""

    def get(name: str) -> Any:
        if refused is not None and name in refused:
            raise ImportError(f"Octavo has no {package}.{name}: {refused[name]}", name=package)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, original = homes[name].partition(":")
        return getattr(import_module(module), original or name)

    return get, lambda: sorted({*homes, *own})
