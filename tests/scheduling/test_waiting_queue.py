import pytest
from mirror_worker import make_request

from octavo.kvcache.manager import KVCacheManager
from octavo.scheduling.queue import WaitingQueue
from octavo.scheduling.request import Request


def requests(names):
    cache = KVCacheManager(1, 16)
    return [Request(make_request(name, 3), cache, 16) for name in names]


def ids(queue):
    return "".join(request.request_id for request in queue)


def test_first_come_first_served_and_preempted_ones_first():
    queue = WaitingQueue()
    a, b, c, d = requests("abcd")
    queue.append(c)
    queue.append(d)
    queue.push_front(b)
    queue.push_front(a)
    assert ids(queue) == "abcd"
    assert len(queue) == 4
    assert queue.head() is a


def test_one_can_leave_from_anywhere():
    queue = WaitingQueue()
    a, b, c = requests("abc")
    for request in (a, b, c):
        queue.append(request)
    queue.remove(b)
    assert ids(queue) == "ac"
    queue.remove(a)
    assert queue.head() is c
    with pytest.raises(KeyError):
        queue.remove(a)


def test_an_empty_queue_has_no_head():
    with pytest.raises(LookupError, match="no request is waiting"):
        WaitingQueue().head()
