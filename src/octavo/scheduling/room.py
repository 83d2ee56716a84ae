"""How much of the pool requests have, need and may come to need."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.kvcache.block_store import BlockStore
from octavo.kvcache.block_table import BlockTable, Prefix, blocks_for
from octavo.kvcache.swap_space import Swapped
from octavo.scheduling.request import Request


def blocks_needed(request: Request, prefix: Prefix, swapped: Swapped | None, store: BlockStore) -> int:
    """Free blocks that a waiting request takes for the tokens it knows, if it begins with `prefix` and goes on with what it has `swapped`.
    What others hold of that costs nothing, unless the request goes on inside of a block and has to copy it; what nobody holds leaves the
    free blocks, too."""
    size = request.table.block_size
    found = prefix.block_ids if swapped is None else prefix.block_ids + request.table.twins(prefix, swapped)
    copies = prefix.num_tokens % size > 0 and request.num_known > prefix.num_tokens
    return blocks_for(request.num_known, size) - len(found) + store.count_free(found) + copies


def blocks_to_come(request: Request) -> int:
    """Blocks that a running request still has to take for the tokens it knows, and one more if its output can grow into it, or into a block
    that it shares. The last token that it may know needs no slot: it is never computed."""
    size, written = request.table.block_size, request.num_in_cache
    known = blocks_for(request.num_known, size)
    copies = written < request.max_known - 1 and request.table.must_copy(written)
    copies_now = copies and written < request.num_known
    grows = blocks_for(request.max_known - 1, size) > known or copies > copies_now
    return known - len(request.table.block_ids) + copies_now + grows


def tokens_held(tables: Sequence[tuple[BlockTable, int]], store: BlockStore, block_size: int) -> int:
    """Slots of the blocks in use that hold a token, each block counted once however many of the tables share it. `tables` are all that
    there are, each with the number of tokens that are in the cache. O(tables · shared blocks that some table fills in part)."""
    unused: dict[int, int] = {}
    shared: dict[int, int] = {}
    for table, num_tokens in tables:
        for place in range(num_tokens // block_size, len(table.block_ids)):
            block_id = table.block_ids[place]
            unused[block_id] = block_size - max(0, num_tokens - place * block_size)
            if store.is_shared(block_id):
                shared[block_id] = place
    for block_id, place in shared.items():
        # The one that has filled most of it counts.
        filled = (num_tokens for table, num_tokens in tables if table.block_ids[place : place + 1] == [block_id])
        unused[block_id] = max(0, (place + 1) * block_size - max(filled))
    return store.num_used * block_size - sum(unused.values())
