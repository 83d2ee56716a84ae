import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kvcache.block_pool import BlockPoolError
from octavo.kvcache.block_table import BlockTable, Grant, Prefix, blocks_for
from octavo.kvcache.manager import KVCacheManager


def plain_table(num_blocks, block_size):
    """A table of a store of its own, without a prefix index."""
    manager = KVCacheManager(num_blocks, block_size, prefix_caching=False)
    return manager.new_table([]), manager.store


def new_blocks(table, num_tokens):
    """Appended ids when nothing is written before; None if the pool is too small."""
    grant = table.prepare(num_tokens, num_tokens)
    return None if grant is None else grant.new_block_ids


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_for(tokens, blocks):
    assert blocks_for(tokens, 16) == blocks


def test_blocks_come_only_as_tokens_come():
    table, _ = plain_table(4, 4)
    assert new_blocks(table, 0) == []
    assert new_blocks(table, 1) == [0]
    assert new_blocks(table, 4) == []
    assert new_blocks(table, 9) == [1, 2]
    assert new_blocks(table, 3) == []
    assert table.block_ids == [0, 1, 2]
    assert table.num_slots == 12


def test_a_pool_that_is_too_small_gives_nothing():
    table, store = plain_table(3, 2)
    other = BlockTable(store, 2)
    assert new_blocks(other, 4) == [0, 1]
    assert new_blocks(table, 3) is None
    assert (table.block_ids, store.num_free) == ([], 1)
    assert new_blocks(table, 2) == [2]
    assert new_blocks(table, 3) is None
    assert table.block_ids == [2]


def test_release_gives_everything_back():
    table, store = plain_table(3, 2)
    new_blocks(table, 6)
    table.release()
    assert (store.num_free, table.block_ids, table.num_slots) == (3, [], 0)
    assert store.take(3) == [0, 1, 2]
    table.release()
    assert store.num_free == 0


def test_the_list_of_new_blocks_is_not_the_table():
    table, _ = plain_table(2, 1)
    new = new_blocks(table, 1)
    new.append(99)
    assert table.block_ids == [0]


@given(st.sampled_from([1, 2, 16]), st.lists(st.integers(0, 40), max_size=30))
def test_less_than_a_block_is_unused(block_size, lengths):
    table, store = plain_table(50, block_size)
    most = 0
    for length in lengths:
        most = max(most, length)
        new_blocks(table, length)
        assert 0 <= table.num_slots - most <= block_size - 1
        assert store.num_used == len(table.block_ids) == len(set(table.block_ids))


# --- shared blocks


def test_a_fork_shares_every_block_and_frees_none_while_the_other_lives():
    table, store = plain_table(4, 4)
    new_blocks(table, 10)
    fork = table.fork(10)
    assert fork.block_ids == table.block_ids == [0, 1, 2]
    assert store.num_used == 3
    table.release()
    assert (store.num_used, fork.block_ids) == (3, [0, 1, 2])
    fork.release()
    assert store.num_used == 0


def test_a_fork_of_fewer_tokens_shares_their_blocks_only():
    table, store = plain_table(4, 4)
    new_blocks(table, 12)
    fork = table.fork(5)
    assert fork.block_ids == [0, 1]
    table.release()
    assert store.num_used == 2


def test_the_first_write_to_a_shared_block_copies_that_block_and_only_that():
    table, _ = plain_table(8, 4)
    new_blocks(table, 10)
    fork = table.fork(10)
    assert fork.must_copy(10)
    assert fork.prepare(10, 11) == Grant([], [(2, 3)], [(2, 3, 2)])
    assert (fork.block_ids, table.block_ids) == ([0, 1, 3], [0, 1, 2])
    # Each has a last block of its own now.
    assert not table.must_copy(10)
    assert table.prepare(10, 11) == Grant()
    assert fork.prepare(11, 13) == Grant([4], [], [])


def test_a_fork_at_the_end_of_a_block_copies_nothing():
    table, store = plain_table(8, 4)
    new_blocks(table, 8)
    fork = table.fork(8)
    assert not fork.must_copy(8)
    assert fork.prepare(8, 9) == Grant([2], [], [])
    assert table.prepare(8, 9) == Grant([3], [], [])
    assert store.num_used == 4


def test_several_writers_make_one_copy_fewer_than_they_are():
    table, store = plain_table(8, 4)
    new_blocks(table, 6)
    tables = [table, *(table.fork(6) for _ in range(3))]
    copies = [copy for each in tables for copy in each.prepare(6, 7).copies]
    assert copies == [(1, 2, 2), (1, 3, 2), (1, 4, 2)]
    assert store.num_used == 1 + 4


def test_shared_blocks_that_are_rewritten_whole_are_replaced_without_a_copy():
    table, _ = plain_table(8, 2)
    new_blocks(table, 6)
    fork = table.fork(6)
    assert fork.prepare(1, 6) == Grant([], [(0, 3), (1, 4), (2, 5)], [(0, 3, 1)])
    assert (fork.block_ids, table.block_ids) == ([3, 4, 5], [0, 1, 2])
    assert table.fork(6).prepare(4, 6) == Grant([], [(2, 6)], [])


def test_nothing_changes_where_a_copy_finds_no_block():
    table, store = plain_table(3, 4)
    new_blocks(table, 6)
    fork = table.fork(6)
    assert fork.prepare(6, 12) is None
    assert (fork.block_ids, store.num_free) == ([0, 1], 1)
    assert fork.prepare(6, 8) == Grant([], [(1, 2)], [(1, 2, 2)])


def test_a_token_computed_without_being_written_copies_nothing():
    table, _ = plain_table(4, 4)
    new_blocks(table, 6)
    assert table.fork(6).prepare(6, 6) == Grant()


def test_what_is_free_and_unknown_can_t_be_adopted():
    table, _ = plain_table(2, 4)
    with pytest.raises(BlockPoolError, match="block 1 is free"):
        table.adopt(Prefix([1], 4, 0))


@pytest.mark.parametrize("collides", [False, True])
def test_a_block_that_is_written_to_is_no_longer_what_lies_in_swap_space(collides):
    """A sequence goes to swap space; one forked off it within a block, now that block's only holder, goes on there. The first brings its
    own tokens back all the same."""
    # Where every digest is the same, no block but the first can be found; those after it are written to where they are.
    manager = KVCacheManager(8, 4, num_swap_blocks=4, prefix_caching=collides, hash_block=lambda parent, contents: b"same")
    first, other = list(range(8)), [0, 1, 2, 3, 4, 5, 9, 9]
    table = manager.new_table(first)
    table.prepare(0, 8)
    table.commit(8)
    fork = table.fork(6, other)
    swapped, moved = table.swap_out(8)
    assert [slot for _, slot in moved] == swapped.slots
    table.release()
    assert fork.prepare(6, 8) == Grant()
    own = fork.block_ids[1]
    copies = table.swap_in(table.find(8), swapped)
    assert [(slot, table.block_ids[1]) for slot in swapped.slots[1:]] == copies
    assert table.block_ids[0] == fork.block_ids[0]
    assert table.block_ids[1] != own
