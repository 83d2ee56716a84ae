"""Two kinds of blocks: what a sequence holds of either, what is found of it, and how the two keep step."""

import pytest

from octavo.kvcache.block_pool import BlockPoolError
from octavo.kvcache.block_table import Prefix
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.per_kind import PerKind, fits, total
from octavo.kvcache.prefix_index import NULL_BLOCK
from octavo.kvcache.window import Window, longest_held

GONE = NULL_BLOCK


def cache(full=16, own=8, window=8, step=4, **options):
    return KVCacheManager(full, 4, window=Window(window, step), num_window_blocks=own, **options)


def compute(manager, tokens, step=4):
    """A table with all of `tokens` computed, and what was found of them."""
    table = manager.new_table(tokens)
    prefix = table.find(len(tokens))
    table.adopt(prefix)
    computed = prefix.num_tokens
    while computed < len(tokens):
        end = min(len(tokens), computed + step)
        assert table.prepare(computed, end) is not None
        table.commit(end)
        table.slide(end)
        computed = end
    return table, prefix


def test_one_kind_grows_and_the_other_stays_with_its_window():
    manager = cache()
    table, _ = compute(manager, list(range(40)))
    assert len(table.full.held) == 10
    # Token 40 sees 33 and on, of block 8, and block 9 would be the parent of the next.
    assert table.window_block_ids == [GONE] * 8 + table.window.held
    assert len(table.window.held) == 2
    assert set(table.block_ids) <= set(range(16))
    assert set(table.window.held) <= set(range(16, 24))
    assert manager.store.num_used == 12
    table.release()
    assert manager.store.num_used == 0


def test_changes_name_places_of_the_window_by_their_complement():
    manager = cache(prefix_caching=False)
    table = manager.new_table([0] * 40)
    grant = table.prepare(0, 16)
    assert (grant.new_block_ids, grant.window_block_ids) == ([0, 1, 2, 3], [16, 17, 18, 19])
    assert table.slide(16) == [(~0, GONE), (~1, GONE)]
    child = table.fork(15)
    grant = table.prepare(15, 16)
    # Either kind copies the block that it shares.
    assert grant.replaced == [(3, 4), (~3, table.window_block_ids[3])]
    assert grant.copies == [(3, 4, 3), (19, table.window_block_ids[3], 3)]
    child.release()
    table.release()
    assert manager.store.num_used == 0


def test_neither_kind_takes_a_block_where_the_other_has_none():
    for full, own in ((2, 8), (8, 2)):
        manager = cache(full=full, own=own)
        table = manager.new_table(list(range(12)))
        assert table.prepare(0, 12) is None
        assert (table.block_ids, table.window_block_ids, manager.store.num_used) == ([], [], 0)
        assert table.prepare(0, 8) is not None
        assert manager.store.num_free == PerKind(full - 2, own - 2)


def test_a_hit_needs_all_of_one_kind_and_a_window_of_the_other():
    manager = cache()
    tokens = list(range(40))
    compute(manager, tokens)[0].release()
    found = manager.new_table([*tokens, 1, 2]).find(42)
    assert found.num_tokens == 40
    assert found.block_ids == list(range(10))
    assert found.window.block_ids[:8] == [GONE] * 8
    assert GONE not in found.window.block_ids[8:]
    # Once the window's blocks of its end are gone, what is there in full is of no use.
    store = manager.store
    taken = store.window.take(8)
    assert manager.new_table([*tokens, 1, 2]).find(42).num_tokens == 0
    assert store.full.num_cached == 10
    for block in taken:
        store.window.release(block)
    # And the other way round.
    compute(manager, tokens)[0].release()
    assert manager.new_table(tokens).find(40).num_tokens == 40
    for _ in range(3):
        store.full.take(1)
    last = store.full.num_cached
    store.full.take(16 - 3 - last + 1)
    found = manager.new_table(tokens).find(40)
    assert found.num_tokens < 40
    assert len(found.window.block_ids) == len(found.block_ids) == found.num_tokens // 4


def test_a_prefix_is_that_of_the_longest_window_that_is_there():
    manager = cache(own=6)
    tokens = list(range(24))
    compute(manager, tokens)[0].release()
    (end,) = (manager.new_table(tokens).find(24).window.block_ids[-1:],)
    manager.store.window.hold(end[0])
    # All but the last block of the window's kind are used for something else.
    manager.store.window.take(5)
    assert manager.new_table(tokens).find(24).num_tokens == 0
    assert len(manager.new_table(tokens).full.find(24).block_ids) == 6


def test_a_reset_needs_both_kinds_and_a_new_start_has_both():
    manager = cache()
    table, _ = compute(manager, list(range(20)))
    assert not manager.reset()
    table.release()
    assert manager.store.num_cached > 5
    evicted, changes = manager.store.num_evicted, [part.changes for part in manager.store.parts]
    store = manager.start_over()
    assert (store.num_blocks, store.num_cached, store.num_evicted) == (24, 0, evicted)
    assert [part.changes for part in store.parts] == [count + 1 for count in changes]
    assert manager.reset()


def test_blocks_are_described_in_the_order_of_their_ids():
    manager = cache(full=3, own=2)
    manager.new_table(list(range(4)), owner="a").prepare(0, 4)
    assert [(each.block_id, each.owners) for each in manager.store.describe(0, 10)] == [(0, ["a"]), (1, []), (2, []), (3, ["a"]), (4, [])]
    assert [each.block_id for each in manager.store.describe(2, 4)] == [2, 3]
    with pytest.raises(BlockPoolError, match="block 3 is not one of the pool's 3"):
        manager.store.full.is_shared(3)
    with pytest.raises(BlockPoolError, match="block 2 is not one of the pool's 2"):
        manager.store.window.is_shared(2)


def test_room_is_counted_for_each_kind():
    table = cache(step=12).new_table(list(range(1000)))
    empty = table.find(1000)
    # All tokens, and 12 with the 7 before them.
    assert table.blocks_needed(empty, 1000) == PerKind(250, 6)
    assert table.blocks_needed(empty, 9) == PerKind(3, 3)
    assert table.most_step(0) == 8 * 4
    assert total([PerKind(1, 2), 3, PerKind(4, 5)]) == PerKind(8, 10)
    assert fits(3, 3)
    assert not fits(4, 3)
    assert fits(PerKind(3, 2), PerKind(3, 2))
    assert not fits(PerKind(4, 0), PerKind(3, 9))
    assert not fits(PerKind(0, 4), PerKind(9, 3))


def test_swapping_copies_blocks_of_both_kinds_for_the_tokens_that_either_would_compute_again():
    manager = cache(num_swap_blocks=20, num_window_swap_blocks=10)
    tokens = list(range(40))
    table, _ = compute(manager, tokens)
    # All ten blocks of the one kind, and two that the window still sees.
    assert table.to_swap(40) == (12, 40)
    same, _ = compute(manager, tokens)
    assert same.to_swap(40) == (12, 0)
    other, _ = compute(manager, [*tokens[:38], 99, 98])
    # Nine blocks of the one kind are held by others too, but the window's begin too late for what follows them.
    assert other.to_swap(40) == (12, 40)
    # What is in swap space needn't be copied.
    _, copies = other.swap_out(40)
    assert [block for block, _ in copies] == [*other.block_ids, *other.window_block_ids[-2:]]
    assert other.to_swap(40) == (0, 40)


def test_a_prefix_of_one_kind_is_refused():
    with pytest.raises(BlockPoolError, match="a prefix of one kind"):
        cache().new_table([1, 2]).adopt(Prefix([], 0, 0))
    with pytest.raises(ValueError, match="need to know the window"):
        KVCacheManager(4, 4, num_window_blocks=2)


@pytest.mark.parametrize(
    ("blocks", "window", "own", "held"),
    [(5, None, 0, 20), (5, 8, 0, None), (2, 8, 0, 8), (50, 8, 3, 200), (50, 8, 2, 8), (1, 8, 3, 4)],
)
def test_the_longest_sequence_that_is_held(blocks, window, own, held):
    assert longest_held(4, blocks, None if window is None else Window(window, 4), own) == held
