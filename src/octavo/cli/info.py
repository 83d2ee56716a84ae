"""`octavo version` and `octavo env`: what runs here, for a bug report."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from octavo._version import __version__
from octavo.cli.run import command
from octavo.utils.machine import available_memory, total_memory, usable_cores
from octavo.utils.sizes import format_size

_PACKAGES = (
    "numpy",
    "tokenizers",
    "safetensors",
    "gguf",
    "jinja2",
    "huggingface_hub",
    "fastapi",
    "uvicorn",
    "pydantic",
    "msgspec",
    "pyzmq",
)


@command
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"{__version__}\n")


@command
def env() -> None:
    """Print what a bug report needs: versions, processor, memory. Nothing is sent anywhere."""
    rows = {
        "octavo": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{_os_name()}, {platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": f"{usable_cores()} usable of a machine with {os.cpu_count()} CPUs",
        "memory": f"{format_size(total_memory())}, {format_size(available_memory())} available",
        **{name: _installed(name) for name in _PACKAGES},
    }
    width = max(map(len, rows))
    sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in rows.items())


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown system")
    except OSError:
        return platform.system()


def _proc(path: str, key: str) -> str | None:
    """The value of `key` in a file of `key: value` lines."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), None)


def _processor() -> str:
    name = _proc("/proc/cpuinfo", "model name") or platform.processor() or "unknown"
    flags = (_proc("/proc/cpuinfo", "flags") or "").split()
    known = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile") if flag in flags]
    return f"{name} ({', '.join(known)})" if known else name
