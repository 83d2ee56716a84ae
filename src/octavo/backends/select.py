"""Which backend runs: a name to an object, imported only when chosen."""

from __future__ import annotations

from importlib.util import find_spec

from octavo._version import __version__
from octavo.backends.base import Backend
from octavo.backends.cores import EngineCores
from octavo.backends.cpu.isa import chosen_isa
from octavo.config.engine import BackendConfig
from octavo.protocol.errors import ConfigError


def select_backend(config: BackendConfig, cores: EngineCores) -> Backend:
    """The backend of that name, to compute on `cores`; "auto" is the fastest one that this machine can run. Raises ConfigError."""
    if config.backend == "cpu" or (config.backend == "auto" and has_native()):
        if not has_native():
            raise ConfigError(
                "backend: this installation has no native code, since no C++ compiler was found when it was made; install one "
                "(apt install g++) and Octavo again, or use the reference backend",
                param="backend",
            )
        from octavo.backends.cpu.backend import CpuBackend

        return CpuBackend(cores.threads, cpus=cores.pin(config.pin_threads))
    if config.pin_threads:
        raise ConfigError("pin_threads: can't be with the reference backend, whose threads are numpy's to place", param="pin_threads")
    from octavo.backends.reference.backend import ReferenceBackend

    return ReferenceBackend(cores.threads)


def backend_notes(config: BackendConfig) -> list[str]:
    """What the user should know of the choice."""
    if config.backend == "auto" and not has_native():
        return [
            "backend: this installation has no native code, so the reference backend runs, slowly; install a C++ compiler "
            "(apt install g++) and Octavo again"
        ]
    return []


def arithmetic_of(backend: Backend) -> str:
    """What the last bits of a result depend on besides the model: the backend, its instruction set, and how this version computes."""
    return f"{__version__} {backend.name} {chosen_isa()}" if backend.name == "cpu" else f"{__version__} {backend.name}"


def has_native() -> bool:
    """Whether this installation brought the native module."""
    return find_spec("octavo._native") is not None
