"""The folder that a prefix cache is saved in: what lies there, and how it changes without ever being half of something.

`prefix-cache.json` is the index: what the blocks were computed with, and the name, size and SHA-256 of each data file. A data file is a
safetensors file of four tensors for its n blocks: `parents` and `scopes` I32 [n], `token_ids` I32 [n, block_size], `blocks` U8 [n, bytes].
A block that is gone, and told of for what follows it, has ~scope in place of its scope, and no row of `blocks`.
A save writes new data files, then an index that names them, each to a temporary name that is synchronised and renamed; only then it removes
what the new index does not name. So a process that is killed leaves the old index with its files, or the new one with its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from octavo.engine.prefix_file import FORMAT, HashingReader, make_header, make_pieces
from octavo.kvcache.saved_block import SavedBlock
from octavo.protocol.errors import ConfigError, PrefixCacheError

PARAM = "prefix_cache_dir"
INDEX, LOCK = "prefix-cache.json", "prefix-cache.lock"
VERSION = 1
# Of one data file, unless a single block is larger.
FILE_BYTES = 256 << 20
# An index has some hundred bytes a file.
MOST_INDEX_BYTES = 64 << 20
_OURS = re.compile(r"prefix-cache-[0-9a-f]{16}-\d+\.safetensors|prefix-cache-[0-9a-f]{16}\.tmp")


class CacheIdentity(msgspec.Struct, frozen=True):
    """What must be equal for saved blocks to serve: how and with which model they were computed, and how they lie in memory."""

    arithmetic: str
    kv_cache_dtype: str
    block_size: int
    kv_layout: str
    bytes_per_block: int
    model: str
    bytes_per_window_block: int = 0

    def bytes_of(self, kind: int) -> int:
        """Bytes of a block of the layers that see everything, kind 0, or of those that see a window, kind 1."""
        return self.bytes_per_window_block if kind else self.bytes_per_block


# What to say of each field that differs: of the saved blocks, and of this engine.
_DIFFERENCES = {
    "arithmetic": ("were computed by Octavo {}", "is Octavo {}, whose last bits may differ"),
    "kv_cache_dtype": ("are {}", "has a KV cache of {}"),
    "block_size": ("have {} tokens each", "has a block size of {}"),
    "kv_layout": ("lie in memory as {}", "lays blocks out as {}"),
    "bytes_per_block": ("have {} bytes each", "has blocks of {} bytes"),
    "bytes_per_window_block": ("have {} bytes each where layers see a window", "has blocks of {} bytes there"),
    "model": ("are of the model with the digest {}", "serves the one with {}"),
}


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One data file: its name, how many blocks and bytes it has, and its SHA-256. It tells of so many more that are `gone`. Its blocks are
    of one `kind`: 1 is those of layers that see a window, where these have blocks of their own."""

    name: str
    blocks: int
    bytes: int
    sha256: str
    gone: int = 0
    kind: int = 0


class Scope(msgspec.Struct, frozen=True):
    """For whom blocks are: an adapter, and the digest of a `cache_salt`."""

    adapter: str | None = None
    salt: str | None = None


class Index(msgspec.Struct, forbid_unknown_fields=True):
    """The index. `sha256` is that of the index itself, with this field empty."""

    format: str
    version: int
    identity: CacheIdentity
    scopes: list[Scope]
    files: list[DataFile]
    sha256: str = ""

    def encode(self) -> bytes:
        """As it is written."""
        text = json.dumps(msgspec.to_builtins(self), indent=1, ensure_ascii=True)
        return text.encode() + b"\n"

    def digest(self) -> str:
        """What `sha256` should be."""
        return hashlib.sha256(msgspec.structs.replace(self, sha256="").encode()).hexdigest()


class PrefixFolder:
    """A folder that this process alone may read and write, until `close`. It is made if it is missing, for its owner alone.

    Raises ConfigError (param "prefix_cache_dir") for one that can't be used, or is used by another engine.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._descriptor = self._lock = -1
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets other engines use the folder. May be called twice."""
        for descriptor in (self._lock, self._descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._lock = -1

    def read(
        self, identity: CacheIdentity, most: int, write: Callable[[int, bytes], None], *, kind: int = 0
    ) -> tuple[list[SavedBlock], int]:
        """Hands the first `most` saved blocks of a kind to `write`, each with its number, and returns what they hold, with those that are
        gone among them, and how many blocks there were.

        Raises ConfigError, when some may have been handed over, if they don't fit `identity`, or a file can't be read or is not as it was
        written.
        """
        try:
            return self._read(identity, most, write, kind)
        except OSError as error:
            raise self._refusal(f"can't be read back: {_reason(error)}") from error

    def _read(self, identity: CacheIdentity, most: int, write: Callable[[int, bytes], None], kind: int) -> tuple[list[SavedBlock], int]:
        index = self._read_index()
        if index is None:
            return [], 0
        self._compare(index.identity, identity)
        saved: list[SavedBlock] = []
        taken: list[int] = []

        def take(number: int, content: bytes) -> None:
            if len(taken) < most:
                taken.append(number)
                write(number, content)

        files = [file for file in index.files if file.kind == kind]
        for file in files:
            if len(taken) >= most:
                break
            # A file is checked as a whole, even if not all of its blocks are taken.
            saved += self._read_file(file, index, len(saved), take)
        # What comes after the last that was taken is of no use.
        return saved[: taken[-1] + 1 if taken else 0], sum(file.blocks for file in files)

    def write(self, identity: CacheIdentity, *kinds: tuple[Sequence[SavedBlock], Callable[[int], bytes]]) -> int:
        """Saves the blocks of each kind, whose keys and values a function gives by their number, in place of all that was saved before.
        Returns the bytes written. Raises PrefixCacheError, with the folder as it was, if that fails."""
        generation = secrets.token_hex(8)
        try:
            try:
                index = self._write_files(generation, identity, kinds)
                self._publish(f"prefix-cache-{generation}.tmp", INDEX, index.encode())
            finally:
                # Whatever came of it: all that the index in force does not name.
                self._remove_unnamed()
        except (OSError, ConfigError) as error:
            before = "; what was saved before is still there" if self.is_whole() else ""
            raise PrefixCacheError(f"the prefix cache could not be saved to {self.path}: {_reason(error)}{before}") from error
        return sum(file.bytes for file in index.files)

    def is_whole(self) -> bool:
        """Whether there is an index, under the folder's own name, and every file that it names."""
        try:
            index = self._read_index()
            there = set(os.listdir(self._descriptor))
            is_this = os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
            return is_this and index is not None and {file.name for file in index.files} <= there
        except (OSError, ConfigError):
            return False

    # --- the folder

    def _open(self) -> None:
        path = self.path
        try:
            if path.is_symlink():
                raise self._refusal("is a symbolic link; give the folder itself")
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            self._lock = self._open_file(LOCK, os.O_RDWR | os.O_CREAT)
            self._take_lock()
            # A folder that can be read alone would be noticed at the end only.
            probe = f"prefix-cache-{secrets.token_hex(8)}.tmp"
            os.close(self._open_file(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            os.unlink(probe, dir_fd=self._descriptor)
            self._remove_unnamed()
        except FileExistsError:
            raise self._refusal("is not a folder") from None
        except OSError as error:
            raise self._refusal(f"can't be used: {_reason(error)}") from error

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock, 20, 0).decode(errors="replace").strip()
            raise self._refusal(f"is in use by another engine (process {owner}); each needs a folder of its own") from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _open_file(self, name: str, flags: int) -> int:
        """A regular file in the folder. Raises ConfigError for anything else of that name, OSError."""
        try:
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._refusal(f"holds a symbolic link named {name}, which is not followed") from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._refusal(f"holds something named {name} that is no file")
        return descriptor

    def _remove_unnamed(self) -> None:
        """Removes data files that the index does not name, and temporary ones: of saves that were broken off, or are out of date. Raises
        ConfigError, with nothing removed, if the index can't be read: nobody knows then what belongs to it."""
        index = self._read_index()
        named = {file.name for file in index.files} if index is not None else set()
        for name in os.listdir(self._descriptor):
            if _OURS.fullmatch(name) and name not in named:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._descriptor)

    def _refusal(self, problem: str) -> ConfigError:
        return ConfigError(f"{PARAM}: {self.path} {problem}", param=PARAM)

    # --- the index

    def _read_index(self) -> Index | None:
        """The index, if there is one."""
        try:
            descriptor = self._open_file(INDEX, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            text = file.read(MOST_INDEX_BYTES)
        try:
            header = msgspec.json.decode(text, type=dict[str, object])
            newer = header.get("format") == FORMAT and isinstance(header.get("version"), int) and header["version"]
            if isinstance(newer, int) and newer > VERSION:
                raise self._refusal(
                    f"was written by a newer version of Octavo (its format is {newer}, and this version knows {VERSION}); "
                    "give another folder, or delete this one"
                )
            index = msgspec.json.decode(text, type=Index)
        except msgspec.MsgspecError:
            raise self._broken(INDEX, "is no index of a prefix cache") from None
        if index.format != FORMAT or index.version != VERSION or not all(_OURS.fullmatch(file.name) for file in index.files):
            raise self._broken(INDEX, "is no index of a prefix cache")
        if index.digest() != index.sha256:
            raise self._broken(INDEX, "has been altered: its checksum is another")
        return index

    def _compare(self, saved: CacheIdentity, own: CacheIdentity) -> None:
        for name, (theirs, ours) in _DIFFERENCES.items():
            there, here = getattr(saved, name), getattr(own, name)
            if there != here:
                raise self._refusal(
                    f"holds blocks of another kind: they {theirs.format(there)}, and this engine {ours.format(here)}; "
                    "give another folder, or delete this one"
                )

    def _broken(self, name: str, problem: str) -> ConfigError:
        return self._refusal(f"can't be read back: {name} {problem}; delete the folder to start without")

    # --- data files

    def _read_file(self, named: DataFile, index: Index, first: int, write: Callable[[int, bytes], None]) -> Iterator[SavedBlock]:
        """The blocks of one file, the first of which has the number `first`."""
        size, width, count = index.identity.block_size, index.identity.bytes_of(named.kind), named.blocks + named.gone
        header = make_header(count, named.blocks, size, width)
        try:
            descriptor = self._open_file(named.name, os.O_RDONLY)
        except FileNotFoundError:
            raise self._broken(named.name, "is missing") from None
        with os.fdopen(descriptor, "rb") as file:
            length = os.fstat(file.fileno()).st_size
            if length != named.bytes or length != len(header) + count * (8 + 4 * size) + named.blocks * width:
                raise self._broken(named.name, f"has {length} bytes instead of {named.bytes}")
            reader = HashingReader(file)
            sound = reader.read(len(header)) == header
            parents = struct.unpack(f"<{count}i", reader.read(4 * count))
            scopes = struct.unpack(f"<{count}i", reader.read(4 * count))
            contents = reader.read(4 * size * count)
            held = [number for number in range(count) if scopes[number] >= 0]
            sound = sound and len(held) == named.blocks
            for number in held[: named.blocks]:
                write(first + number, reader.read(width))
        if not sound or reader.hexdigest() != named.sha256:
            raise self._broken(named.name, "has been altered: its checksum is another")
        for number in range(count):
            parent, gone = parents[number], scopes[number] < 0
            scope = ~scopes[number] if gone else scopes[number]
            if not (-1 <= parent < first + number and 0 <= scope < len(index.scopes)):
                raise self._broken(named.name, "names blocks that there are not")
            own = index.scopes[scope]
            yield SavedBlock(contents[4 * size * number : 4 * size * (number + 1)], parent, own.adapter, own.salt, gone)

    def _write_files(
        self, generation: str, identity: CacheIdentity, kinds: Sequence[tuple[Sequence[SavedBlock], Callable[[int], bytes]]]
    ) -> Index:
        scopes: dict[Scope, int] = {}
        files: list[DataFile] = []
        for kind, (saved, read) in enumerate(kinds):
            numbers = [scopes.setdefault(Scope(each.adapter, each.salt), len(scopes)) for each in saved]
            width = identity.bytes_of(kind)
            most = max(1, FILE_BYTES // width)
            for first in range(0, len(saved), most):
                part = range(first, min(first + most, len(saved)))
                held = [number for number in part if not saved[number].gone]
                digest, total = hashlib.sha256(), 0
                name = f"prefix-cache-{generation}-{len(files)}.safetensors"
                told = [~numbers[number] if saved[number].gone else numbers[number] for number in part]
                header = make_header(len(part), len(held), identity.block_size, width)
                with self._published(f"prefix-cache-{generation}.tmp", name) as file:
                    for piece in make_pieces(header, [saved[number] for number in part], told, map(read, held)):
                        file.write(piece)
                        digest.update(piece)
                        total += len(piece)
                files.append(DataFile(name, len(held), total, digest.hexdigest(), len(part) - len(held), kind))
        index = Index(FORMAT, VERSION, identity, list(scopes), files)
        index.sha256 = index.digest()
        return index

    def _publish(self, temporary: str, name: str, data: bytes) -> None:
        with self._published(temporary, name) as file:
            file.write(data)

    @contextlib.contextmanager
    def _published(self, temporary: str, name: str) -> Iterator[BinaryIO]:
        """A file to be written, which then has its name at once and for good, even if the power fails."""
        with os.fdopen(self._open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        os.fsync(self._descriptor)


def _reason(error: OSError | ConfigError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
