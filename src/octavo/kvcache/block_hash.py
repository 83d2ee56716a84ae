"""What names the contents of a full block: a hash chained from the first block of its sequence.

The keys and values of a block follow from its tokens and all those before it, and from what computes them: the model, the type that they
are stored in, the adapter. A block's digest therefore covers its parent's digest and its own token ids, and the first block's parent is a
digest of everything else. It depends on nothing of the process that made it, so that a digest written to a disk means the same elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass
from hashlib import blake2b

import msgspec

DIGEST_BYTES = 16
SALT_DIGEST_BYTES = 32

# (digest of the parent, contents of the block) → digest of the block.
BlockHash = Callable[[bytes, bytes], bytes]


def hash_block(parent: bytes, contents: bytes) -> bytes:
    """BLAKE2b (RFC 7693) of a parent's digest and a block's contents, DIGEST_BYTES long."""
    return blake2b(parent + contents, digest_size=DIGEST_BYTES).digest()


def salt_digest(salt: str) -> str:
    """What stands for a request's `cache_salt`, so that the salt itself is kept nowhere: BLAKE2b of its text, in hexadecimal."""
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=SALT_DIGEST_BYTES, person=b"octavo salt").hexdigest()


@dataclass(frozen=True, slots=True)
class CacheScope:
    """What must be equal, besides the tokens, for two sequences to share a block.

    `model` identifies the weights and the arithmetic that they run in, `kv_dtype` the type of the cached keys and values, `adapter` the
    changes to the weights that the request asked for. `salt` is the `salt_digest` of the request's `cache_salt`: text that keeps its blocks
    from everyone who does not send the same.
    """

    model: str = ""
    kv_dtype: str = ""
    adapter: str | None = None
    salt: str | None = None

    def encode(self) -> bytes:
        """The scope as bytes, different for different scopes."""
        return msgspec.msgpack.encode(astuple(self))


class BlockKeys:
    """Digest and contents of each full block of one sequence, computed as far as they have been asked for.

    `token_ids` is the sequence's own list, which grows. Contents are the token ids as little-endian int32, `block_size` of them.
    """

    __slots__ = ("_block_size", "_hash", "_pack", "_token_ids", "contents", "digests", "scope")

    def __init__(self, token_ids: list[int], block_size: int, scope: CacheScope, hash_block: BlockHash) -> None:
        self._token_ids = token_ids
        self._block_size = block_size
        self._hash = hash_block
        self._pack = struct.Struct(f"<{block_size}i").pack
        self.scope = scope
        self.digests: list[bytes] = []
        self.contents: list[bytes] = []

    def extend(self, count: int) -> None:
        """Makes sure of the first `count` blocks, all of whose tokens are known. O(tokens of the new ones)."""
        size = self._block_size
        for index in range(len(self.digests), count):
            parent = self.digests[-1] if index else self._hash(b"", self.scope.encode())
            contents = self._pack(*self._token_ids[index * size : (index + 1) * size])
            self.digests.append(self._hash(parent, contents))
            self.contents.append(contents)

    def fork(self, token_ids: list[int], count: int) -> BlockKeys:
        """Keys of another sequence, `token_ids`, whose first `count` full blocks are the same."""
        keys = BlockKeys(token_ids, self._block_size, self.scope, self._hash)
        keys.digests = self.digests[:count]
        keys.contents = self.contents[:count]
        return keys
