import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import patient

from octavo.kvcache.block_pool import BlockPool, BlockPoolError


def test_blocks_are_distinct_and_counted():
    pool = BlockPool(5)
    first, second = pool.take(2), pool.take(3)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert (pool.num_free, pool.num_used) == (0, 5)
    assert all(pool.reference_count(block) == 1 for block in range(5))


def test_the_block_free_for_longest_is_taken_first():
    pool = BlockPool(3)
    assert pool.take(3) == [0, 1, 2]
    for block in (1, 2, 0):
        pool.release(block)
    assert pool.take(2) == [1, 2]
    pool.release(1)
    assert pool.take(2) == [0, 1]


def test_a_shared_block_is_free_only_after_its_last_release():
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.share(block)
    pool.share(block)
    assert pool.reference_count(block) == 3
    assert [pool.release(block) for _ in range(3)] == [False, False, True]
    assert (pool.num_free, pool.reference_count(block)) == (2, 0)


def test_taking_nothing_changes_nothing():
    pool = BlockPool(1)
    assert pool.take(0) == []
    assert pool.take(1) == [0]
    assert pool.take(0) == []
    assert pool.num_free == 0


def test_taking_more_than_is_free_takes_none():
    pool = BlockPool(3)
    pool.take(1)
    with pytest.raises(BlockPoolError, match="3 blocks were taken from a pool with 2 free"):
        pool.take(3)
    with pytest.raises(BlockPoolError):
        pool.take(-1)
    assert pool.num_free == 2
    assert pool.take(2) == [1, 2]


def test_double_free_is_an_error():
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.release(block)
    with pytest.raises(BlockPoolError, match="block 0 was given back twice"):
        pool.release(block)
    assert pool.num_free == 2


def test_a_free_block_can_be_shared_from_anywhere_in_the_list():
    pool = BlockPool(4)
    for block in (2, 0, 3):
        pool.share(block)
        assert pool.reference_count(block) == 1
    assert pool.num_free == 1
    assert pool.take(1) == [1]
    pool.release(3)
    assert pool.take(1) == [3]


def test_a_block_can_be_given_back_to_be_reused_first():
    pool = BlockPool(4)
    assert pool.take(3) == [0, 1, 2]
    pool.release(0)
    pool.release(1, reuse_first=True)
    pool.release(2, reuse_first=True)
    assert pool.take(4) == [2, 1, 3, 0]


@pytest.mark.parametrize("block", [-1, 2, 10**6])
@pytest.mark.parametrize("operation", ["share", "release", "reference_count"])
def test_an_unknown_id_is_an_error(block, operation):
    pool = BlockPool(2)
    pool.take(2)
    with pytest.raises(BlockPoolError, match=f"block {block} is not one of the pool's 2"):
        getattr(pool, operation)(block)


def test_a_pool_needs_a_block():
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0)


def test_a_million_blocks_are_built_fast_and_small():
    times = []
    for _ in range(3):
        start = time.perf_counter()
        pool = BlockPool(1_000_000)
        times.append(time.perf_counter() - start)
    assert min(times) < patient(0.3)
    arrays = (pool._next, pool._previous, pool._references)
    assert sum(len(array) * array.itemsize for array in arrays) <= 12_000_008
    assert pool.take(1) == [0]


@given(
    st.integers(1, 8), st.lists(st.tuples(st.sampled_from(["take", "share", "release", "release first"]), st.integers(0, 7)), max_size=80)
)
def test_any_order_of_operations_agrees_with_a_plain_model(num_blocks, operations):
    pool = BlockPool(num_blocks)
    free, held = list(range(num_blocks)), Counter()
    for name, value in operations:
        if name == "take" and value <= len(free):
            assert pool.take(value) == free[:value]
            held.update(free[:value])
            del free[:value]
        elif name == "share" and value < num_blocks:
            pool.share(value)
            held[value] += 1
            free = [block for block in free if block != value]
        elif name.startswith("release") and held[value] > 0:
            held[value] -= 1
            first = name == "release first"
            assert pool.release(value, reuse_first=first) == (held[value] == 0)
            if held[value] == 0:
                free.insert(0 if first else len(free), value)
        assert pool.num_free == len(free)
        assert pool.num_free + pool.num_used == num_blocks
        assert all(pool.reference_count(block) == held[block] for block in range(num_blocks))
    assert pool.take(pool.num_free) == free
