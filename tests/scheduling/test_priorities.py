"""Who is served first, who loses blocks first, and that nobody waits for ever."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mirror_worker import alone, make_request
from stepped_engine import Engine, new_ids

from octavo.kvcache.manager import KVCacheManager
from octavo.protocol.errors import InvalidRequestError
from octavo.scheduling.priority_queue import MOST_OVERTAKES, PriorityQueue
from octavo.scheduling.request import Request


def urgent(request, priority):
    return msgspec.structs.replace(request, priority=priority)


def waiting(*priorities):
    """Requests of these priorities, in order of arrival."""
    cache = KVCacheManager(1, 16)
    made = [urgent(make_request(f"r{number}", 3), priority) for number, priority in enumerate(priorities)]
    return [Request(request, cache, 16, number) for number, request in enumerate(made)]


def queue_of(requests):
    queue = PriorityQueue()
    for request in requests:
        queue.append(request)
    return queue


def taken(queue):
    head = queue.head()
    queue.take(head)
    return head


# --- the queue


def test_the_lowest_priority_first_and_among_equals_the_one_that_came_first():
    queue = queue_of(waiting(3, 0, -5, 0, 3))
    assert [request.number for request in queue] == [2, 1, 3, 0, 4]
    assert [taken(queue).number for _ in range(5)] == [2, 1, 3, 0, 4]
    assert len(queue) == 0
    with pytest.raises(LookupError, match="no request is waiting"):
        queue.head()


def test_a_preempted_request_takes_its_place_again():
    requests = waiting(1, 1, 0)
    queue = queue_of(requests)
    taken(queue)
    first = taken(queue)
    queue.push_front(first)
    assert [request.number for request in queue] == [0, 1]
    assert queue.head() is requests[0]


def test_one_can_leave_from_anywhere():
    requests = waiting(2, 1, 0)
    queue = queue_of(requests)
    queue.remove(requests[1])
    assert [request.number for request in queue] == [2, 0]
    with pytest.raises(KeyError):
        queue.remove(requests[1])


def test_the_oldest_is_next_after_it_has_been_overtaken_often_enough():
    requests = waiting(9, *([0] * 30))
    queue = queue_of(requests)
    order = [taken(queue).number for _ in range(31)]
    assert order.index(0) == MOST_OVERTAKES
    assert requests[0].favoured
    assert not any(request.favoured for request in requests[1:])
    assert requests[0].rank < requests[1].rank


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.data())
@settings(max_examples=200)
def test_nobody_is_overtaken_beyond_the_bound(priorities, data):
    """Newcomers of any priority, at any time, and requests that come back."""
    requests = waiting(*priorities)
    queue, arrived, admitted, overtaken = PriorityQueue(), [], 0, {}
    for request in requests:
        queue.append(request)
        arrived.append(request)
        overtaken[request] = (admitted, sum(other.number < request.number for other in queue))
        if data.draw(st.booleans()):
            continue
        head = taken(queue)
        admitted += 1
        since, older = overtaken[head]
        assert admitted - since <= (older + 1) * (MOST_OVERTAKES + 1)
    while len(queue):
        head = taken(queue)
        admitted += 1
        since, older = overtaken[head]
        assert admitted - since <= (older + 1) * (MOST_OVERTAKES + 1)


# --- the scheduler


def engine_with(**options):
    return Engine(policy="priority", **options)


def test_the_more_urgent_is_admitted_first():
    engine = engine_with(seqs=1)
    engine.add(urgent(make_request("late", 3, 2), 5), urgent(make_request("soon", 3, 2), 0), urgent(make_request("now", 3, 2), -1))
    order = []
    while engine.scheduler.has_work:
        order += new_ids(engine.step()[1])
    assert order == ["now", "soon", "late"]


def test_a_newcomer_goes_before_those_that_wait():
    engine = engine_with(seqs=1)
    engine.add(*(make_request(name, 3, 3) for name in "ab"))
    engine.step()
    engine.add(urgent(make_request("c", 3, 3), -1))
    order = []
    while engine.scheduler.has_work:
        order += new_ids(engine.step()[1])
    assert order == ["c", "b"]


def test_the_budget_goes_to_the_more_urgent_first():
    engine = engine_with(budget=4)
    engine.add(urgent(make_request("slow", 12, 3), 1))
    assert engine.step()[0] == {"slow": 4}
    engine.add(make_request("fast", 2, 3))
    # A running request is not put off by one that waits; among running ones the more urgent has its tokens first.
    assert engine.step()[0] == {"slow": 4}
    assert engine.step()[0] == {"slow": 4}
    assert engine.step()[0] == {"slow": 1, "fast": 2}
    assert list(engine.step()[0]) == ["fast", "slow"]


def test_the_least_urgent_is_preempted_first_whenever_it_came():
    engine = engine_with(block_size=1, num_blocks=16)
    engine.add(urgent(make_request("patient", 3, 12), 9))
    engine.step()
    engine.add(make_request("a", 3, 9), make_request("b", 3, 9))
    removed = []
    while not removed:
        removed = engine.step()[1].removed
    assert removed == ["patient"]
    engine.drain()
    for request in (make_request("patient", 3, 12), make_request("a", 3, 9), make_request("b", 3, 9)):
        assert engine.tokens[request.request_id] == alone(request, 16)[0]
    assert engine.last["patient"].num_preemptions > 0
    assert engine.last["a"].num_preemptions == 0


def test_a_patient_request_ends_however_many_urgent_ones_keep_coming():
    """A stream of urgent requests that would fill every seat and every block for ever."""
    engine = engine_with(block_size=1, num_blocks=24, seqs=3)
    patient = urgent(make_request("patient", 8, 12), 1000)
    engine.add(patient)
    number = 0
    for _ in range(200):
        while engine.scheduler.num_waiting < 4:
            engine.add(make_request(f"urgent{number}", 3, 6))
            number += 1
        engine.step()
        if "patient" in engine.ends:
            break
    assert engine.ends["patient"] == "length"
    assert engine.tokens["patient"] == alone(patient, 24)[0]
    assert number > MOST_OVERTAKES


def test_one_that_was_let_in_for_its_age_keeps_its_blocks():
    engine = engine_with(block_size=1, num_blocks=24, seqs=3)
    engine.add(*(make_request(f"urgent{number}", 3, 6) for number in range(3)))
    engine.step()
    engine.add(urgent(make_request("patient", 8, 12), 1000))
    seen = 0
    for number in range(3, 60):
        engine.add(make_request(f"urgent{number}", 3, 6))
        engine.step()
        request = engine.scheduler._requests.get("patient")
        if request is not None and request.favoured:
            seen += 1
            assert engine.scheduler._ranked()[0] is request
    assert seen > 5
    engine.drain()
    assert engine.ends["patient"] == "length"


def test_every_request_ends_as_alone_under_heavy_preemption():
    engine = engine_with(block_size=2, num_blocks=16, budget=16, seqs=16, prefix_caching=True)
    requests = [urgent(make_request(f"{i}", [i % 24, *range(i % 9)], 1 + (7 * i) % 20), (5 * i) % 7 - 3) for i in range(64)]
    engine.add(*requests)
    engine.drain()
    assert engine.scheduler.stats().preemptions >= 20
    for request in requests:
        assert engine.tokens[request.request_id] == alone(request, 32)[0]


def test_a_priority_means_something_under_its_policy_only():
    engine = Engine()
    with pytest.raises(InvalidRequestError, match="priority 2 has no meaning here: the engine serves first come, first served") as caught:
        engine.add(urgent(make_request("a", 3), 2))
    assert caught.value.param == "priority"
    assert engine.scheduler.request_ids == []
    engine.add(urgent(make_request("a", 3), 0))
