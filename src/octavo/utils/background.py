"""Work beside an event loop that nobody waits for when the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MOST_THREADS = 4

_places: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


async def in_background(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `function` returns or raises, called on a thread; four run at a time, others wait their turn.

    Unlike those of `asyncio.to_thread`, the thread keeps neither the loop nor the process from ending. A caller that is cancelled leaves it
    running, and in its place until it is done.
    """
    loop = asyncio.get_running_loop()
    places = _places.setdefault(loop, asyncio.Semaphore(MOST_THREADS))
    await places.acquire()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        places.release()
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = function(*args, **kwargs)
        except BaseException as caught:
            error = caught
        # The loop may be over.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, result, error)

    try:
        threading.Thread(target=work, name="octavo-background", daemon=True).start()
    except RuntimeError:
        places.release()
        raise
    return await done
