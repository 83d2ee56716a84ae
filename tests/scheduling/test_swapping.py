"""Preempted requests leave what they computed in swap space, and go on from there."""

import pytest
from mirror_worker import alone, make_request
from stepped_engine import Engine

from octavo.protocol.plan import ScheduledRequest, StepPlan, StepResult
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import EngineRequest
from octavo.scheduling.preemption import PreemptionRule

# Of both requests, whose last token is never computed.
ALL = 2 * (13 + 20 - 1)


def two_that_outgrow_the_pool(**options):
    """Each begins with 4 blocks of 10, and ends with 8. When both have 5 and the first needs another, the second has to go."""
    engine = Engine(**{"num_blocks": 10, "slots": 20, "mode": "swap"} | options)
    requests = [make_request(name, 13, max_tokens=20) for name in ("a", "bb")]
    engine.add(*requests)
    return engine, requests


def run_to_the_end(engine, requests):
    engine.drain()
    for request in requests:
        assert engine.tokens[request.request_id] == alone(request, 40)[0]
    stats = engine.scheduler.stats()
    assert (stats.blocks_used, stats.swap_blocks_used, stats.swapped) == (0, 0, 0)
    assert (engine.worker.moved_out, engine.worker.moved_in) == (stats.blocks_swapped_out, stats.blocks_swapped_in)
    return stats


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_nothing_is_computed_twice(prefix_caching):
    engine, requests = two_that_outgrow_the_pool(prefix_caching=prefix_caching)
    stats = run_to_the_end(engine, requests)
    # The first one took three of its blocks; the two others still hold what they held.
    assert (stats.preemptions, stats.blocks_swapped_out, stats.blocks_swapped_in) == (1, 5, 3)
    assert engine.worker.computed == ALL


@pytest.mark.parametrize("options", [{"mode": "recompute"}, {"slots": 0}, {"slots": 4}])
def test_computed_again_without_swap_space_for_it(options):
    """A request goes out as a whole or not at all."""
    engine, requests = two_that_outgrow_the_pool(**options)
    stats = run_to_the_end(engine, requests)
    assert (stats.preemptions, stats.blocks_swapped_out, stats.blocks_swapped_in) == (1, 0, 0)
    assert engine.worker.computed == ALL + 20


def preempted(**options):
    """The second of two requests is in swap space, with 14 tokens in 4 blocks."""
    engine, requests = two_that_outgrow_the_pool(**options)
    engine.step()
    engine.step()
    engine.scheduler._preempt(engine.scheduler._running["bb"])
    stats = engine.scheduler.stats()
    assert (stats.running, stats.waiting, stats.swapped, stats.swap_blocks_used, stats.swap_blocks_total) == (1, 1, 1, 4, 20)
    return engine, requests


def test_the_copies_are_in_the_plan():
    engine, _ = preempted(prefix_caching=False)
    table = list(engine.worker.held["bb"].block_ids)
    plan = engine.scheduler.schedule()
    # It comes back at once: its full blocks are still there, and only the last one is copied.
    assert [block for block, _ in plan.swaps_out] == table
    assert [slot for slot, _ in plan.swaps_in] == [plan.swaps_out[-1][1]]
    (share,) = [share for share in plan.scheduled if share.request_id == "bb"]
    assert (share.num_tokens, share.new_block_ids[:3]) == (1, table[:3])
    assert plan.new[0].num_computed_tokens == 14
    engine.scheduler.update(plan, engine.worker.run(plan))


def test_an_abort_frees_the_slots():
    engine, requests = preempted()
    assert engine.scheduler.abort("bb")
    stats = engine.scheduler.stats()
    assert (stats.swapped, stats.swap_blocks_used) == (0, 0)
    engine.drain()
    assert engine.tokens["a"] == alone(requests[0], 40)[0]


def test_a_reset_waits_for_it_or_makes_it_compute_again():
    engine, requests = preempted(prefix_caching=True)
    engine.scheduler.abort("a")
    assert engine.scheduler.stats().blocks_used == 0
    assert engine.scheduler.reset_prefix_cache() is False
    assert engine.scheduler.stats().blocks_cached > 0
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True) is True
    assert engine.scheduler.stats().swap_blocks_used == engine.scheduler.stats().swapped == 0
    before = engine.worker.computed
    engine.drain()
    assert engine.tokens["bb"] == alone(requests[1], 40)[0]
    # Everything, though 14 tokens had been computed.
    assert engine.worker.computed - before == ALL // 2


def test_a_reset_does_not_swap_what_runs():
    engine, requests = two_that_outgrow_the_pool()
    engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True) is True
    assert engine.scheduler.stats().swap_blocks_used == 0
    run_to_the_end(engine, requests)


def test_a_step_that_breaks_off_leaves_nothing_to_trust_in_swap_space():
    """The worker may not have made the copies of the broken plan."""
    engine, requests = two_that_outgrow_the_pool()
    plan = engine.scheduler.schedule()
    while not plan.swaps_out:
        engine.scheduler.update(plan, engine.worker.run(plan))
        plan = engine.scheduler.schedule()
    assert engine.scheduler.stats().swapped == 1
    assert engine.scheduler.abandon() == ["a"]
    stats = engine.scheduler.stats()
    assert (stats.waiting, stats.swapped, stats.swap_blocks_used) == (1, 0, 0)
    before = engine.worker.computed
    engine.drain()
    # Its 21 known tokens and the others are computed once more.
    assert engine.worker.computed - before == 13 + 20 - 1
    assert engine.tokens["bb"] == alone(requests[1], 40)[0][-len(engine.tokens["bb"]) :]
    assert engine.scheduler.stats().blocks_swapped_in == 0


def test_samples_that_share_blocks_share_slots_and_blocks_again():
    """Three samples of a prompt of 2 full blocks and a bit: the full ones go out once and come back once."""
    engine = Engine(num_blocks=16, slots=20, mode="swap", prefix_caching=False)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    samples = [
        EngineRequest(f"s:{seed}", prompt, SamplingParams(max_tokens=9, seed=seed, ignore_eos=True), group_id="s") for seed in range(3)
    ]
    engine.add(*samples)
    for _ in range(4):
        engine.step()
    assert engine.scheduler.num_running == 3
    used = engine.scheduler.stats().blocks_used
    for _ in range(3):
        engine.scheduler._preempt(engine.scheduler._ranked()[-1])
    stats = engine.scheduler.stats()
    assert stats.swapped == 3
    assert stats.swap_blocks_used == used == 2 + 3
    # What the blocks held is gone before they come back.
    blocks = engine.scheduler._store.take(16)
    for block in reversed(blocks):
        engine.scheduler._store.release(block)
    computed = engine.worker.computed
    _, plan = engine.step()
    assert len(plan.swaps_out) == len(plan.swaps_in) == 5
    assert len(plan.scheduled) == 3
    first, *others = (engine.worker.held[sample.request_id].block_ids for sample in samples)
    assert [ids[:2] for ids in others] == [first[:2]] * 2
    assert (
        engine.scheduler.stats().blocks_used == len({*first, *others[0], *others[1]}) == 2 + sum(len(ids) - 2 for ids in (first, *others))
    )
    assert engine.worker.computed == computed + 3
    engine.drain()
    assert [engine.tokens[sample.request_id] for sample in samples] == [alone(sample, 64)[0] for sample in samples]


def test_what_others_hold_is_found_rather_than_copied():
    """With the prefix cache on, a request comes back to the blocks that it shares."""
    engine = Engine(num_blocks=16, slots=20, mode="swap", prefix_caching=True)
    first, second = (
        EngineRequest(name, list(range(9)) + end, SamplingParams(max_tokens=12, ignore_eos=True, seed=0))
        for name, end in (("a", []), ("b", [20]))
    )
    engine.add(first)
    engine.step()
    engine.add(second)
    engine.step()
    engine.scheduler._preempt(engine.scheduler._running["b"])
    assert engine.scheduler.stats().swap_blocks_used == 3
    _, plan = engine.step()
    assert (len(plan.swaps_out), len(plan.swaps_in)) == (3, 1)
    engine.drain()
    assert [engine.tokens[request.request_id] for request in (first, second)] == [alone(request, 64)[0] for request in (first, second)]


# --- the rule


def observed(rule, tokens, seconds, moves=0, swap_seconds=0.0, each=None):
    shares = [ScheduledRequest("a", each or tokens, [])] * (tokens // (each or tokens))
    plan = StepPlan(scheduled=shares, swaps_out=[(0, 0)] * moves)
    rule.observe(plan, StepResult(step_seconds=seconds, swap_seconds=swap_seconds))


def test_the_cheaper_way_is_taken():
    rule = PreemptionRule("auto")
    assert rule.swaps(10, 1)
    observed(rule, 100, 1.0)
    assert rule.swaps(10, 1)
    observed(rule, 100, 1.0, moves=10, swap_seconds=1.0)
    # A token takes 10 ms, and a block 100 ms each way.
    assert rule.swaps(10, 201)
    assert not rule.swaps(10, 199)
    assert rule.swaps(0, 1)


def test_measurements_are_followed_and_small_steps_say_nothing():
    rule = PreemptionRule("auto")
    observed(rule, 100, 1.0, moves=10, swap_seconds=1.0)
    for _ in range(50):
        observed(rule, 100, 10.0)
    assert rule.swaps(10, 21)
    observed(rule, 31, 0.0)
    observed(rule, 64, 0.0, each=1)
    assert rule.swaps(10, 21)
    for _ in range(50):
        observed(rule, 64, 0.64, moves=5, swap_seconds=5.0)
    assert not rule.swaps(10, 1900)
    assert rule.swaps(10, 2100)


def test_a_new_measurement_weighs_a_fifth():
    rule = PreemptionRule("auto")
    observed(rule, 100, 1.0, moves=10, swap_seconds=1.0)
    observed(rule, 100, 10.0)
    # 10 ms a token, then 100 ms, are 28; a block takes 100 ms.
    assert (rule.swaps(10, 71), rule.swaps(10, 72)) == (False, True)
    observed(rule, 31, 0.0, moves=10, swap_seconds=11.0)
    # And then 300.
    assert (rule.swaps(10, 214), rule.swaps(10, 215)) == (False, True)


@pytest.mark.parametrize(("mode", "swaps"), [("swap", True), ("recompute", False)])
def test_a_mode_that_decides(mode, swaps):
    rule = PreemptionRule(mode)
    observed(rule, 100, 1.0, moves=10, swap_seconds=1.0)
    assert [rule.swaps(blocks, tokens) for blocks, tokens in ((1, 10**9), (10**9, 1))] == [swaps, swaps]
