"""The KV cache as the scheduler sees it: tables over one store of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.kvcache.block_hash import BlockHash, BlockKeys, CacheScope, hash_block, salt_digest
from octavo.kvcache.block_store import BlockStore
from octavo.kvcache.block_table import BlockTable
from octavo.kvcache.prefix_index import CachedBlock
from octavo.kvcache.saved_block import SavedBlock
from octavo.kvcache.window import NO_END, Window


class KVCacheManager:
    """`num_blocks` blocks of `block_size` tokens, and swap space for `num_swap_blocks` more. With `prefix_caching` full blocks can be found
    by later sequences of the same `scope`. With a `window`, which must be that of every layer, blocks are given back once it has passed
    them; there is no swap space then, and nothing is saved.

    `hash_block` may be replaced, by a test that wants collisions for instance: results don't depend on it, only what is found.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_swap_blocks: int = 0,
        prefix_caching: bool = True,
        scope: CacheScope | None = None,
        hash_block: BlockHash = hash_block,
        window: Window | None = None,
    ) -> None:
        self.store = BlockStore(num_blocks, num_swap_blocks, sliding=window is not None)
        self.window = window
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._scope = scope or CacheScope()
        self._hash = hash_block

    def new_table(
        self, token_ids: list[int], *, adapter: str | None = None, salt: str | None = None, owner: str = "", keep_all: bool = False
    ) -> BlockTable:
        """An empty table for a sequence; `token_ids` is the sequence's own list, which may grow. Its blocks are held in the name
        of `owner`; with `keep_all` also those that the window has passed."""
        window = self.window if self.window is None or not keep_all else replace(self.window, size=NO_END)
        if not self.prefix_caching:
            return BlockTable(self.store, self.block_size, owner=owner, window=window)
        scope = self._scope_of(adapter, None if salt is None else salt_digest(salt))
        return BlockTable(self.store, self.block_size, BlockKeys(token_ids, self.block_size, scope, self._hash), owner=owner, window=window)

    def saved(self) -> tuple[list[int], list[SavedBlock]]:
        """The ids of all blocks that can be found, and what each holds, parents before their children; the more likely a block is to be
        reused for something else, the later it comes. O(cached blocks)."""
        cached = self.store.cached()
        place = {each.block_id: index for index, each in enumerate(cached)}
        parents = [-1 if each.parent is None else place[each.parent.block_id] for each in cached]
        saved = [
            SavedBlock(each.contents, parent, each.scope.adapter, each.scope.salt) for each, parent in zip(cached, parents, strict=True)
        ]
        return [each.block_id for each in cached], saved

    def restore(self, block_ids: Sequence[int], saved: Sequence[SavedBlock]) -> int:
        """Makes what was `saved` findable in blocks that hold it again, each taken once, and gives these back in such an order that the
        last one is reused first. Returns how many can be found: a content that is there already, or whose digest is another's, is not
        there a second time. O(blocks)."""
        count = 0
        known: list[CachedBlock | None] = []
        for block_id, each in zip(block_ids, saved, strict=True):
            scope = self._scope_of(each.adapter, each.salt)
            parent = None if each.parent < 0 else known[each.parent]
            if each.parent >= 0 and parent is None:
                known.append(None)
                continue
            before = self._hash(b"", scope.encode()) if parent is None else parent.digest
            known.append(self.store.restore(block_id, self._hash(before, each.contents), each.contents, scope, parent))
            count += known[-1] is not None and known[-1].block_id == block_id
        for block_id in reversed(block_ids):
            self.store.release(block_id)
        return count

    def _scope_of(self, adapter: str | None, salt: str | None) -> CacheScope:
        return self._scope if adapter is None and salt is None else replace(self._scope, adapter=adapter, salt=salt)

    def start_over(self) -> BlockStore:
        """A store like the first, of which every block is free and none can be found. Tables over the one before are void."""
        before = self.store
        self.store = BlockStore(before.num_blocks, before.swap.num_slots, sliding=self.window is not None)
        self.store.go_on_counting(before)
        return self.store

    def reset(self) -> bool:
        """Forgets all that could be found; False, with nothing done, while any block is in use."""
        return self.store.reset()
