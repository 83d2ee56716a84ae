import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.block_table import BlockTable, blocks_for


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_for(tokens, blocks):
    assert blocks_for(tokens, 16) == blocks


def test_blocks_come_only_as_tokens_come():
    table = BlockTable(BlockPool(4), 4)
    assert table.ensure(0) == []
    assert table.ensure(1) == [0]
    assert table.ensure(4) == []
    assert table.ensure(9) == [1, 2]
    assert table.ensure(3) == []
    assert table.block_ids == [0, 1, 2]
    assert (table.num_slots, table.unused_slots(9)) == (12, 3)


def test_a_pool_that_is_too_small_gives_nothing():
    pool = BlockPool(3)
    table, other = BlockTable(pool, 2), BlockTable(pool, 2)
    assert other.ensure(4) == [0, 1]
    assert table.ensure(3) is None
    assert (table.block_ids, pool.num_free) == ([], 1)
    assert table.ensure(2) == [2]
    assert table.ensure(3) is None
    assert table.block_ids == [2]


def test_release_gives_everything_back_and_the_end_first():
    pool = BlockPool(3)
    table = BlockTable(pool, 2)
    table.ensure(6)
    table.release()
    assert (pool.num_free, table.block_ids, table.num_slots) == (3, [], 0)
    assert pool.take(3) == [2, 1, 0]
    table.release()
    assert pool.num_free == 0


def test_the_list_of_new_blocks_is_not_the_table():
    table = BlockTable(BlockPool(2), 1)
    new = table.ensure(1)
    new.append(99)
    assert table.block_ids == [0]


@given(st.sampled_from([1, 2, 16]), st.lists(st.integers(0, 40), max_size=30))
def test_less_than_a_block_is_unused(block_size, lengths):
    pool = BlockPool(50)
    table = BlockTable(pool, block_size)
    most = 0
    for length in lengths:
        most = max(most, length)
        table.ensure(length)
        assert 0 <= table.unused_slots(most) <= block_size - 1
        assert pool.num_used == len(table.block_ids) == len(set(table.block_ids))
