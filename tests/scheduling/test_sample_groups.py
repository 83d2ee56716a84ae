"""Samples of one prompt compute it once and share its blocks until one writes."""

import msgspec
import pytest
from mirror_worker import alone, make_request
from stepped_engine import Engine

from octavo.protocol.errors import InvalidRequestError

CACHING = pytest.mark.parametrize("prefix_caching", [True, False], ids=["cached", "uncached"])


def samples(count, prompt, max_tokens=8, group="g", **options):
    """Each has its own seed."""
    tokens = [(7 * place) % 24 for place in range(prompt)]
    made = [make_request(f"{group}:{index}", tokens, max_tokens, seed=index, **options) for index in range(count)]
    return [msgspec.structs.replace(request, group_id=group) for request in made]


def checked(engine, requests, context=128):
    for request in requests:
        assert engine.tokens[request.request_id] == alone(request, context)[0]
    stats = engine.scheduler.stats()
    assert stats.blocks_used == 0
    assert len(engine.scheduler._groups) == 0


def copies_of(engine):
    """(copies, prompt tokens computed)"""
    stats = engine.scheduler.stats()
    return stats.blocks_copied, stats.prompt_tokens_computed


@CACHING
def test_the_prompt_is_computed_once_and_its_last_token_by_each(prefix_caching):
    engine = Engine(prefix_caching=prefix_caching)
    requests = samples(4, prompt=10)
    engine.add(*requests)
    assert engine.step()[0] == {"g:0": 10}
    shares, plan = engine.step()
    assert shares == {f"g:{index}": 1 for index in range(4)}
    first = plan.scheduled[0]
    assert (first.num_cached, first.replaced_blocks, plan.copies) == (0, [(2, 3)], [(2, 3, 2)])
    for share in plan.scheduled[1:]:
        assert (share.num_cached, share.new_block_ids) == (1, [0, 1, 2])
    engine.drain()
    checked(engine, requests)
    assert copies_of(engine) == (3, 10 + 3)


@CACHING
@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("seats", [1, 2, 16])
@pytest.mark.parametrize("prompt", [3, 9, 8, 16])
def test_n_samples_make_n_less_one_copies_of_a_block_that_is_not_full(prefix_caching, count, seats, prompt):
    engine = Engine(prefix_caching=prefix_caching, seqs=seats)
    requests = samples(count, prompt)
    engine.add(*requests)
    engine.drain()
    checked(engine, requests)
    copies, computed = copies_of(engine)
    assert copies == (count - 1 if prompt % 4 else 0)
    assert computed == prompt + count - 1
    assert engine.last["g:0"].num_cached_tokens == 0
    assert engine.last[f"g:{count - 1}"].num_cached_tokens == prompt - 1


@CACHING
def test_memory_is_one_prompt_and_the_samples_own_blocks(prefix_caching):
    engine = Engine(num_blocks=64, prefix_caching=prefix_caching)
    engine.add(*samples(8, prompt=41, max_tokens=4, ignore_eos=True))
    most = 0
    while engine.scheduler.has_work:
        engine.step()
        most = max(most, engine.scheduler.stats().blocks_used)
    # Ten full blocks, and the eleventh once for each sample.
    assert most == 10 + 8


def test_samples_of_a_group_share_even_where_they_do_not_arrive_side_by_side():
    engine = Engine()
    first, second = samples(2, prompt=6)
    engine.add(first, make_request("other", 5, 3), second)
    assert engine.step()[0] == {"g:0": 6, "other": 5}
    assert engine.step()[0] == {"g:0": 1, "other": 1, "g:1": 1}
    engine.drain()
    checked(engine, [first, second])


@CACHING
@pytest.mark.parametrize("way", ["abort", "fail", "abandon"])
def test_a_leader_that_leaves_is_followed_by_the_next(prefix_caching, way):
    engine = Engine(budget=8, prefix_caching=prefix_caching)
    requests = samples(3, prompt=18)
    engine.add(*requests)
    assert engine.step()[0] == {"g:0": 8}
    if way == "abort":
        engine.scheduler.abort("g:0")
    elif way == "fail":
        engine.step(failing={"g:0"})
    else:
        engine.scheduler.schedule()
        engine.scheduler.abandon()
    assert engine.step()[0] == {"g:1": 8}
    engine.drain()
    checked(engine, requests[1:])
    assert engine.scheduler.stats().blocks_copied == 1


@CACHING
def test_a_preempted_leader_leads_again(prefix_caching):
    engine = Engine(budget=8, prefix_caching=prefix_caching)
    requests = samples(3, prompt=18)
    engine.add(*requests)
    engine.step()
    engine.scheduler._preempt(engine.scheduler._running["g:0"])
    assert list(engine.step()[0]) == ["g:0"]
    engine.drain()
    checked(engine, requests)
    assert engine.scheduler.stats().blocks_copied == 2


@CACHING
def test_a_preempted_sample_begins_with_the_prompt_that_is_still_held(prefix_caching):
    engine = Engine(seqs=2, prefix_caching=prefix_caching)
    requests = samples(3, prompt=10, ignore_eos=True)
    engine.add(*requests)
    for _ in range(3):
        engine.step()
    engine.scheduler._preempt(engine.scheduler._running["g:1"])
    shares, plan = engine.step()
    # Ten of the prompt are there, and two of its own to compute, the first of them into a copy of the last block.
    assert shares == {"g:0": 1, "g:1": 2}
    assert len(plan.copies) == 1
    engine.drain()
    checked(engine, requests)


@CACHING
def test_an_abort_of_all_that_are_to_come_gives_the_prompt_up(prefix_caching):
    engine = Engine(seqs=1, prefix_caching=prefix_caching)
    requests = samples(3, prompt=10, ignore_eos=True)
    engine.add(*requests)
    engine.step()
    assert engine.scheduler.stats().blocks_used == 3
    for name in ("g:1", "g:2"):
        engine.scheduler.abort(name)
    engine.step()
    # Nobody else has the last block now, so that it is written where it is.
    assert copies_of(engine)[0] == 0
    engine.drain()
    checked(engine, requests[:1])


@CACHING
def test_an_id_of_a_group_may_be_used_again(prefix_caching):
    engine = Engine(prefix_caching=prefix_caching)
    for prompt in (5, 7):
        requests = samples(2, prompt=prompt)
        engine.add(*requests)
        engine.drain()
        checked(engine, requests)
        engine.tokens.clear()


def test_samples_of_different_prompts_are_refused():
    engine = Engine()
    first, second = samples(1, prompt=5)[0], samples(1, prompt=6)[0]
    engine.add(first)
    with pytest.raises(InvalidRequestError, match="'g' have different prompts") as caught:
        engine.add(msgspec.structs.replace(second, request_id="second"))
    assert caught.value.param == "group_id"
    assert engine.scheduler.request_ids == ["g:0"]
    engine.drain()
    checked(engine, [first])


# --- when memory is short


@CACHING
def test_a_prompt_held_for_samples_to_come_is_in_nobodys_way(prefix_caching):
    """The pool holds one sample and no prompt beside it."""
    engine = Engine(num_blocks=4, prefix_caching=prefix_caching)
    requests = samples(3, prompt=10, max_tokens=6, ignore_eos=True)
    engine.add(*requests)
    engine.drain()
    checked(engine, requests, context=16)


@CACHING
def test_a_running_request_takes_the_blocks_of_a_group_of_which_none_runs(prefix_caching):
    engine = Engine(num_blocks=8, prefix_caching=prefix_caching)
    other = make_request("other", 4, 24)
    requests = samples(2, prompt=10, max_tokens=12, ignore_eos=True)
    engine.add(other, *requests)
    engine.drain()
    checked(engine, [other, *requests], context=32)
    assert engine.scheduler.stats().preemptions > 0


@CACHING
def test_every_sample_ends_as_alone_under_heavy_preemption(prefix_caching):
    engine = Engine(block_size=2, num_blocks=16, budget=16, seqs=16, prefix_caching=prefix_caching)
    requests = []
    for number in range(16):
        requests += samples(1 + number % 5, prompt=1 + number % 9, max_tokens=1 + (7 * number) % 20, group=f"g{number}")
    engine.add(*requests)
    engine.drain()
    assert engine.scheduler.stats().preemptions >= 10
    checked(engine, requests, context=32)
