"""What is found by what it holds, and in which order it goes."""

import subprocess
import sys

import pytest

from octavo.kvcache.block_hash import DIGEST_BYTES, BlockKeys, CacheScope, hash_block
from octavo.kvcache.block_pool import BlockPoolError
from octavo.kvcache.block_table import Grant
from octavo.kvcache.manager import KVCacheManager


class Cache:
    """A manager of blocks of two tokens, and sequences that are computed at once."""

    def __init__(self, num_blocks=16, **options):
        self.manager = KVCacheManager(num_blocks, 2, **options)
        self.store = self.manager.store

    def compute(self, tokens, **scope):
        """A table with all of `tokens` computed, with what was found of them, in tokens."""
        table = self.manager.new_table(tokens, **scope)
        prefix = table.find(len(tokens))
        table.adopt(prefix)
        assert table.prepare(prefix.num_tokens, len(tokens)) is not None
        table.commit(len(tokens))
        return table, prefix.num_tokens

    def found(self, tokens, **scope):
        return self.manager.new_table(tokens, **scope).find(len(tokens)).num_tokens


def test_full_blocks_are_found_and_the_last_partial_one_is_not():
    cache = Cache()
    table, found = cache.compute([1, 2, 3, 4, 5])
    assert found == 0
    assert cache.found([1, 2, 3, 4, 5]) == 4
    assert cache.found([1, 2, 3, 4]) == 4
    assert cache.found([1, 2, 3]) == 2
    assert cache.found([1, 2, 9, 4, 5]) == 2
    assert cache.found([9, 2, 3, 4]) == 0
    # The second block follows the first one only.
    assert cache.found([3, 4, 3, 4]) == 0
    other, found = cache.compute([1, 2, 3, 4, 6, 7])
    assert found == 4
    assert other.block_ids[:2] == table.block_ids[:2]
    assert cache.store.num_used == 4


def test_freed_blocks_are_found_until_their_space_is_needed():
    cache = Cache(num_blocks=4)
    table, _ = cache.compute([1, 2, 3, 4, 5, 6])
    table.release()
    assert (cache.store.num_used, cache.store.num_cached) == (0, 3)
    assert cache.found([1, 2, 3, 4, 5, 6]) == 6
    cache.store.take(1)
    assert cache.found([1, 2, 3, 4, 5, 6]) == 6
    cache.store.take(1)
    assert cache.found([1, 2, 3, 4, 5, 6]) == 4
    cache.store.take(1)
    assert cache.found([1, 2, 3, 4, 5, 6]) == 2
    assert (cache.store.num_evicted, cache.store.num_cached) == (2, 1)


def test_the_least_recently_used_chain_goes_first_and_from_its_end():
    cache = Cache(num_blocks=5)
    first, second = [1, 1, 2, 2], [3, 3, 4, 4]
    for tokens in (first, second, first):
        cache.compute(tokens)[0].release()
    taken = [(cache.store.take(1), cache.found(first), cache.found(second))[1:] for _ in range(5)]
    assert taken == [(4, 4), (4, 2), (4, 0), (2, 0), (0, 0)]


def test_a_shared_beginning_outlives_all_that_follow_it():
    cache = Cache(num_blocks=4)
    for end in ([5, 5], [6, 6], [7, 7]):
        cache.compute([1, 1, *end])[0].release()
    assert cache.store.num_cached == 4
    found = []
    for _ in range(4):
        cache.store.take(1)
        found.append([cache.found([1, 1, *end]) for end in ([5, 5], [6, 6], [7, 7])])
    assert found == [[2, 4, 4], [2, 2, 4], [2, 2, 2], [0, 0, 0]]


def test_a_block_in_use_is_never_dropped():
    cache = Cache(num_blocks=3)
    table, _ = cache.compute([1, 2, 3, 4])
    assert cache.store.take(1) == [2]
    with pytest.raises(BlockPoolError):
        cache.store.take(1)
    assert cache.found([1, 2, 3, 4]) == 4
    assert table.block_ids == [0, 1]


def test_blocks_that_hold_nothing_known_are_reused_before_any_that_do():
    cache = Cache(num_blocks=4)
    cache.compute([1, 2, 3, 4])[0].release()
    other = cache.manager.new_table([9, 9, 9])
    other.prepare(0, 3)
    other.release()  # never committed
    assert sorted(cache.store.take(2)) == [2, 3]
    assert cache.found([1, 2, 3, 4]) == 4


def test_nothing_is_found_before_it_is_committed():
    cache = Cache()
    table = cache.manager.new_table([1, 2, 3, 4])
    table.prepare(0, 4)
    assert cache.found([1, 2, 3, 4]) == 0
    table.commit(3)
    assert cache.found([1, 2, 3, 4]) == 2
    table.release()
    assert cache.found([1, 2, 3, 4]) == 2


def test_one_content_has_one_block():
    cache = Cache()
    twins = [cache.manager.new_table([1, 2, 3, 4, 5, 6]) for _ in range(2)]
    for table in twins:
        table.prepare(0, 6)
    assert cache.store.num_used == 6
    assert twins[0].commit(4) == []
    assert twins[1].commit(6) == [(0, 0), (1, 1)]
    assert twins[1].block_ids == [0, 1, 5]
    assert twins[0].commit(6) == [(2, 5)]
    assert twins[0].block_ids == twins[1].block_ids
    assert (cache.store.num_used, cache.store.num_cached) == (3, 3)


def test_a_block_that_can_be_found_is_copied_before_it_is_written():
    cache = Cache()
    table, _ = cache.compute([1, 2, 3, 4])
    assert table.must_copy(3)
    assert table.prepare(3, 4) == Grant([], [(1, 2)], [(1, 2, 1)])
    assert (table.block_ids, table.num_registered) == ([0, 2], 1)
    assert cache.found([1, 2, 3, 4]) == 4


def test_a_fork_s_blocks_are_found_by_its_own_tokens():
    cache = Cache()
    table, _ = cache.compute([1, 2, 3])
    tokens = [1, 2, 3, 9]
    fork = table.fork(3, tokens)
    fork.prepare(3, 4)
    fork.commit(4)
    assert cache.found([1, 2, 3, 9]) == 4
    table.release()
    fork.release()
    assert cache.store.num_used == 0
    assert cache.found([1, 2, 3, 9]) == 4


# --- in flight


def test_a_block_is_in_flight_from_the_announcement_to_the_commit():
    cache = Cache()
    tokens = [1, 2, 3, 4, 5]
    leader, waiter = cache.manager.new_table(tokens), cache.manager.new_table([1, 2, 3, 4, 6])
    assert not waiter.is_in_flight(0, 5)
    leader.prepare(0, 5)
    leader.announce(5)
    assert [waiter.is_in_flight(place, 5) for place in range(3)] == [True, True, False]
    leader.commit(2)
    assert [waiter.is_in_flight(place, 5) for place in range(3)] == [False, True, False]
    leader.commit(5)
    assert not waiter.is_in_flight(1, 5)
    assert len(cache.store.in_flight) == 0
    assert waiter.find(5).num_tokens == 4


def test_a_leader_that_leaves_computes_nothing_any_more():
    cache = Cache()
    leader, second = cache.manager.new_table([1, 2, 3, 4]), cache.manager.new_table([1, 2, 3, 4])
    for table in (leader, second):
        table.prepare(0, 4)
        table.announce(4)
    waiter = cache.manager.new_table([1, 2, 3, 4])
    # The first that announces a block owns the announcement.
    second.release()
    assert waiter.is_in_flight(0, 4)
    leader.release()
    assert not waiter.is_in_flight(0, 4)
    assert len(cache.store.in_flight) == 0


# --- what keeps apart


@pytest.mark.parametrize("scope", [{"salt": "a"}, {"salt": "b"}, {"adapter": "a"}, {"salt": "a", "adapter": "b"}])
def test_a_scope_finds_nothing_of_another(scope):
    cache = Cache()
    cache.compute([1, 2, 3, 4])
    assert cache.found([1, 2, 3, 4], **scope) == 0
    cache.compute([1, 2, 3, 4], **scope)
    assert cache.found([1, 2, 3, 4], **scope) == 4
    assert cache.found([1, 2, 3, 4], salt="other") == 0


def test_a_digest_covers_everything_that_changes_the_contents():
    scopes = [CacheScope(), CacheScope("m"), CacheScope("", "m"), CacheScope(adapter="m"), CacheScope(salt="m"), CacheScope(salt="")]
    digests = set()
    for scope in scopes:
        for tokens in ([1, 2, 3, 4], [1, 2, 4, 3], [0, 2, 3, 4]):
            keys = BlockKeys(tokens, 2, scope, hash_block)
            keys.extend(2)
            digests.add(keys.digests[1])
    assert len(digests) == 3 * len(scopes)
    assert {len(digest) for digest in digests} == {DIGEST_BYTES}


def test_digests_are_the_same_in_every_process():
    keys = BlockKeys([1, 2, 3, 4], 2, CacheScope("model", "bfloat16", None, "salt"), hash_block)
    keys.extend(2)
    code = (
        "from octavo.kvcache.block_hash import *; scope = CacheScope('model', 'bfloat16', None, 'salt');"
        "keys = BlockKeys([1, 2, 3, 4], 2, scope, hash_block); keys.extend(2); print(keys.digests[1].hex())"
    )
    outside = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "5"})
    assert outside.stdout.strip() == keys.digests[1].hex() == "1520e83cb7cc8fd31869f3a1687e6e38"


def same(parent, contents):
    """Every block has one digest."""
    return b"same"


def by_first_token(parent, contents):
    """A block's digest tells its first token alone."""
    return contents[:4]


def test_contents_that_collide_are_not_taken_for_each_other():
    cache = Cache(hash_block=same)
    cache.compute([1, 2, 3, 4])
    assert cache.found([1, 2, 3, 4]) == 2  # the second block finds its place taken
    assert cache.found([5, 6, 7, 8]) == 0
    table, found = cache.compute([5, 6, 7, 8])
    assert (found, table.num_registered, cache.store.num_cached) == (0, 0, 1)


def test_an_equal_block_after_another_beginning_is_not_taken_for_it():
    cache = Cache(hash_block=by_first_token)
    cache.compute([1, 1, 2, 2])
    assert cache.found([1, 1, 2, 2]) == 4
    # The first blocks collide, and the second ones are equal in digest and contents.
    assert cache.found([1, 9, 2, 2]) == 0
    assert cache.found([2, 2]) == 0
    table, _ = cache.compute([3, 3, 2, 2])
    assert cache.found([3, 3, 2, 2]) == 2
    assert table.num_registered == 1


def test_a_collision_ends_when_the_other_contents_are_gone():
    cache = Cache(num_blocks=5, hash_block=same)
    first, _ = cache.compute([1, 2])
    second, _ = cache.compute([5, 6, 7, 8])
    first.release()
    cache.store.take(3)
    assert second.num_registered == 0
    second.commit(4)
    assert (second.num_registered, cache.found([5, 6])) == (1, 2)


# --- reset


def test_reset_forgets_everything_unless_something_is_in_use():
    cache = Cache()
    table, _ = cache.compute([1, 2, 3, 4])
    assert cache.manager.reset() is False
    assert cache.found([1, 2, 3, 4]) == 4
    table.release()
    assert cache.manager.reset() is True
    assert (cache.found([1, 2, 3, 4]), cache.store.num_cached, cache.store.num_evicted) == (0, 0, 0)
    assert cache.compute([1, 2, 3, 4])[1] == 0
    assert cache.found([1, 2, 3, 4]) == 4


def test_with_the_cache_off_nothing_is_found():
    cache = Cache(prefix_caching=False)
    cache.compute([1, 2, 3, 4])[0].release()
    assert (cache.found([1, 2, 3, 4]), cache.store.num_cached) == (0, 0)


def test_dropping_a_block_before_those_that_follow_it_is_an_error():
    cache = Cache()
    table, _ = cache.compute([1, 2, 3, 4])
    with pytest.raises(BlockPoolError, match="dropped before 1 cached blocks that follow it"):
        cache.store._index.remove(table.block_ids[0])
