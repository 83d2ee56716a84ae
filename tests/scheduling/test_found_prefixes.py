"""What the scheduler finds, what it waits for, and what it leaves to be found."""

import pytest
from mirror_worker import alone, make_request
from stepped_engine import Engine

from octavo.protocol.plan import StepResult
from octavo.scheduling.scheduler import SchedulerError


def engine_with(**options):
    return Engine(**({"prefix_caching": True} | options))


def distinct(count, first=0):
    """A prompt like no other of another `first`."""
    return [(first + 5 * place * place) % 24 for place in range(count)]


def checked(engine, *requests):
    for request in requests:
        assert engine.tokens[request.request_id] == alone(request, 128)[0]


def test_a_second_request_computes_only_what_the_first_did_not():
    engine = engine_with()
    first, second = make_request("a", distinct(10), 3), make_request("b", [*distinct(8), 1, 2, 3], 3)
    engine.add(first)
    engine.drain()
    engine.add(second)
    shares, plan = engine.step()
    assert shares == {"b": 3}
    assert plan.new[0].num_computed_tokens == 8
    assert plan.scheduled[0].new_block_ids[:2] == [0, 1]
    engine.drain()
    checked(engine, first, second)
    assert (engine.last["a"].num_cached_tokens, engine.last["b"].num_cached_tokens) == (0, 8)
    stats = engine.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.prompt_tokens_computed) == (21, 8, 13)


def test_a_prompt_that_is_found_whole_has_its_last_token_computed_but_not_written():
    engine = engine_with()
    requests = [make_request("a", distinct(8), 3), make_request("b", distinct(8), 3)]
    engine.add(requests[0])
    engine.drain()
    engine.add(requests[1])
    shares, plan = engine.step()
    (share,) = plan.scheduled
    assert (shares, share.num_cached, plan.new[0].num_computed_tokens) == ({"b": 1}, 1, 7)
    assert share.new_block_ids == [0, 1]
    assert plan.copies == []
    assert engine.last["b"].num_cached_tokens == 7
    engine.drain()
    checked(engine, *requests)
    assert engine.scheduler.stats().blocks_copied == 0


def test_what_was_generated_is_found_too():
    engine = engine_with()
    first = make_request("a", distinct(6), 7)
    engine.add(first)
    engine.drain()
    # Twelve tokens were computed: the thirteenth was sampled and is not in the cache.
    follow = make_request("b", [*distinct(6), *engine.tokens["a"], 1, 2], 2)
    engine.add(follow)
    assert engine.step()[0] == {"b": 3}
    engine.drain()
    checked(engine, follow)


def test_the_last_token_is_computed_even_where_a_larger_budget_is_left_unused():
    engine = engine_with(budget=2)
    engine.add(make_request("a", distinct(8), 2))
    engine.drain()
    engine.add(make_request("b", distinct(8), 2), make_request("c", distinct(8), 2))
    assert engine.step()[0] == {"b": 1, "c": 1}


def test_an_aborted_request_leaves_its_full_blocks():
    engine = engine_with(budget=8)
    engine.add(make_request("a", distinct(30), 3))
    engine.step()
    engine.scheduler.abort("a")
    assert engine.scheduler.stats().blocks_used == 0
    engine.add(make_request("b", distinct(30), 3))
    engine.drain()
    assert engine.last["b"].num_cached_tokens == 8
    checked(engine, make_request("b", distinct(30), 3))


def test_a_request_aborted_while_its_step_runs_leaves_what_was_computed_before():
    engine = engine_with(budget=8)
    engine.add(make_request("a", distinct(30), 3))
    engine.step()
    plan = engine.scheduler.schedule()
    engine.scheduler.abort("a")
    engine.scheduler.update(plan, engine.worker.run(plan))
    assert engine.scheduler.stats().blocks_cached == 2


def test_a_preempted_request_finds_what_it_computed():
    engine = engine_with()
    request = make_request("a", distinct(10), 8)
    engine.add(request)
    for _ in range(4):
        engine.step()
    engine.scheduler._preempt(engine.scheduler._running["a"])
    shares, plan = engine.step()
    # Thirteen tokens were computed, twelve of them in full blocks, and fourteen are known.
    assert shares == {"a": 2}
    assert plan.removed == ["a"]
    engine.drain()
    checked(engine, request)
    stats = engine.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, engine.last["a"].num_cached_tokens) == (10, 0, 0)


def test_a_failed_step_leaves_nothing():
    engine = engine_with()
    engine.add(make_request("a", distinct(12), 3))
    engine.step(failing={"a"})
    assert engine.scheduler.stats().blocks_cached == 0
    engine.add(make_request("b", distinct(12), 3))
    plan = engine.scheduler.schedule()
    assert plan.num_tokens == 12
    engine.scheduler.abandon()
    assert engine.scheduler.stats().blocks_cached == 0


def test_a_block_is_found_from_the_end_of_its_step_on():
    engine = engine_with()
    engine.add(make_request("a", distinct(12), 3))
    plan = engine.scheduler.schedule()
    assert engine.scheduler.stats().blocks_cached == 0
    engine.scheduler.update(plan, engine.worker.run(plan))
    assert engine.scheduler.stats().blocks_cached == 3


# --- what others are computing


def test_requests_that_begin_alike_compute_it_once():
    engine = engine_with(num_blocks=200, budget=512, seqs=32)
    start = distinct(64)
    requests = [make_request(f"r{index}", [*start, index % 24, index // 24, 1], 4) for index in range(32)]
    engine.add(*requests)
    assert engine.step()[0] == {"r0": 67}
    assert engine.step()[0] == {"r0": 1} | {f"r{index}": 3 for index in range(1, 32)}
    engine.drain()
    checked(engine, *requests)
    stats = engine.scheduler.stats()
    assert stats.prompt_tokens_computed == 64 + 32 * 3
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (32 * 67, 31 * 64)
    assert engine.worker.computed == 64 + 32 * 3 + 32 * 3


def test_the_waiting_ends_with_the_part_that_is_needed():
    engine = engine_with(num_blocks=64, budget=8)
    long, short = make_request("long", distinct(40), 2), make_request("short", [*distinct(8), 1, 2], 2)
    engine.add(long)
    engine.step()
    engine.add(short)
    # The budget goes to the request that runs, until its prompt is done.
    for _ in range(3):
        assert engine.step()[0] == {"long": 8}
    assert engine.step()[0] == {"long": 8}
    assert engine.step()[0] == {"long": 1, "short": 2}


def test_nobody_overtakes_the_one_that_waits():
    engine = engine_with()
    engine.add(make_request("a", distinct(12), 2), make_request("b", distinct(12), 2), make_request("c", distinct(12, 7), 2))
    assert engine.step()[0] == {"a": 12}
    assert engine.step()[0] == {"a": 1, "b": 1, "c": 12}


@pytest.mark.parametrize("way", ["abort", "fail", "preempt", "abandon"])
def test_one_that_waits_goes_on_when_the_other_leaves(way):
    engine = engine_with(budget=8)
    engine.add(make_request("a", distinct(30), 2), make_request("b", distinct(30), 2))
    assert engine.step()[0] == {"a": 8}
    if way == "abort":
        engine.scheduler.abort("a")
    elif way == "fail":
        engine.step(failing={"a"})
    elif way == "preempt":
        engine.scheduler._preempt(engine.scheduler._running["a"])
    else:
        engine.scheduler.schedule()
        engine.scheduler.abandon()
    # A preempted one is the next to come in again.
    next_one = "a" if way == "preempt" else "b"
    assert engine.step()[0] == {next_one: 8}
    assert engine.scheduler.num_waiting == (way == "preempt")
    engine.drain()
    checked(engine, make_request("b", distinct(30), 2))


def test_equal_requests_that_ran_side_by_side_come_to_share_their_blocks():
    """Both were cold, and under way before either had a full block."""
    engine = engine_with(block_size=4)
    engine.add(make_request("a", [1, 2, 3], 12), make_request("b", [1, 2, 3], 12))
    assert engine.step()[0] == {"a": 3, "b": 3}
    used = []
    replaced = []
    while engine.scheduler.has_work:
        plan = engine.step()[1]
        replaced += [(share.request_id, *change) for share in plan.scheduled for change in share.replaced_blocks]
        used.append(engine.scheduler.stats().blocks_used)
    # Three full blocks, and a last one each.
    assert max(used) == 5
    assert [change[:2] for change in replaced] == [("b", 0), ("b", 1), ("b", 2)]
    assert engine.tokens["a"] == engine.tokens["b"]
    checked(engine, make_request("a", [1, 2, 3], 12))


# --- memory


def test_blocks_that_are_found_in_use_take_no_room():
    engine = engine_with(block_size=4, num_blocks=10)
    engine.add(make_request("a", distinct(32), 4))
    engine.step()
    # Nine blocks by itself; eight of them are there, and one is left besides the one that the first grew into.
    engine.add(make_request("b", [*distinct(32), 1], 2))
    assert list(engine.step()[0]) == ["a", "b"]
    engine.drain()
    assert engine.scheduler.stats().preemptions == 0


def test_blocks_that_are_found_free_take_the_room_they_take():
    engine = engine_with(block_size=4, num_blocks=10)
    engine.add(make_request("a", distinct(24), 1))
    engine.drain()
    engine.add(make_request("other", distinct(16, 3), 8))
    engine.step()
    assert engine.scheduler.stats().blocks_cached == 10
    # Of the ten, four are in use and one more may be: the six that a left are not all to be had.
    engine.add(make_request("b", distinct(24), 4))
    assert list(engine.step()[0]) == ["other"]
    engine.drain()
    checked(engine, make_request("b", distinct(24), 4), make_request("other", distinct(16, 3), 8))
    assert engine.scheduler.stats().preemptions == 0


def test_cached_blocks_stand_in_nobodys_way():
    engine = engine_with(block_size=4, num_blocks=8)
    for index in range(12):
        request = make_request(f"r{index}", distinct(20, index), 8)
        engine.add(request)
        engine.drain()
        checked(engine, request)
    stats = engine.scheduler.stats()
    assert (stats.preemptions, stats.blocks_used) == (0, 0)
    assert stats.blocks_evicted > 40


def test_thirty_two_requests_hold_one_beginning():
    """One prefix and thirty-two tails, and nothing else to speak of."""
    engine = engine_with(block_size=16, num_blocks=400, budget=1024, seqs=32, max_model_len=600)
    start = distinct(512)
    requests = [make_request(f"r{index}", [*start, *([index % 24, index // 24] * 16)], 32) for index in range(32)]
    engine.add(*requests)
    most = 0
    while engine.scheduler.has_work:
        engine.step()
        most = max(most, engine.scheduler.stats().blocks_used)
    tokens = 512 + 32 * (32 + 31)
    assert most * 16 < 1.15 * tokens
    assert engine.scheduler.stats().prompt_tokens_computed == 512 + 32 * 32


def test_an_answer_out_of_turn_leaves_nothing_either():
    engine = engine_with()
    engine.add(make_request("a", distinct(8), 2))
    (output,) = engine.scheduler.update(engine.scheduler.schedule(), StepResult())
    assert output.finish_reason == "error"
    assert engine.scheduler.stats().blocks_cached == 0
    with pytest.raises(SchedulerError):
        engine.scheduler.abandon()
