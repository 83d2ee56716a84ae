"""The KV cache as the scheduler sees it: tables over one store of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.kvcache.block_hash import BlockHash, BlockKeys, CacheScope, hash_block, salt_digest
from octavo.kvcache.block_store import BlockStore
from octavo.kvcache.block_table import BlockTable
from octavo.kvcache.mixed_store import MixedStore
from octavo.kvcache.mixed_table import MixedTable
from octavo.kvcache.prefix_index import NULL_BLOCK, CachedBlock
from octavo.kvcache.saved_block import SavedBlock
from octavo.kvcache.sequence_table import AnyStore, SequenceTable
from octavo.kvcache.window import NO_END, Window


class KVCacheManager:
    """`num_blocks` blocks of `block_size` tokens, and swap space for `num_swap_blocks` more. With `prefix_caching` full blocks can be found
    by later sequences of the same `scope`. With a `window`, which must be that of every layer, blocks are given back once it has passed
    them. With `num_window_blocks` there are as many blocks more, for the layers that see
    the `window`, whose ids begin with `first_window_block` or where the others end, and those are for the layers that see everything.

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
        num_window_blocks: int = 0,
        first_window_block: int | None = None,
        num_window_swap_blocks: int = 0,
    ) -> None:
        if num_window_blocks and window is None:
            raise ValueError("blocks for layers that see a window need to know the window")
        self.num_blocks = num_blocks
        self.num_window_blocks = num_window_blocks
        self._first_window_block = num_blocks if first_window_block is None else first_window_block
        self.window = window
        self._num_swap_blocks, self._num_window_swap_blocks = num_swap_blocks, num_window_swap_blocks
        self.store: AnyStore = self._make_store()
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._scope = scope or CacheScope()
        self._hash = hash_block

    def _make_store(self) -> AnyStore:
        if not self.num_window_blocks:
            return BlockStore(self.num_blocks, self._num_swap_blocks, sliding=self.window is not None)
        own, slots = self._num_window_swap_blocks, self._num_swap_blocks
        return MixedStore(
            BlockStore(self.num_blocks, slots),
            BlockStore(self.num_window_blocks, own, sliding=True, first=self._first_window_block, first_slot=slots),
        )

    def new_table(
        self, token_ids: list[int], *, adapter: str | None = None, salt: str | None = None, owner: str = "", keep_all: bool = False
    ) -> SequenceTable:
        """An empty table for a sequence; `token_ids` is the sequence's own list, which may grow. Its blocks are held in the name
        of `owner`; with `keep_all` also those that the window has passed."""
        window = self.window if self.window is None or not keep_all else replace(self.window, size=NO_END)
        keys = None
        if self.prefix_caching:
            scope = self._scope_of(adapter, None if salt is None else salt_digest(salt))
            keys = BlockKeys(token_ids, self.block_size, scope, self._hash)
        store = self.store
        if isinstance(store, BlockStore):
            return BlockTable(store, self.block_size, keys, owner=owner, window=window)
        full = BlockTable(store.full, self.block_size, keys, owner=owner)
        return MixedTable(full, BlockTable(store.window, self.block_size, keys, owner=owner, window=window))

    def saved(self, kind: int = 0) -> tuple[list[int], list[SavedBlock]]:
        """The ids of all blocks that can be found, of one kind, and what each holds, parents before their children; the more likely a block
        is to be reused for something else, the later it comes. Those that are gone, and known for what follows them, have NULL_BLOCK.
        O(cached blocks)."""
        order: dict[CachedBlock, int] = {}
        for cached in self.store.parts[kind].cached():
            chain: list[CachedBlock] = []
            each: CachedBlock | None = cached
            while each is not None and each not in order:
                chain.append(each)
                each = each.parent
            for each in reversed(chain):
                order[each] = len(order)
        saved = [
            SavedBlock(
                each.contents,
                -1 if each.parent is None else order[each.parent],
                each.scope.adapter,
                each.scope.salt,
                each.block_id == NULL_BLOCK,
            )
            for each in order
        ]
        return [each.block_id for each in order], saved

    def restore(self, block_ids: Sequence[int], saved: Sequence[SavedBlock], kind: int = 0) -> int:
        """Makes what was `saved` findable in blocks of a kind that hold it again, each taken once (NULL_BLOCK for what is gone), and gives
        these back in such an order that the last one is reused first. Returns how many can be found: a content that is there already, or
        whose digest is another's, is not there a second time. O(blocks)."""
        store, slides = self.store.parts[kind], kind == 1 or (self.window is not None and not self.num_window_blocks)
        count = 0
        known: list[CachedBlock | None] = []
        for block_id, each in zip(block_ids, saved, strict=True):
            scope = self._scope_of(each.adapter, each.salt)
            parent = None if each.parent < 0 else known[each.parent]
            if (each.parent >= 0 and parent is None) or (block_id == NULL_BLOCK and not slides):
                known.append(None)
                continue
            before = self._hash(b"", scope.encode()) if parent is None else parent.digest
            known.append(store.restore(block_id, self._hash(before, each.contents), each.contents, scope, parent))
            count += block_id != NULL_BLOCK and known[-1] is not None and known[-1].block_id == block_id
        store.forget_unused(each for each in reversed(known) if each is not None)
        for block_id in reversed(block_ids):
            if block_id != NULL_BLOCK:
                store.release(block_id)
        return count

    def _scope_of(self, adapter: str | None, salt: str | None) -> CacheScope:
        return self._scope if adapter is None and salt is None else replace(self._scope, adapter=adapter, salt=salt)

    def start_over(self) -> AnyStore:
        """A store like the first, of which every block is free and none can be found. Tables over the one before are void."""
        before, self.store = self.store, self._make_store()
        for store, old in zip(self.store.parts, before.parts, strict=True):
            store.go_on_counting(old)
        return self.store

    def reset(self) -> bool:
        """Forgets all that could be found; False, with nothing done, while any block is in use."""
        return self.store.reset()
