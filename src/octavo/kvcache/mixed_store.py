"""The blocks of a model whose layers are of two kinds."""

from __future__ import annotations

from octavo.kvcache.block_store import BlockStore
from octavo.kvcache.per_kind import PerKind
from octavo.protocol.wire import BlockState


class MixedStore:
    """A store of blocks for the layers that see everything, `full`, and one of blocks for those that see a window, `window`, whose ids
    are above all of the first ones'. Each keeps its own accounts; what is counted here is the sum of both."""

    def __init__(self, full: BlockStore, window: BlockStore) -> None:
        self.full = full
        self.window = window

    @property
    def parts(self) -> tuple[BlockStore, ...]:
        """The two."""
        return self.full, self.window

    @property
    def now(self) -> float:
        """The time, in seconds, of whatever happens next."""
        return self.full.now

    @now.setter
    def now(self, seconds: float) -> None:
        self.full.now = self.window.now = seconds

    @property
    def num_blocks(self) -> int:
        """All of them."""
        return self.full.num_blocks + self.window.num_blocks

    @property
    def num_free(self) -> PerKind:
        """Blocks that nobody holds, whether they can be found or not."""
        return PerKind(self.full.num_free, self.window.num_free)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.full.num_used + self.window.num_used

    @property
    def num_cached(self) -> int:
        """Blocks that can be found, whether somebody holds them or not."""
        return self.full.num_cached + self.window.num_cached

    @property
    def num_cached_free(self) -> int:
        """Those of them that nobody holds."""
        return self.full.num_cached_free + self.window.num_cached_free

    @property
    def num_evicted(self) -> int:
        """Blocks that could be found once, until their space was needed."""
        return self.full.num_evicted + self.window.num_evicted

    @property
    def num_swap_slots(self) -> int:
        """Slots of swap space, of which each kind has its own."""
        return self.full.num_swap_slots + self.window.num_swap_slots

    @property
    def num_swap_used(self) -> int:
        """Those that somebody holds."""
        return self.full.num_swap_used + self.window.num_swap_used

    def is_shared(self, block_id: int) -> bool:
        """Whether the block has more than one holder."""
        return (self.full if block_id < self.window.first else self.window).is_shared(block_id)

    def describe(self, first: int, end: int) -> list[BlockState]:
        """The blocks from `first` up to `end`. O(those)."""
        return self.full.describe(first, end) + self.window.describe(first, end)

    def reset(self) -> bool:
        """Forgets what all blocks hold; False, with nothing done, if any is in use, in the cache or in swap space."""
        return self.num_used == self.num_swap_used == 0 and self.full.reset() and self.window.reset()
