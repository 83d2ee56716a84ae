"""Models from the Hugging Face hub, kept in its library's own cache. HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE hold."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.loading.gguf_checkpoint import refuse_shard
from octavo.loading.growth import folder_bytes, report_growth
from octavo.loading.progress import Progress
from octavo.loading.safetensors_checkpoint import WHOLE_FILE
from octavo.protocol.errors import ModelLoadError

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

API_TIMEOUT_SECONDS = 20
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?P<repository>{_PART}/{_PART})(?:/(?P<file>[^:]+\.gguf)|:(?P<quantization>[A-Za-z0-9_.-]+))?")
# What a folder needs beside its weights: configuration, tokenizer, chat template.
_COMPANIONS = ("*.json", "*.jinja", "tokenizer.model", "*.tiktoken", "vocab.txt", "merges.txt")


@dataclass(frozen=True, slots=True)
class HubModel:
    """`ORG/NAME` on the hub; one GGUF of it by `file` or `quantization`, or whatever it has."""

    repository: str
    file: str | None = None
    quantization: str | None = None


def parse_hub_name(name: str) -> HubModel | None:
    """Reads `ORG/NAME`, `ORG/NAME/FILE.gguf` or `ORG/NAME:QUANT`; None for anything else."""
    match = _NAME.fullmatch(name)
    if match is None or ".." in match["repository"]:
        return None
    return HubModel(match["repository"], match["file"], match["quantization"])


def pull_from_hub(
    model: HubModel, *, revision: str | None = None, download_dir: str | None = None, progress: Progress | None = None
) -> Path:
    """The snapshot's folder, or the GGUF in it. Files that the cache already holds are not fetched again, and without a connection an
    earlier snapshot is used.

    Raises ModelLoadError, one sentence, if the repository can't be reached or read, or has nothing, or several things, to load.
    """
    try:
        info = _fetch_info(model, revision)
    except _UnreachableError as error:
        return _resolve_cached(model, revision, download_dir, str(error))
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    chosen = _choose_files(model, list(sizes))
    return _path_in(_download(model, {name: sizes[name] for name in chosen}, revision, download_dir, progress), chosen)


class _UnreachableError(Exception):
    """The hub was not asked, or did not answer; the message is the end of a sentence."""


def _fetch_info(model: HubModel, revision: str | None) -> ModelInfo:
    """The list of files and their sizes."""
    from huggingface_hub import HfApi

    with _hub_errors(model, revision):
        return HfApi().model_info(model.repository, revision=revision, files_metadata=True, timeout=API_TIMEOUT_SECONDS)


def _download(model: HubModel, sizes: Mapping[str, int], revision: str | None, download_dir: str | None, progress: Progress | None) -> Path:
    """Fetches the files of `sizes` (in bytes, by name) that the cache lacks; returns the snapshot's folder."""
    from huggingface_hub import snapshot_download

    folder = _repository_folder(model, download_dir)
    snapshot = _cached_snapshot(model, revision, download_dir)
    missing = [name for name in sizes if snapshot is None or not (snapshot / name).exists()]
    total = sum(sizes[name] for name in missing)
    label = f"Downloading {model.repository} from the hub"
    patterns = [glob.escape(name) for name in sizes]
    watch = report_growth(lambda: folder_bytes(folder), total, label, progress if missing else None)
    try:
        with _hub_errors(model, revision), _own_bars_off(), watch:
            return Path(snapshot_download(model.repository, revision=revision, cache_dir=download_dir, allow_patterns=patterns))
    except _UnreachableError as error:
        raise ModelLoadError(f"{model.repository} could not be fetched whole: {error}") from error


def _resolve_cached(model: HubModel, revision: str | None, download_dir: str | None, why: str) -> Path:
    """What an earlier snapshot has of the model, if it is whole as far as the library knows; `why` says why the hub wasn't asked."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    snapshot = _cached_snapshot(model, revision, download_dir)
    paths = snapshot.rglob("*") if snapshot is not None else ()
    names = [path.relative_to(snapshot).as_posix() for path in paths if snapshot is not None and path.is_file()]
    if snapshot is None or not any(name.endswith((".gguf", ".safetensors")) for name in names):
        raise ModelLoadError(f"{model.repository} is not in the cache, and {why}")
    chosen = _choose_files(model, names)
    # What should be there, by patterns, since neither missing shards nor a missing tokenizer are among `names`.
    if chosen[0].endswith(".gguf"):
        patterns, ignored = [glob.escape(chosen[0])], []
    else:
        several = "model*.safetensors" if chosen[0].startswith("model") else "*.safetensors"
        patterns, ignored = [WHOLE_FILE if WHOLE_FILE in chosen else several, *_COMPANIONS], ["*/*"]
    try:
        snapshot_download(
            model.repository,
            revision=revision,
            cache_dir=download_dir,
            local_files_only=True,
            allow_patterns=patterns,
            ignore_patterns=ignored,
        )
    except LocalEntryNotFoundError as error:
        raise ModelLoadError(f"{model.repository} is in the cache only in part, and {why}") from error
    return _path_in(snapshot, chosen)


@contextlib.contextmanager
def _own_bars_off() -> Iterator[None]:
    """Keeps the library's bars away, since progress is shown in one way for all sources."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _repository_folder(model: HubModel, download_dir: str | None) -> Path:
    """Where the library's cache keeps the repository (https://huggingface.co/docs/huggingface_hub/guides/manage-cache)."""
    from huggingface_hub import constants

    base = Path(download_dir or constants.HF_HUB_CACHE).expanduser()
    return base / ("models--" + model.repository.replace("/", "--"))


def _cached_snapshot(model: HubModel, revision: str | None, download_dir: str | None) -> Path | None:
    """The folder of a snapshot that was fetched before, whole or not."""
    folder = _repository_folder(model, download_dir)
    name = revision or "main"
    reference = folder / "refs" / name
    commit = reference.read_text().strip() if reference.is_file() else name
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def _choose_files(model: HubModel, names: list[str]) -> list[str]:
    """Which of a repository's files to fetch: one GGUF, or the safetensors files of its top folder with their companions."""
    if model.file is None and model.quantization is None:
        top = [name for name in names if "/" not in name]
        weights = [name for name in top if name.endswith(".safetensors")]
        # Some repositories hold the same weights once more under other names.
        weights = [WHOLE_FILE] if WHOLE_FILE in weights else [name for name in weights if name.startswith("model")] or weights
        if weights:
            return weights + [name for name in top if any(fnmatch.fnmatchcase(name, pattern) for pattern in _COMPANIONS)]
    return [_choose_gguf(model, sorted(name for name in names if name.endswith(".gguf")))]


def _choose_gguf(model: HubModel, names: list[str]) -> str:
    if not names:
        raise ModelLoadError(
            f"{model.repository} on the hub has no {'GGUF' if model.file or model.quantization else 'safetensors or GGUF'} file"
        )
    matching = names
    if model.file is not None:
        matching = [name for name in names if name == model.file]
    elif model.quantization is not None:
        # Delimited, so that Q4_K does not mean Q4_K_M.
        word = re.compile(rf"(?:^|[-./_]){re.escape(model.quantization)}(?:[-./]|$)", re.IGNORECASE)
        matching = [name for name in names if word.search(name)]
    if len(matching) == 1:
        refuse_shard(matching[0])
        return matching[0]
    wanted = model.file or model.quantization
    problem = f"has no single GGUF file for {wanted}" if wanted else f"has {len(names)} GGUF files"
    raise ModelLoadError(
        f"{model.repository} on the hub {problem}; choose by {model.repository}/FILE or {model.repository}:QUANT from {', '.join(names)}"
    )


def _path_in(snapshot: Path, chosen: list[str]) -> Path:
    return snapshot / chosen[0] if chosen[0].endswith(".gguf") else snapshot


@contextlib.contextmanager
def _hub_errors(model: HubModel, revision: str | None) -> Iterator[None]:
    """Turns the library's errors into ModelLoadError, and into _UnreachableError what an earlier snapshot can make good."""
    from huggingface_hub import constants, errors

    name = f"{model.repository} on the hub"
    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelLoadError(
            f"{name} is gated; accept its terms at {constants.ENDPOINT}/{model.repository} and set HF_TOKEN (or run `hf auth login`)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelLoadError(f"the hub has no model {model.repository}, or it is private and HF_TOKEN gives no access to it") from error
    except errors.RevisionNotFoundError as error:
        raise ModelLoadError(f"{name} has no revision {revision or 'main'}") from error
    except errors.OfflineModeIsEnabled as error:
        raise _UnreachableError("HF_HUB_OFFLINE forbids to ask the hub") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise ModelLoadError(f"{name} may not be read (HTTP {status}); set HF_TOKEN to a token that may") from error
        if status >= 500:
            raise _UnreachableError(f"the hub at {constants.ENDPOINT} failed (HTTP {status})") from error
        problem = "was not found" if status == 404 else "can't be fetched"
        raise ModelLoadError(f"{name} {problem} (HTTP {status})") from error
    except ModelLoadError:
        raise
    except OSError as error:
        if error.filename is not None or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelLoadError(f"{name} can't be stored: {error.strerror}") from error
        raise _UnreachableError(f"the hub at {constants.ENDPOINT} can't be reached ({type(error).__name__})") from error
    except Exception as error:
        # The HTTP library that huggingface_hub builds on has changed twice, and with it these classes.
        raise _UnreachableError(f"the hub at {constants.ENDPOINT} can't be reached ({type(error).__name__})") from error
