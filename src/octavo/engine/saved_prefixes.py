"""The prefix cache from one engine to the next: blocks that can be found go to a folder, and come back from it."""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.engine.prefix_folder import CacheIdentity, PrefixFolder
from octavo.executors.executor import Executor, LoadedModel
from octavo.kvcache.block_store import BlockStore
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.prefix_index import NULL_BLOCK
from octavo.utils.sizes import format_size


class SavedPrefixes:
    """One engine's folder. `say` is told in a line what was saved or found."""

    def __init__(
        self, folder: PrefixFolder, identity: CacheIdentity, cache: KVCacheManager, executor: Executor, say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._cache = cache
        self._executor = executor
        self._say = say
        self._saved_changes = -1

    def save(self) -> int:
        """Saves every block that can be found, and returns how many these are; nothing is written while they are those that were saved or
        restored last, whatever was used since, and the files are there. Not while a step runs. Raises PrefixCacheError."""
        store = self._cache.store
        if self._changes == self._saved_changes and (not store.num_cached or self._folder.is_whole()):
            return store.num_cached
        started = time.monotonic()
        kinds = [self._cache.saved(kind) for kind in range(len(store.parts))]
        size = self._folder.write(self._identity, *((saved, self._reader(block_ids)) for block_ids, saved in kinds))
        self._saved_changes = self._changes
        self._tell("saved to", store.num_cached, size, started)
        return store.num_cached

    def restore(self) -> int:
        """Makes saved blocks findable in a cache that nobody uses yet, as many as it can hold, and returns their number. Raises ConfigError
        if they are of another kind, or not as they were written."""
        started = time.monotonic()
        count = total = size = 0
        for kind, store in enumerate(self._cache.store.parts):
            width = self._identity.bytes_of(kind)
            places: dict[int, int] = {}
            saved, there = self._folder.read(self._identity, store.num_free, self._writer(store, places), kind=kind)
            restored = self._cache.restore([places.get(number, NULL_BLOCK) for number in range(len(saved))], saved, kind)
            count, total, size = count + restored, total + there, size + restored * width
        self._saved_changes = self._changes
        if total:
            self._tell("restored from", count, size, started, total - count)
        return count

    @property
    def _changes(self) -> int:
        return sum(store.changes for store in self._cache.store.parts)

    def _reader(self, block_ids: list[int]) -> Callable[[int], bytes]:
        return lambda number: self._executor.read_block(block_ids[number])

    def _writer(self, store: BlockStore, places: dict[int, int]) -> Callable[[int, bytes], None]:
        """Puts contents into free blocks, and notes which."""

        def write(number: int, content: bytes) -> None:
            (places[number],) = store.take(1)
            self._executor.write_block(places[number], content)

        return write

    def close(self) -> None:
        """Leaves the folder to others."""
        self._folder.close()

    def _tell(self, what: str, count: int, size: int, started: float, missing: int = 0) -> None:
        rest = f"; {missing:,} more were saved, which the KV cache has no room for" if missing else ""
        self._say(
            f"Prefix cache: {count:,} blocks ({format_size(size)}) {what} {self._folder.path} in {time.monotonic() - started:.1f} s{rest}"
        )


def identity_of(model: LoadedModel, block_size: int) -> CacheIdentity:
    """What blocks of an engine are told by."""
    own = model.kv_bytes_per_window_block
    return CacheIdentity(model.arithmetic, model.kv_cache_dtype, block_size, model.kv_layout, model.kv_bytes_per_block, model.digest, own)
