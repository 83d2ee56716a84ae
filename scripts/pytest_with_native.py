"""Runs pytest with another build of octavo._native than the installed one: `pytest_with_native.py BUILD_FOLDER [pytest arguments]`.

For a build with the address sanitizer, its runtime must come first: LD_PRELOAD="$(g++ -print-file-name=libasan.so)".
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


def load(folder: Path) -> None:
    """Makes the module in that folder the one that `import octavo._native` finds."""
    (path,) = folder.glob("_native.*.so")
    spec = importlib.util.spec_from_file_location("octavo._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["octavo._native"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    load(Path(sys.argv[1]))
    sys.exit(pytest.main(sys.argv[2:]))
