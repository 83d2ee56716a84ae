"""What can be found is told to another manager, and found there."""

import struct

import pytest

from octavo.kvcache.block_hash import CacheScope, salt_digest
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.prefix_index import NULL_BLOCK
from octavo.kvcache.saved_block import SavedBlock
from octavo.kvcache.window import Window


def manager(num_blocks=16, **options):
    return KVCacheManager(num_blocks, 2, scope=CacheScope("model", "float32"), **options)


def compute(cache, tokens, **scope):
    """A table with all of `tokens` computed."""
    table = cache.new_table(tokens, **scope)
    prefix = table.find(len(tokens))
    table.adopt(prefix)
    assert table.prepare(prefix.num_tokens, len(tokens)) is not None
    table.commit(len(tokens))
    return table


def found(cache, tokens, **scope):
    return cache.new_table(tokens, **scope).find(len(tokens)).num_tokens


def carried(source, target):
    """Restores in `target` what `source` has, as far as there is room; how many can be found."""
    _, saved = source.saved()
    saved = saved[: target.store.num_free]
    return target.restore(target.store.take(len(saved)), saved)


def tokens_of(saved):
    return [struct.unpack("<2i", each.contents) for each in saved]


def test_everything_is_found_again_and_nothing_else():
    source = manager()
    compute(source, [1, 2, 3, 4, 5]).release()
    compute(source, [1, 2, 9, 9], salt="a").release()
    compute(source, [1, 2, 6, 6], adapter="x").release()
    target = manager()
    assert carried(source, target) == 6
    assert (target.store.num_cached, target.store.num_used) == (6, 0)
    assert found(target, [1, 2, 3, 4, 5, 6]) == 4
    assert [found(target, [1, 2, 9, 9], salt=salt) for salt in (None, "a", "b")] == [2, 4, 0]
    assert [found(target, [1, 2, 6, 6], adapter=adapter) for adapter in (None, "x", "y")] == [2, 4, 0]
    again = manager()
    carried(target, again)
    assert again.saved()[1] == target.saved()[1] == source.saved()[1]


@pytest.mark.parametrize("own", [0, 6])
def test_what_is_gone_is_told_for_what_follows_it(own):
    """Of a window's blocks some were reused; those behind them are found by what they follow."""
    options = {"window": Window(4, 20)} | ({"num_window_blocks": own} if own else {})
    source = manager(16 if own else 6, **options)
    kind = 1 if own else 0
    tokens = list(range(12))
    store = source.store.parts[kind]
    table = compute(source, tokens)
    table.slide(12)
    table.release()
    # The first ones, which were given back first.
    store.take(2)
    ids, saved = source.saved(kind)
    assert [each.gone for each in saved] == [block == NULL_BLOCK for block in ids]
    assert [each.gone for each in saved] == [True, True, False, False, False, False]
    assert all(each.parent < number for number, each in enumerate(saved))
    target = manager(16 if own else 6, **options)
    held = sum(not each.gone for each in saved)
    fresh = iter(target.store.parts[kind].take(held))
    places = [NULL_BLOCK if each.gone else next(fresh) for each in saved]
    assert target.restore(places, saved, kind) == held == target.store.parts[kind].num_cached
    assert len(target.store.parts[kind]._index._by_digest) == len(saved)
    part = target.new_table(tokens).parts[kind]
    assert part.find(12).num_tokens == source.new_table(tokens).parts[kind].find(12).num_tokens > 0
    assert target.saved(kind)[1] == saved
    # Nothing is left of the chain once its end is reused.
    target.store.parts[kind].take(6)
    assert not target.store.parts[kind]._index._by_digest


def test_a_gone_block_without_one_that_follows_it_is_not_kept():
    target = manager(4, window=Window(4, 4))
    contents = struct.pack("<2i", 1, 2)
    block = target.store.take(1)
    saved = [SavedBlock(contents, -1, gone=True), SavedBlock(contents, 0, gone=True), SavedBlock(contents, 0)]
    assert target.restore([NULL_BLOCK, NULL_BLOCK, *block], saved) == 1
    assert len(target.store._index._by_digest) == 2
    # Without windows what is gone leads nowhere.
    plain = manager(4)
    assert plain.restore([NULL_BLOCK, *plain.store.take(1)], [saved[0], saved[2]]) == 0
    assert (plain.store.num_cached, plain.store.num_used) == (0, 0)


def test_the_salt_itself_is_not_told():
    source = manager()
    compute(source, [1, 2], salt="secret")
    (saved,) = source.saved()[1]
    assert saved == SavedBlock(struct.pack("<2i", 1, 2), -1, None, salt_digest("secret"))
    assert "secret" not in repr(saved)
    assert salt_digest("secret") != salt_digest("Secret")
    assert len(salt_digest("\ud800")) == 64


def test_parents_come_first_and_the_longest_unused_last():
    source = manager()
    held = compute(source, [7, 7, 8, 8])
    compute(source, [1, 2, 3, 4]).release()
    compute(source, [5, 6]).release()
    block_ids, saved = source.saved()
    assert tokens_of(saved) == [(7, 7), (8, 8), (5, 6), (1, 2), (3, 4)]
    assert [each.parent for each in saved] == [-1, 0, -1, -1, 3]
    assert block_ids[:2] == held.block_ids


def test_where_there_is_less_room_the_last_ones_are_left_out():
    source = manager()
    compute(source, [1, 2, 3, 4]).release()
    compute(source, [5, 6]).release()
    target = manager(2)
    assert carried(source, target) == 2
    assert (found(target, [5, 6]), found(target, [1, 2, 3, 4])) == (2, 2)


def test_restored_blocks_are_reused_in_the_same_order_as_before():
    source = manager(4)
    compute(source, [1, 2, 3, 4]).release()
    compute(source, [5, 6]).release()
    target = manager(4)
    carried(source, target)
    for cache in (source, target):
        left = []
        for _ in range(4):
            cache.store.take(1)
            left.append((found(cache, [1, 2, 3, 4]), found(cache, [5, 6])))
        # The one that holds nothing, then the end of the older chain, its start, and the newer one.
        assert left == [(4, 2), (2, 2), (0, 2), (0, 0)]


@pytest.mark.parametrize("hash_block", [lambda parent, contents: b"same", lambda parent, contents: contents[:4]], ids=["all", "many"])
def test_contents_that_collide_are_left_out_with_all_that_follows_them(hash_block):
    source = manager()
    compute(source, [1, 2, 1, 4, 5, 6]).release()
    compute(source, [3, 3]).release()
    target = manager(hash_block=hash_block)
    count = carried(source, target)
    assert count == target.store.num_cached < 4
    assert (target.store.num_used, target.store.num_free) == (0, 16)
    assert found(target, [1, 2, 1, 4, 5, 6]) + found(target, [3, 3]) == 2 * count
    assert found(target, [3, 4]) == 0


def test_what_is_there_already_is_not_there_twice():
    source = manager()
    compute(source, [1, 2, 3, 4]).release()
    target = manager()
    own = compute(target, [1, 2])
    assert carried(source, target) == 1
    assert target.new_table([1, 2, 3, 4]).find(4).block_ids[0] == own.block_ids[0]
    assert (target.store.num_cached, target.store.num_used) == (2, 1)
