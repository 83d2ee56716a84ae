"""Requests longer than their window: what they hold, what they find, and who may come in."""

import pytest
from mirror_worker import alone, make_request
from stepped_engine import Engine

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.plan import StepPlan


def engine_with(**options):
    return Engine(**({"window": 8, "prefix_caching": True, "max_model_len": 4096} | options))


def checked(engine, *requests, context=4096):
    for request in requests:
        assert engine.tokens[request.request_id] == alone(request, context, engine.worker.window)[0]


def drain_and_watch(engine):
    """The most blocks that were in use after planning a step, before any of it was over."""
    most = 0
    plan_step = engine.scheduler.schedule

    def schedule() -> StepPlan:
        nonlocal most
        plan = plan_step()
        most = max(most, engine.scheduler.stats().blocks_used)
        return plan

    engine.scheduler.schedule = schedule
    engine.drain()
    return most


@pytest.mark.parametrize("caching", [True, False])
def test_four_thousand_tokens_never_hold_more_than_the_window(caching):
    engine = engine_with(num_blocks=12, budget=16, prefix_caching=caching)
    request = make_request("a", 40, 4000)
    engine.add(request)
    # Of the prompt, 16 tokens and 7 before them; of what is generated, 8.
    assert drain_and_watch(engine) <= 7
    checked(engine, request)
    assert (len(engine.tokens["a"]), engine.scheduler.stats().preemptions) == (4000, 0)
    assert engine.scheduler.stats().blocks_used == 0


def test_a_request_may_outgrow_the_pool():
    """And its steps are no larger than the pool allows, whatever the budget."""
    engine = engine_with(num_blocks=5, budget=64)
    long = make_request("a", 90, 60)
    engine.add(long)
    shares, _ = engine.step()
    assert shares == {"a": 20}
    shares, _ = engine.step()
    assert shares == {"a": 4 * 3}
    engine.drain()
    checked(engine, long)


def test_a_pool_that_does_not_hold_the_window_bounds_the_context():
    # Eight tokens lie in three blocks of four.
    small = engine_with(num_blocks=2, max_model_len=100)
    with pytest.raises(InvalidRequestError, match="the whole cache holds 8"):
        small.add(make_request("a", 8))
    request = make_request("b", 3, None)
    small.add(request)
    small.drain()
    checked(small, request, context=8)
    assert small.ends["b"] == "length"
    large = engine_with(num_blocks=3, max_model_len=100)
    request = make_request("c", 3, None)
    large.add(request)
    large.drain()
    checked(large, request, context=100)
    assert len(large.tokens["c"]) == 97


def test_many_long_requests_run_where_one_would_fill_the_pool():
    """Twelve blocks hold 48 tokens, and the requests come to 100 each."""
    engine = engine_with(num_blocks=12, budget=8)
    requests = [make_request(f"r{index}", [index] * 3, 97) for index in range(3)]
    engine.add(*requests)
    running = 0
    for _ in range(20):
        engine.step()
        running = max(running, engine.scheduler.num_running)
    assert running == 3
    engine.drain()
    checked(engine, *requests)


def test_a_prompt_is_found_without_its_beginning():
    engine = engine_with(num_blocks=8, budget=64)
    prompt = [(place * place + 3) % 24 for place in range(60)]
    first = make_request("a", prompt, 2)
    engine.add(first)
    engine.drain()
    second = make_request("b", [*prompt, 1, 2, 3], 2)
    engine.add(second)
    shares, plan = engine.step()
    assert shares == {"b": 3}
    (share,) = plan.scheduled
    assert share.new_block_ids[:13] == [-1] * 13
    assert min(share.new_block_ids[13:]) >= 0
    engine.drain()
    checked(engine, first, second)
    assert engine.last["b"].num_cached_tokens == 60


def test_the_worker_is_told_what_was_given_back():
    engine = engine_with(num_blocks=8, budget=64)
    engine.add(make_request("a", 11, 4))
    engine.step()
    _, plan = engine.step()
    assert plan.scheduled[0].replaced_blocks == [(0, -1)]
    assert engine.worker.held["a"].block_ids[0] == -1


def test_a_preempted_request_finds_its_window():
    engine = engine_with(num_blocks=16, budget=64)
    request = make_request("a", 50, 20)
    engine.add(request)
    for _ in range(5):
        engine.step()
    engine.scheduler._preempt(engine.scheduler._running["a"])
    shares, _ = engine.step()
    # 54 tokens are known but the last, and 52 lie in full blocks, of which three lie in the window.
    assert shares == {"a": 3}
    engine.drain()
    checked(engine, request)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [16, 30, 31])
def test_samples_share_what_the_last_token_of_the_prompt_sees(length, caching):
    engine = engine_with(num_blocks=24, budget=16, prefix_caching=caching)
    prompt = [(place * 7) % 24 for place in range(length)]
    requests = [make_request(f"g:{index}", prompt, 25, seed=index) for index in range(4)]
    for request in requests:
        request.group_id = "g"
    engine.add(*requests)
    engine.drain()
    checked(engine, *requests)
    stats = engine.scheduler.stats()
    assert stats.prompt_tokens_computed == length + 3
    assert (stats.blocks_used, stats.preemptions) == (0, 0)


def test_an_aborted_request_gives_the_rest_back():
    engine = engine_with(num_blocks=16, budget=64)
    engine.add(make_request("a", 50, 20))
    engine.step()
    engine.step()
    assert engine.scheduler.abort("a")
    assert engine.scheduler.stats().blocks_used == 0
    other = make_request("b", 50, 20)
    engine.add(other)
    engine.drain()
    checked(engine, other)


def test_a_sample_that_comes_back_to_a_full_pool_needs_room_for_its_next_token():
    """What the group holds for those to come begins with a token that this one's next no longer sees."""
    engine = engine_with(window=7, block_size=1, num_blocks=7, budget=3, seqs=1, max_model_len=9, prefix_caching=False)
    requests = [make_request(f"g:{index}", 7, 2, seed=index) for index in range(2)]
    for request in requests:
        request.group_id = "g"
    engine.add(*requests)
    for _ in range(3):
        engine.step()
    engine.scheduler._preempt(engine.scheduler._running["g:0"])
    engine.drain()
    checked(engine, *requests, context=9)
