"""How much of the pool requests have, need and may come to need."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.kvcache.block_table import Prefix, blocks_for
from octavo.kvcache.per_kind import BlockCount, total
from octavo.kvcache.sequence_table import AnyStore, SequenceTable
from octavo.kvcache.swap_space import Swapped
from octavo.scheduling.request import Request


def blocks_needed(request: Request, prefix: Prefix, swapped: Swapped | None) -> BlockCount:
    """Free blocks that a waiting request takes for the tokens it knows, if it begins with `prefix` and goes on with what it has `swapped`.
    Beams need theirs as soon as the request has computed its own."""
    return request.table.blocks_needed(prefix, request.num_known, swapped) + _blocks_to_fork(request)


def blocks_to_come(request: Request) -> BlockCount:
    """Blocks that a running request still has to take for the tokens it knows, and one more if its output can grow into it, or into a block
    that it shares; of a request with beams, for each of these. The last token that it may know needs no slot: it is never computed."""
    own = (each.table.blocks_to_come(each.num_in_cache, each.num_known, each.max_known - 1) for each in request.sequences)
    return total(own) + _blocks_to_fork(request)


def beam_blocks(num_prompt_tokens: int, max_known: int, beam_width: int, block_size: int) -> int:
    """The most blocks that a beam search can hold at once: its beams share the prompt's full ones, and perhaps nothing else."""
    shared = num_prompt_tokens // block_size
    return shared + beam_width * (blocks_for(max_known - 1, block_size) - shared)


def _blocks_to_fork(request: Request) -> int:
    return 0 if request.search is None else request.search.blocks_to_fork


def tokens_held(given: Sequence[tuple[SequenceTable, int]], store: AnyStore, block_size: int) -> int:
    """Slots of the blocks in use that hold a token, each block counted once however many of the tables share it. `given` are all tables
    that there are, each with the number of tokens that are in the cache. O(tables · shared blocks that some table fills in part)."""
    unused: dict[int, int] = {}
    shared: dict[int, int] = {}
    tables = [(part, num_tokens) for table, num_tokens in given for part in table.parts]
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
