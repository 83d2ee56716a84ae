"""Files as read-only arrays of bytes."""

from __future__ import annotations

import mmap
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octavo.protocol.errors import ModelLoadError


def map_file(path: Path) -> npt.NDArray[np.uint8]:
    """The file's bytes, memory-mapped and read-only: `[size]` of uint8. It stays mapped while any view of the array lives.

    Raises ModelLoadError that names the file if it can't be read, or is empty.
    """
    try:
        refuse_pipe(path)
        with path.open("rb") as file:
            if not file.seek(0, 2):
                raise ModelLoadError(f"{path} is empty")
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise ModelLoadError(f"{path} can't be read: {error.strerror or error}") from error


def refuse_pipe(path: Path) -> None:
    """Raises ModelLoadError for a pipe, whose opening would wait for a writer, maybe for ever, and a device, which may have no end; OSError
    where nothing is."""
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        raise ModelLoadError(f"{path} can't be read: Is a {'pipe' if stat.S_ISFIFO(mode) else 'device'}")
