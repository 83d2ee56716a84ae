"""Code that recurses as deep as a request's grammar is nested, and would end the process where its stack does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

# Memory is taken as it is used. A grammar of the greatest size that is allowed by default, nested all the way, needs a part of it.
STACK_BYTES = 256 << 20
_ONE_AT_A_TIME = threading.Lock()


def call_deep(function: Callable[[], T]) -> T:
    """What `function` gives or raises, called on a thread with room for deep recursion."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, name="octavo-grammar")
    with _ONE_AT_A_TIME:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return done.result()
