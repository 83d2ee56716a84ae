"""Programs that tests run against a server, each kind installed once into a folder of the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

INSTALL_SECONDS = 240


def missing(reason: str) -> NoReturn:
    """Skips the test at home; where OCTAVO_REQUIRE_PROGRAMS is set, as in CI, a program that isn't there fails it."""
    if os.environ.get("OCTAVO_REQUIRE_PROGRAMS"):
        pytest.fail(f"OCTAVO_REQUIRE_PROGRAMS is set, and {reason}", pytrace=False)
    pytest.skip(reason)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo-tests"


def _install(folder: Path, commands: Sequence[Sequence[str]]) -> None:
    """Runs the commands in the folder unless that was done; the packages are missing where a registry can't give them."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "complete").exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for command in commands:
            try:
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
            except subprocess.TimeoutExpired:
                missing(f"{command[0]} could not install within {INSTALL_SECONDS} s: {' '.join(command)}")
            if done.returncode:
                missing(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-300:]}")
        (folder / "complete").touch()


def _named(kind: str, *contents: str) -> Path:
    return _cache() / f"{kind}-{hashlib.sha256(repr((sys.version_info[:2], contents)).encode()).hexdigest()[:16]}"


def python_programs(*packages: str) -> Path:
    """The folder of the commands of `packages`, each with its version, and of a Python that can import them."""
    folder = _named("python", *packages)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages]
    _install(folder, [[sys.executable, "-m", "venv", str(folder)], install])
    return folder / "bin"


def node_packages(*packages: str) -> Path:
    """A folder whose programs can import `packages`, each with its version."""
    if shutil.which("npm") is None:
        missing("there is no npm on this machine")
    folder = _named("node", *packages)
    _install(folder, [["npm", "install", "--no-audit", "--no-fund", "--silent", *packages]])
    return folder
