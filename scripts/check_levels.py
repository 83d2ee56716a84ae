"""Fails if code for newer instruction sets could end up where every machine runs it: `check_levels.py BUILD_FOLDER`.

An object compiled for a level (its name ends in _avx2, _avx512_vnni or _avx512_bf16) must define no weak symbols, such as inline functions
and templates, but those in the level's own namespace: the linker keeps one of all the copies of such a symbol, and where it keeps this one,
older machines crash. It must run nothing at load either.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LEVELS = ("avx2", "avx512_vnni", "avx512_bf16")


def shared(path: Path, level: str) -> list[str]:
    """Symbols of the object that the linker may share with objects of other levels, or that run at load."""
    lines = subprocess.run(["nm", "-C", "--defined-only", path], check=True, capture_output=True, text=True).stdout.splitlines()
    found = []
    for line in lines:
        _, kind, name = line.split(maxsplit=2)
        weak = kind in "WVwvu" and f"octavo::isa_{level}::" not in name
        if weak or name.startswith(("_GLOBAL__sub_I", "__cxx_global_var_init")):
            found.append(name)
    return found


def main() -> int:
    """Checks every object of a level; returns the exit status."""
    objects = [(path, level) for level in LEVELS for path in sorted(Path(sys.argv[1]).rglob(f"*_{level}.cpp.o"))]
    if not objects:
        print("no objects of any level", file=sys.stderr)
        return 1
    bad = {path.name: symbols for path, level in objects if (symbols := shared(path, level))}
    for name, symbols in bad.items():
        print(f"{name} defines what the linker may share with code for every machine: {', '.join(symbols)}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
