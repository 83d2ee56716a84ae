"""What a scheduler counts from its start on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.kvcache.sequence_table import AnyStore, SequenceTable
from octavo.protocol.wire import EngineStats
from octavo.scheduling.room import tokens_held
from octavo.scheduling.swapping import Swapping


@dataclass(slots=True)
class Counters:
    """Tokens of the last step; then sums over all steps, which only grow. Queries and hits of the prefix cache are in tokens."""

    step_tokens: int = 0
    preemptions: int = 0
    blocks_copied: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens_computed: int = 0

    def stats(
        self, running: int, waiting: int, tables: Sequence[tuple[SequenceTable, int]], store: AnyStore, swapping: Swapping, block_size: int
    ) -> EngineStats:
        """These beside the gauges of this moment; `tables` are all that there are, each with the number of its tokens in the cache."""
        return EngineStats(
            running=running,
            waiting=waiting,
            blocks_total=store.num_blocks,
            blocks_used=store.num_used,
            tokens_held=tokens_held(tables, store, block_size),
            preemptions=self.preemptions,
            step_tokens=self.step_tokens,
            blocks_cached=store.num_cached,
            blocks_evicted=store.num_evicted,
            blocks_copied=self.blocks_copied,
            prefix_cache_queries=self.prefix_cache_queries,
            prefix_cache_hits=self.prefix_cache_hits,
            prompt_tokens_computed=self.prompt_tokens_computed,
            swapped=swapping.num_requests,
            swap_blocks_total=store.num_swap_slots,
            swap_blocks_used=store.num_swap_used,
            blocks_swapped_out=swapping.num_blocks_out,
            blocks_swapped_in=swapping.num_blocks_in,
            window_blocks_swapped_out=swapping.num_window_blocks_out,
            window_blocks_swapped_in=swapping.num_window_blocks_in,
        )
