"""The KV cache as the scheduler sees it: tables over one store of blocks."""

from __future__ import annotations

from dataclasses import replace

from octavo.kvcache.block_hash import BlockHash, BlockKeys, CacheScope, hash_block
from octavo.kvcache.block_store import BlockStore
from octavo.kvcache.block_table import BlockTable
from octavo.kvcache.window import Window


class KVCacheManager:
    """`num_blocks` blocks of `block_size` tokens. With `prefix_caching` full blocks can be found by later sequences of the same `scope`.
    With a `window`, which must be that of every layer, blocks are given back once it has passed them.

    `hash_block` may be replaced, by a test that wants collisions for instance: results don't depend on it, only what is found.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = True,
        scope: CacheScope | None = None,
        hash_block: BlockHash = hash_block,
        window: Window | None = None,
    ) -> None:
        self.store = BlockStore(num_blocks, sliding=window is not None)
        self.window = window
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._scope = scope or CacheScope()
        self._hash = hash_block

    def new_table(self, token_ids: list[int], *, adapter: str | None = None, salt: str | None = None, owner: str = "") -> BlockTable:
        """An empty table for a sequence; `token_ids` is the sequence's own list, which may grow. Its blocks are held in the name
        of `owner`."""
        if not self.prefix_caching:
            return BlockTable(self.store, self.block_size, owner=owner, window=self.window)
        scope = self._scope if adapter is None and salt is None else replace(self._scope, adapter=adapter, salt=salt)
        return BlockTable(
            self.store, self.block_size, BlockKeys(token_ids, self.block_size, scope, self._hash), owner=owner, window=self.window
        )

    def reset(self) -> bool:
        """Forgets all that could be found; False, with nothing done, while any block is in use."""
        return self.store.reset()
