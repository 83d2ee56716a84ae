"""Several requests' outputs as one stream."""

import asyncio
import gc

import pytest

from octavo.server.streaming import merge


async def failing(number):
    await asyncio.sleep(0)
    raise ValueError(number)
    yield


async def test_when_several_fail_at_once_no_error_is_left_unread():
    accidents = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: accidents.append(context))
    with pytest.raises(ValueError, match="0"):
        async for _ in merge([failing(number) for number in range(4)]):
            pass
    gc.collect()
    await asyncio.sleep(0)
    assert accidents == []
