"""What is installed beside what."""

from __future__ import annotations

from importlib import metadata


def refuse_beside(own: str, other: str) -> None:
    """Raises ImportError where the distribution `other` is installed too, which gives a package of the same name as `own` does."""
    try:
        version = metadata.version(other)
    except metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"{own} and {other} {version} are both installed, and both give the package {other}: uninstall one of them (pip uninstall {own})"
    )
