"""A step whose worker broke off: its requests are gone, the others go on, and nothing leaks."""

from __future__ import annotations

import pytest
from mirror_worker import VOCAB, make_request

from octavo.config.engine import SchedulerConfig
from octavo.kvcache.manager import KVCacheManager
from octavo.protocol.plan import SampledToken, StepPlan, StepResult
from octavo.scheduling.scheduler import Scheduler, SchedulerError


@pytest.fixture
def scheduler() -> Scheduler:
    config = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=2)
    return Scheduler(config, KVCacheManager(16, 4), max_model_len=64, vocab_size=VOCAB)


def complete(scheduler: Scheduler, plan: StepPlan, due: set[str]) -> None:
    """Answers a plan with a token for each of `due`."""
    scheduler.update(plan, StepResult(sampled=[SampledToken(name, 1) for name in due]))


def test_its_requests_are_forgotten_and_the_others_are_not(scheduler: Scheduler) -> None:
    for name in "abc":
        scheduler.add(make_request(name, prompt=[1, 2, 3]))
    plan = scheduler.schedule()
    assert [share.request_id for share in plan.scheduled] == ["a", "b"]
    assert scheduler.abandon() == ["a", "b"]
    assert scheduler.request_ids == ["c"]
    assert scheduler.stats().blocks_used == 0
    after = scheduler.schedule()
    assert sorted(after.removed) == ["a", "b"]
    assert [share.request_id for share in after.scheduled] == ["c"]


def test_the_worker_is_told_again_what_to_remove(scheduler: Scheduler) -> None:
    scheduler.add(make_request("gone", prompt=[1, 2, 3]))
    complete(scheduler, scheduler.schedule(), {"gone"})
    scheduler.abort("gone")
    scheduler.add(make_request("new", prompt=[1, 2, 3]))
    assert scheduler.schedule().removed == ["gone"]
    scheduler.abandon()
    assert scheduler.has_work
    assert sorted(scheduler.schedule().removed) == ["gone", "new"]


def test_a_request_aborted_while_the_step_ran(scheduler: Scheduler) -> None:
    scheduler.add(make_request("a", prompt=[1, 2, 3]))
    scheduler.schedule()
    scheduler.abort("a")
    assert scheduler.abandon() == []
    assert scheduler.request_ids == []
    assert scheduler.schedule().removed == ["a"]


def test_without_a_step(scheduler: Scheduler) -> None:
    with pytest.raises(SchedulerError):
        scheduler.abandon()
    scheduler.schedule()
    scheduler.abandon()
    with pytest.raises(SchedulerError):
        scheduler.abandon()
