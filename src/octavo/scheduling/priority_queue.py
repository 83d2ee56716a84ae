"""Requests that wait while some are more urgent than others."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from octavo.scheduling.request import Request

# So many requests may go before an older one, one after another; then the oldest is next whatever its priority.
MOST_OVERTAKES = 8


class PriorityQueue:
    """The lowest `priority` first, and of equal ones the one that came first. A request that was preempted keeps its place.

    Nobody waits for ever: when MOST_OVERTAKES requests in a row have gone before the oldest one that waits, it is the next, and is
    `favoured` from then on, so that no other takes its blocks away again. With k older ones before it a request is admitted after at most
    (k + 1) · (MOST_OVERTAKES + 1) others, whatever comes behind it. Operations take O(log requests) comparisons.
    """

    __slots__ = ("_by_age", "_by_rank", "_overtakes", "_requests")

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._by_rank: list[tuple[int, int]] = []
        self._by_age: list[int] = []
        self._overtakes = 0

    def __len__(self) -> int:
        return len(self._by_age)

    def __iter__(self) -> Iterator[Request]:
        return (self._requests[number] for _, number in self._by_rank)

    def append(self, request: Request) -> None:
        """A new request."""
        self._requests[request.number] = request
        insort(self._by_rank, (request.priority, request.number))
        insort(self._by_age, request.number)

    def push_front(self, request: Request) -> None:
        """A preempted request, which takes the place that it would have if it had waited all the time."""
        self.append(request)

    def head(self) -> Request:
        """The request that is next. Raises LookupError if there is none."""
        if not self._by_age:
            raise LookupError("no request is waiting")
        return self._requests[self._by_age[0] if self._overtakes >= MOST_OVERTAKES else self._by_rank[0][1]]

    def take(self, request: Request) -> None:
        """The head is admitted."""
        if request.number != self._by_age[0]:
            self._overtakes += 1
        else:
            request.favoured = request.favoured or self._overtakes >= MOST_OVERTAKES
            self._overtakes = 0
        self.remove(request)

    def remove(self, request: Request) -> None:
        """Takes a request from wherever it stands. Raises KeyError if it is not waiting."""
        del self._requests[request.number]
        del self._by_rank[bisect_left(self._by_rank, (request.priority, request.number))]
        del self._by_age[bisect_left(self._by_age, request.number)]
