"""The static allocators that the paged cache is measured against: runs never overlap, join again, and are as long as they say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.static_allocation import Buddies, FixedRuns, buddies, one_for_all
from octavo.kvcache.block_pool import BlockPoolError
from octavo.kvcache.block_table import Grant, Prefix

NOTHING = Prefix([], 0, 0)


def test_fixed_runs():
    runs = FixedRuns(11, 3)
    assert [runs.take(3), runs.take(1), runs.take(2)] == [range(3), range(3, 6), range(6, 9)]
    # Two blocks are left over, and no run.
    assert not runs.fits(1)
    runs.give_back(range(3, 6))
    assert not runs.fits(4)
    assert runs.take(2) == range(3, 6)


def test_a_run_too_long_is_halved_until_it_is_not():
    runs = Buddies(16)
    assert runs.take(3) == range(4)
    assert runs.take(1) == range(4, 5)
    assert runs.take(2) == range(6, 8)
    assert runs.take(8) == range(8, 16)
    assert runs.take(1) == range(5, 6)
    assert not runs.fits(1)


def test_halves_join_when_both_are_free():
    runs = Buddies(8)
    quarters = [runs.take(2) for _ in range(4)]
    runs.give_back(quarters[1])
    runs.give_back(quarters[2])
    # Four blocks in a row are free, but they are not the two halves of one run.
    assert not runs.fits(3)
    runs.give_back(quarters[0])
    assert runs.fits(4)
    assert not runs.fits(5)
    runs.give_back(quarters[3])
    assert runs.take(8) == range(8)


def test_a_pool_of_any_size_is_used_whole():
    runs = Buddies(13)
    assert [runs.take(8), runs.take(4), runs.take(1)] == [range(8), range(8, 12), range(12, 13)]
    assert not runs.fits(1)


@pytest.mark.parametrize("runs", [FixedRuns(8, 4), Buddies(8)], ids=["fixed", "buddies"])
def test_accounting_is_asserted(runs):
    with pytest.raises(BlockPoolError, match="not taken"):
        runs.give_back(range(4))
    taken = [runs.take(4), runs.take(4)]
    with pytest.raises(BlockPoolError, match="is free"):
        runs.take(1)
    runs.give_back(taken[0])
    with pytest.raises(BlockPoolError, match="not taken"):
        runs.give_back(taken[0])


@given(st.integers(1, 70), st.lists(st.one_of(st.integers(1, 40), st.integers(-8, -1)), max_size=60))
def test_buddies_never_overlap_and_all_come_back(num_blocks, events):
    """A number over 0 takes a run, one under 0 gives back one of those taken."""
    runs, taken = Buddies(num_blocks), []
    for event in events:
        if event < 0:
            if taken:
                runs.give_back(taken.pop(event % len(taken)))
        elif runs.fits(event):
            run = runs.take(event)
            assert event <= len(run) < 2 * event
            assert len(run) & (len(run) - 1) == 0
            assert run.start % len(run) == 0
            assert run.stop <= num_blocks
            taken.append(run)
        else:
            with pytest.raises(BlockPoolError):
                runs.take(event)
        held = [block for run in taken for block in run]
        assert len(held) == len(set(held))
    for run in taken:
        runs.give_back(run)
    orders = [order for order in range(8) if num_blocks >> order & 1]
    assert [order for order, free in enumerate(runs._free) for _ in free] == orders


def test_a_table_takes_its_run_once_and_gives_it_back():
    manager = one_for_all(8, 4, max_model_len=14)
    first, second, third = (manager.new_table([1, 2, 3]) for _ in range(3))
    assert first.blocks_needed(NOTHING, 3) == 0
    assert first.prepare(0, 3) == Grant([0, 1, 2, 3], [], [])
    assert first.prepare(3, 14) == Grant()
    assert (first.blocks_to_come(3, 4, 13), manager.store.num_used) == (0, 4)
    assert second.prepare(0, 1) == Grant([4, 5, 6, 7], [], [])
    # More than the pool will ever have: it waits.
    assert third.blocks_needed(NOTHING, 3) == 9
    with pytest.raises(BlockPoolError, match="do not fit"):
        first.prepare(14, 17)
    first.release()
    assert (first.block_ids, manager.store.num_used) == ([], 4)
    assert third.blocks_needed(NOTHING, 3) == 0
    assert third.prepare(0, 3).new_block_ids == [0, 1, 2, 3]
    second.release()
    third.release()
    assert manager.store.num_used == 0


@pytest.mark.parametrize(("prompt", "blocks"), [(1, 2), (3, 2), (4, 4), (11, 4), (12, 8), (50, 8)])
def test_buddies_reserve_prompt_and_longest_answer(prompt, blocks):
    """Rounded up, of at most the maximum length."""
    manager = buddies(16, 4, max_model_len=30, max_output=5)
    table = manager.new_table([0] * prompt)
    assert len(table.prepare(0, min(prompt, 29)).new_block_ids) == blocks
