"""KV memory as engines without paging reserve it: one contiguous run of blocks a request, for all that it may come to, from its admission
to its end. For comparison alone: `octavo bench memory` runs the engine with these in place of the paged cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from octavo.kvcache.block_pool import BlockPoolError
from octavo.kvcache.block_store import BlockStore
from octavo.kvcache.block_table import BlockTable, Grant, Prefix, blocks_for
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.mixed_store import MixedStore
from octavo.kvcache.mixed_table import MixedTable
from octavo.kvcache.sequence_table import SequenceTable
from octavo.kvcache.swap_space import Swapped


class RunAllocator(Protocol):
    """Hands out contiguous runs of blocks."""

    def fits(self, num_blocks: int) -> bool:
        """Whether a run of at least `num_blocks` blocks is free."""
        ...

    def take(self, num_blocks: int) -> range:
        """The block ids of such a run, which may be longer. Raises BlockPoolError if none is free."""
        ...

    def give_back(self, run: range) -> None:
        """A run that was taken is free again. Raises BlockPoolError for one that was not."""
        ...


class FixedRuns:
    """Runs of one length, cut from the pool once. What is left over at its end is of no use."""

    def __init__(self, num_blocks: int, length: int) -> None:
        self.length = length
        # The lowest is taken first.
        self._free = list(range(num_blocks // length * length - length, -1, -length))
        self._taken: set[int] = set()

    def fits(self, num_blocks: int) -> bool:
        """See RunAllocator."""
        return num_blocks <= self.length and bool(self._free)

    def take(self, num_blocks: int) -> range:
        """See RunAllocator; every run has `length` blocks."""
        if not self.fits(num_blocks):
            raise BlockPoolError(f"no run of {num_blocks} blocks is free")
        start = self._free.pop()
        self._taken.add(start)
        return range(start, start + self.length)

    def give_back(self, run: range) -> None:
        """See RunAllocator."""
        if run.start not in self._taken:
            raise BlockPoolError(f"the run at {run.start} was not taken")
        self._taken.remove(run.start)
        self._free.append(run.start)


class Buddies:
    """Runs of 2ᵏ blocks, which begin at multiples of their length. A run that is too long is halved until it is not; one that comes back
    joins its other half as soon as that is free, too (Knowlton, 1965). A pool whose size is no power of two begins as several runs."""

    def __init__(self, num_blocks: int) -> None:
        self._free: list[set[int]] = [set() for _ in range(num_blocks.bit_length())]
        self._taken: dict[int, int] = {}
        start = 0
        for order in reversed(range(num_blocks.bit_length())):
            if num_blocks >> order & 1:
                self._free[order].add(start)
                start += 1 << order

    def fits(self, num_blocks: int) -> bool:
        """See RunAllocator."""
        return any(self._free[_order(num_blocks) :])

    def take(self, num_blocks: int) -> range:
        """See RunAllocator; from the shortest run that is long enough, and the lowest of those."""
        wanted = _order(num_blocks)
        order = next((order for order in range(wanted, len(self._free)) if self._free[order]), None)
        if order is None:
            raise BlockPoolError(f"no run of {1 << wanted} blocks is free")
        start = min(self._free[order])
        self._free[order].remove(start)
        while order > wanted:
            order -= 1
            self._free[order].add(start + (1 << order))
        self._taken[start] = wanted
        return range(start, start + (1 << wanted))

    def give_back(self, run: range) -> None:
        """See RunAllocator."""
        start, order = run.start, self._taken.pop(run.start, None)
        if order is None:
            raise BlockPoolError(f"the run at {start} was not taken")
        while (buddy := start ^ (1 << order)) in self._free[order]:
            self._free[order].remove(buddy)
            start = min(start, buddy)
            order += 1
        self._free[order].add(start)


def _order(num_blocks: int) -> int:
    """The k of the least 2ᵏ that is no less than `num_blocks`."""
    return (num_blocks - 1).bit_length()


class StaticStore(BlockStore):
    """A store whose blocks are taken by their ids."""

    def take_run(self, run: range, owner: str) -> None:
        """Takes free blocks, counted from the first one, each held once then."""
        for block_id in run:
            self._pool.share(self.first + block_id)
            self._owners[self.first + block_id] = (owner,)


class StaticTable(BlockTable):
    """One run of blocks for at most `most_tokens` tokens, taken whole when the sequence is admitted."""

    __slots__ = ("_allocator", "_most_tokens", "_run", "_runs")

    def __init__(self, store: StaticStore, block_size: int, allocator: RunAllocator, most_tokens: int, owner: str = "") -> None:
        super().__init__(store, block_size, owner=owner)
        self._runs = store
        self._allocator = allocator
        self._most_tokens = most_tokens
        self._run: range | None = None

    def blocks_needed(self, prefix: Prefix, num_tokens: int, swapped: Swapped | None = None) -> int:
        """None that others might want if a run is free; else more than there will ever be."""
        return 0 if self._allocator.fits(blocks_for(self._most_tokens, self.block_size)) else self._runs.num_blocks + 1

    def blocks_to_come(self, written: int, num_tokens: int, most_tokens: int) -> int:
        """None: it has them all."""
        return 0

    def prepare(self, written: int, num_tokens: int) -> Grant | None:
        """The whole run the first time, nothing afterwards. Raises BlockPoolError for tokens beyond it."""
        if self._run is not None:
            if num_tokens > self.num_slots:
                raise BlockPoolError(f"{num_tokens} tokens do not fit into the {self.num_slots} that were reserved")
            return Grant()
        self._run = self._allocator.take(blocks_for(self._most_tokens, self.block_size))
        self._runs.take_run(self._run, self.owner)
        self.block_ids = [self._runs.first + block_id for block_id in self._run]
        return Grant(new_block_ids=self.block_ids.copy())

    def release(self) -> None:
        """Gives the run back."""
        super().release()
        if self._run is not None:
            self._allocator.give_back(self._run)
            self._run = None


class StaticManager(KVCacheManager):
    """Tables that reserve room for a prompt and the `max_output` tokens that any answer may have, `max_model_len` in all at most; for
    `max_model_len` without a `max_output`. `allocate` makes an allocator of so many blocks. With a `first_window_block` there are as many
    blocks for the layers that see a window, from that id on, which are reserved for all tokens alike."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        allocate: Callable[[int], RunAllocator],
        *,
        max_model_len: int,
        max_output: int | None = None,
        first_window_block: int | None = None,
    ) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=False)
        firsts = [0] if first_window_block is None else [0, first_window_block]
        self._stores = [StaticStore(num_blocks, first=first) for first in firsts]
        self._allocators = [allocate(num_blocks) for _ in firsts]
        self.store = self._stores[0] if first_window_block is None else MixedStore(*self._stores)
        self._max_model_len = max_model_len
        self._max_output = max_output

    def new_table(
        self, token_ids: list[int], *, adapter: str | None = None, salt: str | None = None, owner: str = "", keep_all: bool = False
    ) -> SequenceTable:
        """A table that is empty until its sequence is admitted."""
        most = self._max_model_len if self._max_output is None else min(self._max_model_len, len(token_ids) + self._max_output)
        own = zip(self._stores, self._allocators, strict=True)
        tables = [StaticTable(store, self.block_size, allocator, most, owner) for store, allocator in own]
        return tables[0] if len(tables) == 1 else MixedTable(*tables)


def one_for_all(num_blocks: int, block_size: int, *, max_model_len: int, first_window_block: int | None = None) -> StaticManager:
    """The maximum length for each request."""

    def allocate(count: int) -> FixedRuns:
        return FixedRuns(count, blocks_for(max_model_len, block_size))

    return StaticManager(num_blocks, block_size, allocate, max_model_len=max_model_len, first_window_block=first_window_block)


def buddies(
    num_blocks: int, block_size: int, *, max_model_len: int, max_output: int, first_window_block: int | None = None
) -> StaticManager:
    """Prompt and longest answer, rounded up to a power of two of blocks."""
    return StaticManager(
        num_blocks, block_size, Buddies, max_model_len=max_model_len, max_output=max_output, first_window_block=first_window_block
    )
