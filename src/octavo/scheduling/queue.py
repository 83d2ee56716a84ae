"""Requests that wait for their first step, or for their return after a preemption."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from octavo.scheduling.request import Request


class WaitingQueue:
    """First come, first served. Every operation is O(1), also taking an aborted request from the middle.

    A preempted request goes back to the front. The scheduler admits from the front and preempts the last admitted first, so running
    and waiting requests together stay in order of arrival.
    """

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def append(self, request: Request) -> None:
        """A new request, behind all others."""
        self._requests[request.request_id] = request

    def push_front(self, request: Request) -> None:
        """A preempted request, before all others."""
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def head(self) -> Request:
        """The request that is next. Raises LookupError if there is none."""
        for request in self._requests.values():
            return request
        raise LookupError("no request is waiting")

    def take(self, request: Request) -> None:
        """The head is admitted."""
        self.remove(request)

    def remove(self, request: Request) -> None:
        """Takes a request from wherever it stands. Raises KeyError if it is not waiting."""
        del self._requests[request.request_id]
