"""Functions beside the event loop: what they give, how many run at once, and that nothing waits for them at the end."""

import asyncio
import threading

import pytest

from octavo.utils.background import MOST_THREADS, in_background


def test_results_and_errors_come_back():
    async def ask():
        assert await in_background(divmod, 7, 2) == (3, 1)
        assert await in_background(int, "ff", base=16) == 255
        with pytest.raises(ZeroDivisionError):
            await in_background(divmod, 7, 0)

    asyncio.run(ask())


def test_no_more_than_a_few_run_at_once():
    running, most, lock, together = 0, 0, threading.Lock(), threading.Barrier(MOST_THREADS)

    def work():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(60)
        with lock:
            running -= 1

    async def ask():
        await asyncio.gather(*(in_background(work) for _ in range(4 * MOST_THREADS)))

    asyncio.run(ask())
    assert most == MOST_THREADS


def test_the_loop_ends_while_one_still_runs_whose_caller_gave_up():
    release, began = threading.Event(), threading.Event()

    def endless():
        began.set()
        release.wait(60)

    async def ask():
        task = asyncio.create_task(in_background(endless))
        while not began.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    (left,) = [thread for thread in threading.enumerate() if thread.name == "octavo-background"]
    assert left.daemon
    release.set()
    left.join(10)
    assert not left.is_alive()
