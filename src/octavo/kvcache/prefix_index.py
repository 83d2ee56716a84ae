"""Which blocks can be found by what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from octavo.kvcache.block_hash import BlockKeys, CacheScope
from octavo.kvcache.block_pool import BlockPoolError

# In place of a block id: nothing is there (any more).
NULL_BLOCK = -1


class CachedBlock:
    """A full block that can be found: which one, what it holds, and after which other block. The first of a sequence has no parent.

    `block_id` is NULL_BLOCK once the block is gone while blocks that follow it are there: it is known then for what they follow.
    """

    __slots__ = ("block_id", "contents", "digest", "num_children", "parent", "scope")

    def __init__(self, block_id: int, digest: bytes, contents: bytes, scope: CacheScope, parent: CachedBlock | None) -> None:
        self.block_id = block_id
        self.digest = digest
        self.contents = contents
        self.scope = scope
        self.parent = parent
        self.num_children = 0

    def holds(self, contents: bytes, scope: CacheScope, parent: CachedBlock | None) -> bool:
        """Whether it holds these tokens in this scope, after the block `parent`. Everything is compared, so that an equal digest proves
        nothing: the parent is the one block of that content, which makes the comparison hold for the whole prefix."""
        return self.parent is parent and self.contents == contents and self.scope == scope


class PrefixIndex:
    """Cached blocks by digest and by block id. One content has one block.

    The parent of a cached block is cached, too. Whoever drops blocks must therefore drop children before parents; `remove` insists, unless
    `sliding`: of sequences whose tokens see a window, blocks are worth something without those before them. What was before a cached
    block is then known without its block, for as long as there is one that follows it.
    All operations are O(1), `remove` on the average, but for `clear`. `changes` counts what was added and forgotten.
    """

    __slots__ = ("_by_digest", "_by_id", "_sliding", "changes")

    def __init__(self, *, sliding: bool = False) -> None:
        self._sliding = sliding
        self.changes = 0
        self._by_digest: dict[bytes, CachedBlock] = {}
        self._by_id: dict[int, CachedBlock] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[CachedBlock]:
        """Every cached block, after its parent: a parent is known before its children, and forgotten after them."""
        return iter(self._by_id.values())

    def get(self, block_id: int) -> CachedBlock | None:
        """What the block holds, if it can be found."""
        return self._by_id.get(block_id)

    def find(self, keys: BlockKeys, index: int, parent: CachedBlock | None) -> CachedBlock | None:
        """The block that holds block `index` of the sequence of `keys`, whose block before that is `parent`; it may be gone where the index
        is sliding."""
        found = self._by_digest.get(keys.digests[index])
        return found if found is not None and found.holds(keys.contents[index], keys.scope, parent) else None

    def add(self, block_id: int, keys: BlockKeys, index: int, parent: CachedBlock | None) -> CachedBlock | None:
        """Makes a block findable as block `index` of the sequence of `keys`. Returns the block of that content, which is another one if
        it was there already, and None if other contents have the digest: then the place is theirs, and this block stays unknown."""
        return self.put(block_id, keys.digests[index], keys.contents[index], keys.scope, parent)

    def put(self, block_id: int, digest: bytes, contents: bytes, scope: CacheScope, parent: CachedBlock | None) -> CachedBlock | None:
        """The same of a block whose sequence is not at hand; with NULL_BLOCK of one that is gone, which is known if it is not there."""
        found = self._by_digest.get(digest)
        if found is not None and not found.holds(contents, scope, parent):
            return None
        if found is not None:
            if found.block_id == NULL_BLOCK and block_id != NULL_BLOCK:
                found.block_id = block_id
                self._by_id[block_id] = found
                self.changes += 1
            return found
        cached = self._by_digest[digest] = CachedBlock(block_id, digest, contents, scope, parent)
        if block_id != NULL_BLOCK:
            self._by_id[block_id] = cached
        self.changes += 1
        if parent is not None:
            parent.num_children += 1
        return cached

    def remove(self, block_id: int) -> CachedBlock | None:
        """Forgets the block, if it is known, because something else will be written to it. Raises BlockPoolError for a block with
        children, unless the index is sliding: they could never be found again."""
        cached = self._by_id.get(block_id)
        if cached is None:
            return None
        if cached.num_children and not self._sliding:
            raise BlockPoolError(f"block {block_id} is dropped before {cached.num_children} cached blocks that follow it")
        del self._by_id[block_id]
        cached.block_id = NULL_BLOCK
        self._prune(cached)
        self.changes += 1
        return cached

    def forget_unused(self, blocks: Iterable[CachedBlock]) -> None:
        """Forgets those of the blocks that are gone and that no block follows."""
        for cached in blocks:
            if self._by_digest.get(cached.digest) is cached:
                self._prune(cached)

    def _prune(self, cached: CachedBlock | None) -> None:
        """Forgets what is gone and has nothing after it, and what is so because of that."""
        while cached is not None and cached.block_id == NULL_BLOCK and not cached.num_children:
            del self._by_digest[cached.digest]
            cached = cached.parent
            if cached is not None:
                cached.num_children -= 1

    def clear(self) -> None:
        """Forgets all."""
        self.changes += len(self._by_id)
        self._by_digest.clear()
        self._by_id.clear()
