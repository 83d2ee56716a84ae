"""The model in each form that a contender reads, all made from the default model's GGUF file."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from comparison.checkpoint import write_checkpoint
from comparison.environments import Environments
from comparison.processes import RunError, run
from octavo.loading.resolve import resolve_model

MAKING_SECONDS = 1800.0
# Groups of 64 divide every width of the model; 128, the default, does not.
_EXPORT = {"openvino-int4": ("int4", "--group-size", "64", "--ratio", "1.0"), "openvino-int8": ("int8",)}
_SECONDS = "seconds.json"


class ArtifactError(Exception):
    """A form of the model that can't be made."""


class Artifacts:
    """Forms of the model in the folder `work`, each made when first asked for."""

    def __init__(self, work: Path, environments: Environments, threads: int, log: Callable[[str], None]) -> None:
        self._work = work
        self._environments = environments
        self._threads = threads
        self._log = log

    def path(self, name: str) -> Path:
        """Where the form `name` lies. Raises ArtifactError or EnvironmentSetupError."""
        if name == "gguf-q4_1":
            return resolve_model("smollm2")
        path = self._work / (f"{name}.gguf" if name.startswith("gguf-") else name)
        if not path.exists():
            self._log(f"making {path}")
            self._work.mkdir(parents=True, exist_ok=True)
            start = time.perf_counter()
            self._make(name, path)
            self._note(name, time.perf_counter() - start)
        return path

    def seconds(self, name: str) -> float | None:
        """How long it took to make; None where nothing had to be made."""
        file = self._work / _SECONDS
        found = json.loads(file.read_text()).get(name) if file.exists() else None
        return None if found is None else float(found)

    def _note(self, name: str, seconds: float) -> None:
        file = self._work / _SECONDS
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**known, name: round(seconds, 1)}, indent=2) + "\n")

    def _make(self, name: str, target: Path) -> None:
        part = target.with_name(f"{target.name}.making")
        if part.is_dir():
            shutil.rmtree(part)
        if name == "checkpoint":
            write_checkpoint(self.path("gguf-q4_1"), part)
        elif name in _EXPORT:
            # OpenVINO's exporter: from the checkpoint, its weights compressed on the way.
            command = [str(self._environments.python("openvino-export").with_name("optimum-cli")), "export", "openvino"]
            command += ["--model", str(self.path("checkpoint")), "--task", "text-generation-with-past", "--weight-format", *_EXPORT[name]]
            self._run([*command, str(part)])
        else:
            script = Path(__file__).parents[1] / "runners" / "quantize_gguf.py"
            python = self._environments.python("llama-cpp-python")
            kind = name.removeprefix("gguf-").upper()
            self._run([str(python), str(script), str(self.path("gguf-q4_1")), str(part), kind, str(self._threads)])
        part.rename(target)

    def _run(self, command: list[str]) -> None:
        try:
            run(command, {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}, MAKING_SECONDS)
        except RunError as failure:
            raise ArtifactError(f"{Path(command[0]).name} fails: {failure}") from None


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return path.stat().st_size if path.is_file() else sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
