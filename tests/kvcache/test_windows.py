"""Sliding windows: which blocks are given back, which stay, and what is found of sequences that have lost their beginning."""

import pytest

from octavo.kvcache.block_pool import BlockPoolError
from octavo.kvcache.block_table import Prefix
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.prefix_index import NULL_BLOCK
from octavo.kvcache.window import Window

GONE = NULL_BLOCK


class Cache:
    """Blocks of four tokens, and sequences that are computed `step` tokens at a time."""

    def __init__(self, window, num_blocks=32, step=4, **options):
        self.manager = KVCacheManager(num_blocks, 4, window=Window(window, step), **options)
        self.store = self.manager.store
        self.step = step

    def compute(self, tokens):
        """A table with all of `tokens` computed, what was found of them, in tokens, and the most blocks that it held."""
        table = self.manager.new_table(tokens)
        prefix = table.find(len(tokens))
        table.adopt(prefix)
        computed, most = prefix.num_tokens, len(table.held)
        while computed < len(tokens):
            end = min(len(tokens), computed + self.step)
            assert table.prepare(computed, end) is not None
            most = max(most, len(table.held))
            table.commit(end)
            table.slide(end)
            computed = end
        return table, prefix.num_tokens, most

    def find(self, tokens):
        return self.manager.new_table(tokens).find(len(tokens))


@pytest.mark.parametrize(
    ("window", "computed", "dropped"),
    [
        (8, 11, 1),  # token 11 sees 4 to 11
        (8, 10, 0),
        (8, 15, 2),
        (9, 12, 1),
        (9, 11, 0),
        (100, 20, 0),
        # The last full block stays, since the next one follows it.
        (1, 11, 1),
        (1, 12, 2),
        (2, 12, 2),
    ],
)
def test_blocks_are_given_back_once_no_token_to_come_sees_them(window, computed, dropped):
    cache = Cache(window)
    table, _, _ = cache.compute(list(range(computed)))
    assert table.block_ids[:dropped] == [GONE] * dropped
    assert (table.num_dropped, len(table.held)) == (dropped, -(-computed // 4) - dropped)
    assert cache.store.num_used == len(table.held)
    assert table.slide(computed) == []


def test_without_prefix_caching_nothing_stays_behind_the_window():
    cache = Cache(1, prefix_caching=False)
    table, _, _ = cache.compute(list(range(12)))
    assert (table.block_ids, cache.store.num_used) == ([GONE] * 3, 0)


def test_what_was_given_back_is_told_by_its_place():
    cache = Cache(8)
    table = cache.manager.new_table(list(range(16)))
    table.prepare(0, 16)
    table.commit(16)
    assert table.slide(15) == [(0, GONE), (1, GONE)]
    assert table.slide(16) == []
    assert table.slide(19) == [(2, GONE)]


@pytest.mark.parametrize("window", [1, 3, 4, 5, 8, 13, 30])
@pytest.mark.parametrize("step", [1, 3, 4, 7, 16])
@pytest.mark.parametrize("caching", [True, False])
def test_no_more_is_held_than_the_window_and_a_step(window, step, caching):
    cache = Cache(window, step=step, prefix_caching=caching)
    table, _, most = cache.compute([place % 50 for place in range(120)])
    assert most <= cache.manager.window.most_blocks(4) <= -(-(max(window - 1, 4) + step) // 4) + 1
    table.release()
    assert cache.store.num_used == 0


def test_blocks_behind_the_window_are_found_until_they_are_reused():
    cache = Cache(8, num_blocks=6)
    tokens = list(range(20))
    table, _, _ = cache.compute(tokens)
    # Of five blocks the first three are given back, and free.
    assert table.num_dropped == 3
    assert cache.find(tokens[:8]).block_ids == [0, 1]
    assert cache.store.num_cached == 5
    # Block 5 was never used, so it goes first; then the one that was given back first.
    assert cache.store.take(2) == [5, 0]
    # The first block is gone: what needs it isn't found, what lies beyond its window is.
    assert cache.find(tokens[:7]).block_ids == []
    assert cache.find(tokens[:11]).block_ids == []
    assert cache.find([*tokens[:12], 99]).block_ids == [GONE, 1, 2]
    assert cache.find(tokens[:13]) == Prefix([GONE, 1, 2], 12, 3)
    # Of a prompt that is there whole, the last token is computed again, and sees one more.
    assert cache.find(tokens[:12]) == Prefix([GONE, 1, 2], 12, 3)
    assert cache.find(tokens[:16]) == Prefix([GONE, GONE, 2, 3], 16, 4)
    assert cache.find(tokens) == Prefix([GONE, GONE, GONE, 3, 4], 20, 5)


def test_a_token_computed_again_may_need_an_older_block():
    """A window of one more than a block: token 7 sees 3 to 7, token 8 sees 4 to 8."""
    cache = Cache(5)
    cache.compute(list(range(8)))[0].release()
    first = cache.find(list(range(8))).block_ids[0]
    cache.store.hold(cache.find(list(range(8))).block_ids[1])
    for _ in range(cache.store.num_free):
        if cache.store._index.get(first) is None:
            break
        cache.store.take(1)
    assert cache.find(list(range(8))) == Prefix([], 0, 0)
    assert cache.find(list(range(9))).num_tokens == 8


def test_other_beginnings_are_not_taken_for_the_one_that_is_gone():
    """The last blocks of two sequences are alike, and what they follow is known only by what it was."""
    cache = Cache(4, num_blocks=8)
    end = [5, 6, 7, 8, 9, 10, 11, 12]
    first, _, _ = cache.compute([1, 1, 1, 1, *end])
    first.release()
    taken = cache.store.take(6)
    assert cache.find([1, 1, 1, 1, *end]).num_tokens == 12
    assert cache.find([2, 2, 2, 2, *end]).num_tokens == 0
    for block in taken:
        cache.store.release(block)
    second, found, _ = cache.compute([2, 2, 2, 2, *end])
    assert found == 0
    assert not set(second.held) & set(cache.find([1, 1, 1, 1, *end]).held)


def test_what_is_gone_is_forgotten_with_the_last_that_followed_it():
    cache = Cache(4, num_blocks=5)
    cache.compute(list(range(20)))[0].release()
    index = cache.store._index
    assert (len(index), len(index._by_digest)) == (5, 5)
    # In the order in which the blocks were given back: the first ones while the sequence ran, the last one first at its end.
    sizes = []
    for _ in range(5):
        cache.store.take(1)
        sizes.append((len(index), len(index._by_digest)))
    assert sizes == [(4, 5), (3, 5), (2, 5), (1, 5), (0, 0)]


def test_a_block_computed_again_takes_the_place_of_the_one_that_is_gone():
    cache = Cache(8, num_blocks=8)
    tokens = list(range(20))
    cache.compute(tokens)[0].release()
    # Three that were never used, and the first.
    for block in cache.store.take(4):
        cache.store.release(block)
    assert cache.find(tokens[:8]).block_ids == []
    again = cache.manager.new_table(tokens[:6])
    again.prepare(0, 6)
    assert again.commit(6) == []
    assert cache.store._index.get(again.block_ids[0]).num_children == 1
    assert cache.find(tokens[:8]).block_ids == [again.block_ids[0], 1]


def test_a_table_goes_on_where_a_digest_is_another_s():
    """With a hash that is no good, nothing after the first block can be found, and the window is passed nevertheless."""
    cache = Cache(4, hash_block=lambda parent, contents: b"same")
    table, _, most = cache.compute(list(range(60)))
    assert cache.store.num_cached == 1
    assert most <= cache.manager.window.most_blocks(4)
    assert (table.num_dropped, len(table.held)) == (14, 1)


def test_a_fork_begins_with_what_the_last_token_sees():
    cache = Cache(8)
    tokens = list(range(20))
    table, _, _ = cache.compute(tokens)
    longer = tokens.copy()
    fork = table.fork(20, longer, owner="fork")
    assert fork.block_ids == table.block_ids
    assert (fork.num_dropped, fork.num_registered) == (3, 5)
    table.release()
    assert cache.store.num_used == 2
    assert fork.prepare(20, 24) is not None
    longer += [3, 2, 1, 0]
    fork.commit(24)
    assert fork.slide(27) == [(3, GONE), (4, GONE)]
    fork.release()
    assert cache.store.num_used == 0


def test_room_for_a_long_sequence_is_that_of_its_window():
    cache = Cache(8, num_blocks=32, step=12)
    tokens = list(range(1000))
    table = cache.manager.new_table(tokens)
    # 12 tokens, and the 7 before them, lie in six blocks at most.
    assert table.blocks_needed(Prefix([], 0, 0), 1000) == 6
    assert table.blocks_needed(Prefix([], 0, 0), 9) == 3
    table.prepare(0, 12)
    assert table.blocks_to_come(0, 1000, 1100) == 6 - 3 + 1
    assert table.blocks_to_come(0, 12, 12) == 0
    # Never more than there is, or it would wait for ever.
    small = Cache(8, num_blocks=4, step=100).manager.new_table(tokens)
    assert small.blocks_needed(Prefix([], 0, 0), 1000) == 4
    assert small.most_step(0) == 16


def test_a_store_without_windows_insists_on_the_ends_of_chains():
    manager = KVCacheManager(4, 2)
    table = manager.new_table([1, 2, 3, 4])
    table.prepare(0, 4)
    table.commit(4)
    with pytest.raises(BlockPoolError, match="is dropped before 1 cached blocks"):
        manager.store._index.remove(table.block_ids[0])


def test_a_parent_that_can_t_be_found_is_refused():
    manager = KVCacheManager(4, 2)
    table = manager.new_table([1, 2, 3, 4])
    table.prepare(0, 4)
    table._keys.extend(2)
    with pytest.raises(BlockPoolError, match="which can't be"):
        manager.store.register(1, table._keys, 1, 0)


def test_a_fork_of_what_can_not_be_registered_slides_as_well() -> None:
    manager = KVCacheManager(4, 2, hash_block=lambda parent, contents: b"same", window=Window(2, 12))
    table = manager.new_table(list(range(8)))
    assert table.prepare(0, 8) is not None
    table.commit(8)
    held = table.fork(8)
    # Only the first block is registered, since the others collide with it.
    assert held.num_registered == 1
    assert held.slide(7) == [(0, NULL_BLOCK), (1, NULL_BLOCK), (2, NULL_BLOCK)]
    assert table.slide(7) == [(0, NULL_BLOCK), (1, NULL_BLOCK), (2, NULL_BLOCK)]
    assert manager.store.num_used == 1
