"""A data file of a saved prefix cache: a safetensors file, whose header is always the same for the same sizes."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from octavo.kvcache.saved_block import SavedBlock

FORMAT = "octavo-prefix-cache"


class HashingReader:
    """Reads a file and keeps the SHA-256 of what came. What is missing at the end of a file that shrinks shows in that."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def read(self, count: int) -> bytes:
        """The next `count` bytes; zeros for those that there are not."""
        data = self._file.read(count)
        self._digest.update(data)
        return data.ljust(count, b"\0")

    def hexdigest(self) -> str:
        """Of all that was read."""
        return self._digest.hexdigest()


def make_pieces(header: bytes, saved: Sequence[SavedBlock], scopes: Sequence[int], blocks: Iterable[bytes]) -> Iterator[bytes]:
    """What a data file consists of."""
    yield header
    yield struct.pack(f"<{len(saved)}i", *(each.parent for each in saved))
    yield struct.pack(f"<{len(saved)}i", *scopes)
    yield b"".join(each.contents for each in saved)
    yield from blocks


def make_header(count: int, held: int, block_size: int, bytes_per_block: int) -> bytes:
    """The safetensors header of a data file, with its length before it and spaces behind it up to a multiple of 8."""
    tensors, end = {}, 0
    for name, dtype, shape, size in (
        ("parents", "I32", [count], 4 * count),
        ("scopes", "I32", [count], 4 * count),
        ("token_ids", "I32", [count, block_size], 4 * count * block_size),
        ("blocks", "U8", [held, bytes_per_block], held * bytes_per_block),
    ):
        tensors[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({"__metadata__": {"format": FORMAT}, **tensors}, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return len(text).to_bytes(8, "little") + text
