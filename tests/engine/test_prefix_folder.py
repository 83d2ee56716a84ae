"""The folder of a saved prefix cache: what is written is read, and what is anything else is refused by name."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.numpy import load_file

from octavo.engine import prefix_folder
from octavo.engine.prefix_folder import INDEX, CacheIdentity, PrefixFolder
from octavo.kvcache.saved_block import SavedBlock
from octavo.protocol.errors import ConfigError, PrefixCacheError

WIDTH = 40
IDENTITY = CacheIdentity("0.1.0 cpu avx2", "bfloat16", 2, "layers", WIDTH, "m" * 32)
SAVED = [
    SavedBlock(struct.pack("<2i", number, 2**31 - 1), number - 2 if number > 1 else -1, "x" if number > 3 else None, None)
    for number in range(5)
]


def content(number: int, turn: int = 0) -> bytes:
    return bytes([number, turn]) * (WIDTH // 2)


@dataclass
class Read:
    """What a folder gives."""

    saved: list[SavedBlock] = field(default_factory=list)
    total: int = 0
    contents: dict[int, bytes] = field(default_factory=dict)


def read(folder: PrefixFolder, most: int = 100, **changes: Any) -> Read:
    found = Read()
    found.saved, found.total = folder.read(msgspec.structs.replace(IDENTITY, **changes), most, found.contents.__setitem__)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder with SAVED in three files."""
    made = tmp_path / "deep" / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_folder, "FILE_BYTES", 2 * WIDTH)
        folder = PrefixFolder(str(made))
        folder.write(IDENTITY, (SAVED, content))
        folder.close()
    return made


def data_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


def refused(path: Path, words: str, **changes: Any) -> None:
    with pytest.raises(ConfigError, match=words) as caught, contextlib.closing(PrefixFolder(str(path))) as folder:
        read(folder, **changes)
    assert caught.value.param == "prefix_cache_dir"
    assert caught.value.message.startswith(f"prefix_cache_dir: {path} ")


def test_what_is_written_is_read(path: Path) -> None:
    folder = PrefixFolder(str(path))
    found = read(folder)
    assert (found.saved, found.total) == (SAVED, 5)
    assert found.contents == {number: content(number) for number in range(5)}
    folder.close()
    folder.close()
    assert len(data_files(path)) == 3
    assert (path.stat().st_mode & 0o777, {each.stat().st_mode & 0o777 for each in path.iterdir()}) == (0o700, {0o600})


def test_as_many_as_there_is_room_for(path: Path) -> None:
    folder = PrefixFolder(str(path))
    for most in range(6):
        found = read(folder, most)
        assert (found.saved, found.total, list(found.contents)) == (SAVED[:most], 5, list(range(most)))
    folder.close()


def test_files_are_safetensors_and_the_index_is_json(path: Path) -> None:
    first = load_file(data_files(path)[0])
    assert {name: (str(array.dtype), array.shape) for name, array in first.items()} == {
        "parents": ("int32", (2,)),
        "scopes": ("int32", (2,)),
        "token_ids": ("int32", (2, 2)),
        "blocks": ("uint8", (2, WIDTH)),
    }
    assert first["token_ids"].tolist() == [[0, 2**31 - 1], [1, 2**31 - 1]]
    assert first["blocks"][1].tobytes() == content(1)
    index = json.loads((path / INDEX).read_text())
    assert index["identity"]["model"] == "m" * 32
    assert index["scopes"] == [{"adapter": None, "salt": None}, {"adapter": "x", "salt": None}]
    assert [(each["name"], each["blocks"], each["bytes"]) for each in index["files"]] == [
        (each.name, count, each.stat().st_size) for each, count in zip(data_files(path), (2, 2, 1), strict=True)
    ]


def test_an_empty_folder_and_an_empty_cache(tmp_path: Path) -> None:
    folder = PrefixFolder(str(tmp_path))
    assert read(folder).total == 0
    assert folder.write(IDENTITY, ([], content)) == 0
    assert read(folder).saved == []
    folder.close()
    assert data_files(tmp_path) == []


def test_a_save_replaces_what_was_there_and_leaves_foreign_files_alone(path: Path) -> None:
    old = data_files(path)
    (path / "notes.safetensors").write_bytes(b"mine")
    folder = PrefixFolder(str(path))
    size = folder.write(IDENTITY, (SAVED[:2], lambda number: content(number, 1)))
    assert read(folder).contents == {0: content(0, 1), 1: content(1, 1)}
    folder.close()
    notes, new = data_files(path)
    assert notes.name == "notes.safetensors"
    assert new not in old
    assert new.stat().st_size == size
    assert not any(each.exists() for each in old)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arithmetic": "0.2.0 cpu avx2"}, "they were computed by Octavo 0.1.0 cpu avx2, and this engine is Octavo 0.2.0 cpu avx2"),
        ({"kv_cache_dtype": "int8"}, "they are bfloat16, and this engine has a KV cache of int8"),
        ({"block_size": 4}, "they have 2 tokens each, and this engine has a block size of 4"),
        ({"kv_layout": "heads"}, "they lie in memory as layers, and this engine lays blocks out as heads"),
        ({"bytes_per_block": 80}, "they have 40 bytes each, and this engine has blocks of 80 bytes"),
        ({"model": "n" * 32}, "they are of the model with the digest m{32}, and this engine serves the one with n{32}"),
    ],
)
def test_blocks_of_another_kind(path: Path, changes: dict[str, Any], words: str) -> None:
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    refused(path, f"holds blocks of another kind: {words}.*give another folder, or delete this one$", **changes)
    assert {each.name: each.read_bytes() for each in path.iterdir() if each.suffix != ".lock"} == {
        name: data for name, data in before.items() if not name.endswith(".lock")
    }


def test_every_part_of_the_identity_is_compared() -> None:
    assert {*prefix_folder._DIFFERENCES} == {*CacheIdentity.__struct_fields__}


def altered(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


# Of the header's length, the header, parents, scopes and tokens, and of the last block's bytes.
@pytest.mark.parametrize("place", [0, 20, -2 * (WIDTH + 16), -2 * (WIDTH + 12), -2 * (WIDTH + 4), -1])
@pytest.mark.parametrize("number", [0, 1])
def test_an_altered_file(path: Path, number: int, place: int) -> None:
    file = data_files(path)[number]
    data = file.read_bytes()
    file.write_bytes(altered(data, place % len(data)))
    refused(path, f"can't be read back: {file.name} has been altered: its checksum is another; delete the folder to start without")


def test_a_truncated_grown_or_missing_file(path: Path) -> None:
    file = data_files(path)[2]
    data = file.read_bytes()
    for changed in (data[:-1], data + b"\0", b""):
        file.write_bytes(changed)
        refused(path, f"{file.name} has {len(changed)} bytes instead of {len(data)}")
    file.unlink()
    refused(path, f"{file.name} is missing")


def test_a_file_with_other_contents_of_the_same_length(path: Path) -> None:
    first, second, _ = data_files(path)
    second.write_bytes(first.read_bytes())
    refused(path, f"{second.name} has been altered")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("bfloat16", "float32"), "has been altered: its checksum is another"),
        (lambda text: text.replace('"blocks": 1', '"blocks": 2'), "has been altered: its checksum is another"),
        (lambda text: text[: len(text) // 2], "is no index of a prefix cache"),
        (lambda text: "", "is no index of a prefix cache"),
        (lambda text: "[]", "is no index of a prefix cache"),
        (lambda text: "{}", "is no index of a prefix cache"),
        (lambda text: text.replace('"version": 1', '"version": 0'), "is no index of a prefix cache"),
        (lambda text: text.replace('"version": 1', '"version": "1"'), "is no index of a prefix cache"),
        (lambda text: text.replace('"octavo-prefix-cache"', '"other"'), "is no index of a prefix cache"),
        (lambda text: text.replace('"prefix-cache-', '"../prefix-cache-', 1), "is no index of a prefix cache"),
    ],
)
def test_an_index_that_is_none(path: Path, change: Callable[[str], str], words: str) -> None:
    """It is seen before anything is removed."""
    text = (path / INDEX).read_text()
    assert change(text) != text
    (path / INDEX).write_text(change(text))
    refused(path, f"can't be read back: {INDEX} {words}; delete the folder to start without")
    assert len(data_files(path)) == 3


def test_a_disk_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, count: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(prefix_folder.HashingReader, "read", broken)
    refused(path, "can't be read back: Input/output error$")


def test_a_newer_format(path: Path) -> None:
    (path / INDEX).write_text('{"format": "octavo-prefix-cache", "version": 2, "shards": []}')
    refused(path, r"was written by a newer version of Octavo \(its format is 2, and this version knows 1\); give another folder")


def test_an_index_that_names_blocks_that_there_are_not(path: Path) -> None:
    for saved in ([SavedBlock(bytes(8), 0)], [SavedBlock(bytes(8), -2)], [SavedBlock(bytes(8), -1), SavedBlock(bytes(8), 1)]):
        folder = PrefixFolder(str(path))
        folder.write(IDENTITY, (saved, content))
        folder.close()
        refused(path, "names blocks that there are not")


# --- the folder itself


def test_two_engines_and_one_folder(path: Path) -> None:
    folder = PrefixFolder(str(path))
    refused(path, rf"is in use by another engine \(process {os.getpid()}\); each needs a folder of its own")
    folder.close()
    PrefixFolder(str(path)).close()


def test_a_folder_whose_engine_was_killed(path: Path) -> None:
    code = "import sys, time; from octavo.engine.prefix_folder import *; f = PrefixFolder(sys.argv[1]); print(); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.read(1)
        refused(path, rf"is in use by another engine \(process {other.pid}\)")
        other.kill()
        other.wait()
    folder = PrefixFolder(str(path))
    assert read(folder).saved == SAVED
    folder.close()


def test_symbolic_links_are_not_followed(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    refused(link, "is a symbolic link; give the folder itself")
    refused(Path(f"{link}/"), "is a symbolic link")
    for name in (INDEX, data_files(path)[1].name, prefix_folder.LOCK):
        elsewhere = tmp_path / "elsewhere"
        (path / name).rename(elsewhere)
        (path / name).symlink_to(elsewhere)
        refused(path, f"holds a symbolic link named {name}, which is not followed")
        (path / name).unlink()
        elsewhere.rename(path / name)
    assert len(data_files(path)) == 3


def test_what_is_no_file(path: Path) -> None:
    (path / INDEX).unlink()
    os.mkfifo(path / INDEX)
    refused(path, f"holds something named {INDEX} that is no file")


def test_what_is_no_folder_or_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(tmp_path / "file", "is not a folder")
    refused(tmp_path / "file" / "below", "can't be used: Not a directory")
    refused(tmp_path / ("x" * 300), "can't be used: File name too long")
    # Not even root may write here.
    refused(Path("/proc/self/net"), "can't be used: ")


@pytest.mark.parametrize(("room", "digest"), [(0, "m"), (600, "m"), (20_000, "m" * 30_000)], ids=["first", "data", "index"])
def test_a_full_disk(path: Path, room: int, digest: str) -> None:
    """A save that breaks off, even within its index, leaves what was there, and nothing of its own."""
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    folder = PrefixFolder(str(path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(PrefixCacheError, match=f"could not be saved to {path}: File too large; what was saved before is still there"):
            folder.write(msgspec.structs.replace(IDENTITY, model=digest), (SAVED * 20, lambda number: content(number % 5, 1)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before
    assert read(folder).saved == SAVED
    folder.close()


class Killed(BaseException):
    """Stands for the end of the process: nothing may be tidied up."""


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "unlink"])
def test_a_save_that_is_killed_anywhere_leaves_the_old_or_the_new(path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Each of its system calls of one kind is made to be the last that happens."""
    ends = []
    for stop in range(40):
        monkeypatch.setattr(prefix_folder, "FILE_BYTES", 2 * WIDTH)
        folder = PrefixFolder(str(path))
        folder.write(IDENTITY, (SAVED, content))
        dead = False
        count = 0

        def die_at(name: str, real: Callable[..., Any], stop: int = stop) -> Callable[..., Any]:
            def made(*args: Any, **options: Any) -> Any:
                nonlocal dead, count
                count += name == call
                if dead or count > stop:
                    dead = True
                    raise Killed
                return real(*args, **options)

            return made

        for name in ("fsync", "replace", "unlink", "listdir"):
            monkeypatch.setattr(os, name, die_at(name, getattr(os, name)))
        with contextlib.suppress(Killed):
            folder.write(IDENTITY, (SAVED[:4], die_at("write", lambda number: content(number, 1))))
        monkeypatch.undo()
        folder.close()
        folder = PrefixFolder(str(path))
        found = read(folder)
        if found.saved == SAVED:
            assert found.contents == {number: content(number) for number in range(5)}
        else:
            assert (found.saved, found.contents) == (SAVED[:4], {number: content(number, 1) for number in range(4)})
        named = {each["name"] for each in json.loads((path / INDEX).read_text())["files"]}
        assert {each.name for each in path.iterdir()} == named | {INDEX, prefix_folder.LOCK}
        folder.close()
        ends.append((dead, len(found.saved)))
        if not dead:
            break
    assert not ends[-1][0]
    assert {count for _, count in ends} == ({4, 5} if call != "unlink" else {4})


WRITER = """
import sys
from octavo.engine import prefix_folder
from octavo.kvcache.saved_block import SavedBlock
prefix_folder.FILE_BYTES = 4000
folder = prefix_folder.PrefixFolder(sys.argv[1])
identity = prefix_folder.CacheIdentity("0.1.0 cpu avx2", "bfloat16", 2, "layers", 40, "m" * 32)
for turn in range(10**6):
    turn %= 256
    folder.write(identity, ([SavedBlock(bytes([turn]) * 8, -1)] * (300 + turn), lambda number: bytes([turn]) * 40))
    print(turn, flush=True)
"""


def test_a_process_that_is_killed_in_a_save_leaves_a_whole_one(tmp_path: Path) -> None:
    """What is found is all of one save: the last that was finished, or the next."""
    for wait in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(3):
                writer.stdout.readline()
            time.sleep(wait * 0.004)
            writer.kill()
            rest = writer.stdout.read().split()
        last = int(rest[-1]) if rest else 2
        with contextlib.closing(PrefixFolder(str(tmp_path))) as folder:
            found = read(folder, 10**6)
        turns = {each.contents[0] for each in found.saved}
        assert turns <= {last, last + 1}
        (turn,) = turns
        assert (len(found.saved), set(found.contents.values())) == (300 + turn, {bytes([turn]) * 40})
        named = {each["name"] for each in json.loads((tmp_path / INDEX).read_text())["files"]}
        assert {each.name for each in tmp_path.iterdir()} == named | {INDEX, prefix_folder.LOCK}


def test_two_kinds_of_blocks_and_those_that_are_gone(path: Path) -> None:
    identity = msgspec.structs.replace(IDENTITY, bytes_per_window_block=3)
    own = [SavedBlock(bytes(8), -1, None, "s", True), SavedBlock(bytes([1]) * 8, 0, None, "s"), SavedBlock(bytes([2]) * 8, 1, gone=True)]
    own += [SavedBlock(bytes([3]) * 8, 2)]
    folder = PrefixFolder(str(path))
    folder.write(identity, (SAVED, content), (own, lambda number: bytes([number]) * 3))
    for most, count, contents in ((9, 4, {1: b"\1\1\1", 3: b"\3\3\3"}), (1, 2, {1: b"\1\1\1"}), (0, 0, {})):
        found: dict[int, bytes] = {}
        saved, total = folder.read(identity, most, found.__setitem__, kind=1)
        assert (saved, total, found) == (own[:count], 2, contents)
    assert read(folder, bytes_per_window_block=3).saved == SAVED
    with pytest.raises(ConfigError, match="they have 3 bytes each where layers see a window, and this engine has blocks of 4 bytes there"):
        read(folder, bytes_per_window_block=4)
    folder.close()
