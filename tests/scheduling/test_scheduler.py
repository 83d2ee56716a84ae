import time

import pytest
from mirror_worker import VOCAB, alone, make_request
from patience import patient
from stepped_engine import Engine, new_ids

from octavo.config.engine import SchedulerConfig
from octavo.kvcache.manager import KVCacheManager
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.plan import SampledToken, StepResult
from octavo.scheduling.scheduler import Scheduler, SchedulerError

# --- add


def refused(engine, request):
    with pytest.raises(InvalidRequestError) as caught:
        engine.add(request)
    assert not engine.scheduler.has_work or request.request_id == "again"
    return caught.value


def test_an_empty_prompt_is_refused():
    error = refused(Engine(), make_request("a", []))
    assert error.param == "prompt"
    assert "empty" in error.message


def test_a_prompt_leaves_room_for_one_token_in_the_context():
    engine = Engine(max_model_len=8)
    error = refused(engine, make_request("a", 8))
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert "the prompt has 8 tokens" in error.message
    assert "context of 8 tokens" in error.message
    engine.add(make_request("b", 7))
    engine.drain()
    assert (len(engine.tokens["b"]), engine.ends["b"]) == (1, "length")


def test_a_prompt_larger_than_the_pool_is_refused():
    engine = Engine(num_blocks=3)
    error = refused(engine, make_request("a", 12))
    assert error.param == "prompt"
    assert "need 13 tokens" in error.message
    assert "holds 12" in error.message
    engine.add(make_request("b", 11))
    engine.drain()
    assert (len(engine.tokens["b"]), engine.ends["b"]) == (1, "length")


@pytest.mark.parametrize("bad", [-1, VOCAB, 10**9])
def test_a_token_id_outside_the_vocabulary_is_refused(bad):
    error = refused(Engine(), make_request("a", [0, bad, VOCAB - 1]))
    assert error.param == "prompt"
    assert f"token id {bad} " in error.message
    assert f"vocabulary of {VOCAB} tokens" in error.message


def test_an_id_in_use_is_refused_until_its_request_is_over():
    engine = Engine()
    engine.add(make_request("again", 3, 2))
    error = refused(engine, make_request("again", 3))
    assert error.param == "request_id"
    assert "'again'" in error.message
    engine.drain()
    engine.add(make_request("again", 3, 2))
    engine.drain()
    assert len(engine.tokens["again"]) == 4


def test_the_callers_prompt_does_not_grow():
    engine = Engine()
    request = make_request("a", 3, 4)
    engine.add(request)
    engine.drain()
    assert len(request.prompt_token_ids) == 3


def test_a_worker_in_process_may_append_to_the_list_it_is_given():
    engine = Engine()
    engine.add(make_request("a", [1, 2], 3))
    plan = engine.scheduler.schedule()
    plan.new[0].token_ids.append(5)
    engine.scheduler.update(plan, StepResult([SampledToken("a", 5)]))
    engine.scheduler._preempt(engine.scheduler._running["a"])
    assert engine.scheduler.schedule().new[0].token_ids == [1, 2, 5]


# --- the token budget


def test_a_long_prompt_is_computed_in_chunks_and_sampled_at_its_end():
    engine = Engine(budget=8)
    engine.add(make_request("a", 20, 3))
    shares = [engine.step()[0]["a"] for _ in range(5)]
    assert shares == [8, 8, 4, 1, 1]
    assert engine.tokens["a"] == alone(make_request("a", 20, 3), 128)[0]


def test_blocks_come_with_the_chunks():
    engine = Engine(budget=6)
    engine.add(make_request("a", 20, 3))
    plans = [engine.step()[1] for _ in range(4)]
    assert [len(plan.scheduled[0].new_block_ids) for plan in plans] == [2, 1, 2, 0]
    assert engine.scheduler.stats().blocks_used == 5


def test_running_requests_go_before_waiting_ones_and_in_order():
    engine = Engine(budget=8)
    engine.add(make_request("a", 3, 9), make_request("b", 4, 9), make_request("c", 20, 9))
    assert engine.step()[0] == {"a": 3, "b": 4, "c": 1}
    assert engine.step()[0] == {"a": 1, "b": 1, "c": 6}
    engine.add(make_request("d", 4, 9))
    assert engine.step()[0] == {"a": 1, "b": 1, "c": 6}
    assert engine.step()[0] == {"a": 1, "b": 1, "c": 6}
    assert engine.step()[0] == {"a": 1, "b": 1, "c": 1, "d": 4}


def test_a_budget_smaller_than_the_batch_serves_the_first():
    engine = Engine(budget=2)
    engine.add(make_request("a", 1, 3), make_request("b", 1, 3), make_request("c", 1, 3))
    assert engine.step()[0] == {"a": 1, "b": 1}
    assert list(engine.step()[0]) == ["a", "b"]
    engine.drain()
    assert {len(tokens) for tokens in engine.tokens.values()} == {3}


def test_no_more_than_max_num_seqs_run():
    engine = Engine(seqs=2)
    engine.add(*(make_request(name, 2, 2) for name in "abc"))
    assert list(engine.step()[0]) == ["a", "b"]
    assert (engine.scheduler.num_running, engine.scheduler.num_waiting) == (2, 1)
    assert list(engine.step()[0]) == ["a", "b"]
    assert list(engine.step()[0]) == ["c"]


# --- preemption


def test_the_last_admitted_is_preempted_and_returns_with_all_its_tokens():
    engine = Engine(block_size=2, num_blocks=6)
    first, second, third = make_request("a", 3, 6), make_request("b", 3, 6), make_request("c", 1, 1)
    engine.add(first, second)
    assert list(engine.step()[0]) == ["a", "b"]
    engine.add(third)
    preempting = None
    while preempting is None:
        shares, plan = engine.step()
        if plan.removed:
            preempting = plan
    assert preempting.removed == ["b"]
    assert list(shares) == ["a"]
    assert new_ids(preempting) == []
    assert engine.scheduler.num_waiting == 2
    so_far = len(engine.tokens["b"])
    returning = None
    while returning is None:
        shares, plan = engine.step()
        if plan.new:
            returning = plan
    # The preempted request comes before the one that has waited since.
    assert new_ids(returning) == ["b", "c"]
    assert returning.new[0].token_ids == second.prompt_token_ids + engine.tokens["b"][:so_far]
    assert returning.new[0].num_prompt_tokens == 3
    assert shares["b"] == 3 + so_far
    engine.drain()
    assert engine.last["b"].num_preemptions == 1
    assert engine.last["a"].num_preemptions == 0
    assert engine.scheduler.stats().preemptions == 1
    for request in (first, second, third):
        assert engine.tokens[request.request_id] == alone(request, 12)[0]


def test_a_request_can_be_the_victim_of_its_own_growth():
    engine = Engine(block_size=1, num_blocks=8)
    engine.add(make_request("a", 1, 6), make_request("b", 3, 5))
    plans = []
    while engine.scheduler.num_running < 2 or not plans:
        plans.append(engine.step()[1])
    while not (plan := engine.step()[1]).removed:
        pass
    assert plan.removed == ["b"]
    assert [share.request_id for share in plan.scheduled] == ["a"]
    engine.drain()
    assert len(engine.tokens["a"]) == 6
    assert len(engine.tokens["b"]) == 5


def test_several_may_be_preempted_and_they_return_in_order_of_arrival():
    engine = Engine(block_size=1, num_blocks=40)
    requests = [make_request(name, length, 10) for name, length in (("a", 4), ("b", 2), ("c", 2), ("d", 3))]
    engine.add(*requests)
    engine.step()
    running = engine.scheduler._running
    for expected in ("d", "c", "b"):
        last = running[next(reversed(running))]
        assert last.request_id == expected
        engine.scheduler._preempt(last)
    assert [request.request_id for request in engine.scheduler._waiting] == ["b", "c", "d"]
    plan = engine.step()[1]
    assert plan.removed == ["d", "c", "b"]
    assert new_ids(plan) == ["b", "c", "d"]
    engine.drain()
    for request in requests:
        assert engine.tokens[request.request_id] == alone(request, 40)[0]


def test_a_prompt_is_not_admitted_on_its_first_chunk_alone():
    engine = Engine(block_size=4, num_blocks=8, budget=8)
    engine.add(make_request("a", 13, 20), make_request("b", 15, 2))
    shares = [list(engine.step()[0]) for _ in range(3)]
    # b's first chunk would fit, its whole prompt beside a and a's next block would not.
    assert shares == [["a"], ["a"], ["a"]]
    engine.drain()
    assert engine.scheduler.stats().preemptions == 0


def test_the_rest_of_a_half_computed_prompt_is_not_given_away():
    engine = Engine(block_size=4, num_blocks=8, budget=5)
    engine.add(make_request("a", 20, 1), make_request("b", 16, 1))
    seen = []
    while engine.scheduler.has_work:
        seen.append(list(engine.step()[0]))
    assert seen[:4] == [["a"]] * 4
    assert engine.scheduler.stats().preemptions == 0


def test_no_block_is_kept_free_for_a_token_that_is_never_computed():
    engine = Engine(block_size=4, num_blocks=2)
    engine.add(make_request("a", 3, 2), make_request("b", 4, 1))
    # a's fifth token is its last: it is sampled, and needs no slot.
    assert engine.step()[0] == {"a": 3, "b": 4}
    engine.drain()
    assert engine.scheduler.stats().preemptions == 0


# --- fairness


def test_a_long_request_is_not_overtaken_by_short_ones():
    engine = Engine(block_size=4, num_blocks=16, budget=32, seqs=8)
    engine.add(*(make_request(f"short-{i}", 4, 8) for i in range(20)))
    engine.add(make_request("long", 56, 4))
    admitted = []
    for number in range(60):
        # A preempted request comes in again; only its first time counts.
        admitted += [name for name in new_ids(engine.step()[1]) if name not in admitted]
        engine.add(make_request(f"late-{number}", 4, 8))
    late = [name for name in admitted if name.startswith("late")]
    assert admitted.index("long") == 20
    assert late == [f"late-{i}" for i in range(len(late))]
    assert len(late) > 5
    engine.drain()
    assert engine.ends["long"] == "length"


def test_every_request_of_a_crowd_ends_as_alone_under_heavy_preemption():
    engine = Engine(block_size=2, num_blocks=16, budget=16, seqs=16)
    requests = [make_request(f"{i}", 1 + i % 9, 1 + (7 * i) % 20, ignore_eos=i % 2 == 0) for i in range(64)]
    engine.add(*requests)
    engine.drain()
    assert engine.scheduler.stats().preemptions >= 20
    for request in requests:
        tokens, reason, _ = alone(request, 32)
        assert (engine.tokens[request.request_id], engine.ends[request.request_id]) == (tokens, reason)


# --- abort, failure, end


def test_a_waiting_request_is_aborted_without_a_word_to_the_worker():
    engine = Engine()
    engine.add(make_request("a", 3))
    assert engine.scheduler.abort("a") is True
    assert engine.scheduler.abort("a") is False
    assert not engine.scheduler.has_work
    assert engine.scheduler.request_ids == []


def test_a_running_request_is_aborted_and_the_next_plan_removes_it():
    engine = Engine()
    engine.add(make_request("a", 3), make_request("b", 3))
    engine.step()
    assert engine.scheduler.abort("a")
    assert engine.scheduler.request_ids == ["b"]
    assert engine.scheduler.stats().blocks_used == 1
    assert engine.step()[1].removed == ["a"]
    assert engine.step()[1].removed == []


def test_an_abort_during_a_step_drops_its_result():
    engine = Engine()
    engine.add(make_request("a", 3), make_request("b", 3))
    plan = engine.scheduler.schedule()
    assert engine.scheduler.abort("a")
    outputs = engine.scheduler.update(plan, engine.worker.run(plan))
    assert [output.request_id for output in outputs] == ["b"]
    assert engine.step()[1].removed == ["a"]


def test_an_id_used_again_during_the_step_gets_nothing_from_its_former_request():
    engine = Engine()
    engine.add(make_request("a", [1, 2, 3], 2))
    plan = engine.scheduler.schedule()
    engine.scheduler.abort("a")
    engine.add(make_request("a", [4, 5], 2))
    assert engine.scheduler.update(plan, engine.worker.run(plan)) == []
    plan = engine.step()[1]
    assert plan.removed == ["a"]
    assert plan.new[0].token_ids == [4, 5]
    engine.drain()
    assert engine.tokens["a"] == alone(make_request("a", [4, 5], 2), 128)[0]


def test_when_all_is_over_one_plan_tells_the_worker():
    engine = Engine()
    engine.add(make_request("a", 3, 1))
    engine.step()
    assert engine.ends == {"a": "length"}
    assert engine.scheduler.has_work
    shares, plan = engine.step()
    assert (shares, plan.removed, plan.num_tokens) == ({}, ["a"], 0)
    assert not engine.scheduler.has_work
    assert engine.worker.held == {}


def test_a_failed_request_ends_with_its_error_and_the_others_go_on():
    engine = Engine()
    requests = [make_request(name, 3, 4) for name in "abc"]
    engine.add(*requests)
    engine.step()
    engine.step(failing={"b"})
    output = engine.last["b"]
    assert (output.finish_reason, output.error, output.token_ids) == ("error", "made to fail", [])
    assert engine.scheduler.stats().blocks_used == 2
    assert engine.step()[1].removed == ["b"]
    engine.drain()
    assert engine.tokens["a"] == alone(requests[0], 128)[0]
    assert engine.tokens["c"] == alone(requests[2], 128)[0]


def test_a_request_can_fail_in_the_middle_of_its_prompt():
    engine = Engine(budget=4)
    engine.add(make_request("a", 12))
    engine.step(failing={"a"})
    assert engine.ends == {"a": "error"}
    assert engine.scheduler.stats().blocks_used == 0


@pytest.mark.parametrize(
    ("prompt", "answer", "error"),
    [(3, StepResult(), "the worker gave no token"), (9, StepResult([SampledToken("a", 1)]), "the worker gave a token out of turn")],
)
def test_a_worker_that_forgets_or_hastens_ends_only_that_request(prompt, answer, error):
    engine = Engine(budget=4)
    engine.add(make_request("a", prompt))
    (output,) = engine.scheduler.update(engine.scheduler.schedule(), answer)
    assert (output.finish_reason, output.error, output.token_ids) == ("error", error, [])


# --- outputs and figures


def test_outputs_carry_logprobs_and_the_time_of_the_first_step():
    engine = Engine(budget=4)
    engine.add(make_request("a", 6, 3))
    engine.now = 5.0
    engine.step()
    assert engine.last == {}
    engine.now = 7.0
    engine.step()
    output = engine.last["a"]
    assert output.first_scheduled_time == 5.0
    assert [entry.logprob for entry in output.logprobs] == [-float(output.token_ids[0])]


def test_the_first_scheduled_time_survives_a_preemption():
    engine = Engine()
    engine.add(make_request("a", 6, 3))
    engine.now = 5.0
    engine.step()
    engine.scheduler._preempt(engine.scheduler._running["a"])
    engine.now = 9.0
    engine.drain()
    assert engine.last["a"].first_scheduled_time == 5.0
    assert engine.last["a"].num_preemptions == 1


def test_no_logprobs_where_the_worker_gave_none():
    engine = Engine()
    engine.add(make_request("a", 2, 3))
    (output,) = engine.scheduler.update(engine.scheduler.schedule(), StepResult([SampledToken("a", 1)]))
    assert output.logprobs is None


def test_stats():
    engine = Engine(block_size=4, num_blocks=10, seqs=2)
    engine.add(make_request("a", 5), make_request("b", 8), make_request("c", 1))
    engine.step()
    stats = engine.scheduler.stats()
    assert (stats.running, stats.waiting, stats.preemptions) == (2, 1, 0)
    assert (stats.blocks_total, stats.blocks_used, stats.tokens_held, stats.step_tokens) == (10, 4, 13, 13)
    engine.step()
    stats = engine.scheduler.stats()
    assert (stats.blocks_used, stats.tokens_held, stats.step_tokens) == (5, 15, 2)


def test_plans_and_results_alternate():
    engine = Engine()
    engine.add(make_request("a", 3, 1))
    plan = engine.scheduler.schedule()
    with pytest.raises(SchedulerError, match="before the result"):
        engine.scheduler.schedule()
    result = engine.worker.run(plan)
    with pytest.raises(SchedulerError, match="not under way"):
        engine.scheduler.update(type(plan)(), result)
    engine.scheduler.update(plan, result)
    with pytest.raises(SchedulerError, match="not under way"):
        engine.scheduler.update(plan, result)


def test_an_idle_scheduler_plans_nothing():
    engine = Engine()
    shares, plan = engine.step()
    assert (shares, plan.removed, plan.new) == ({}, [], [])


# --- cost


def seconds_per_step(num_blocks, waiting, prompt):
    config = SchedulerConfig(max_num_batched_tokens=65536, max_num_seqs=32)
    scheduler = Scheduler(config, KVCacheManager(num_blocks, 16), max_model_len=4096, vocab_size=VOCAB)
    rest = [0] * (prompt - 4)
    for i in range(32 + waiting):
        # No two prompts begin alike.
        scheduler.add(make_request(f"{i}", [i // VOCAB**place % VOCAB for place in range(4)] + rest, 1000))
    best = float("inf")
    for _ in range(60):
        start = time.perf_counter()
        plan = scheduler.schedule()
        best = min(best, time.perf_counter() - start)
        scheduler.update(plan, StepResult([SampledToken(share.request_id, 1) for share in plan.scheduled]))
        assert len(plan.scheduled) == 32
    return best


def test_a_steps_cost_follows_neither_the_pool_nor_the_queue_nor_the_length():
    small = seconds_per_step(num_blocks=256, waiting=0, prompt=16)
    large = seconds_per_step(num_blocks=400_000, waiting=4000, prompt=1500)
    assert large < 5 * small + 1e-4
    assert small < patient(2e-3)
