"""An answer that has arrived counts, although the event loop was blocked for longer than it was waited for."""

from __future__ import annotations

import asyncio
import time
from typing import Any, AsyncIterator, Awaitable, Callable, List

import pytest
from holdfast import DistributedLock, StoreError

from conformance.faulty_network import Forward
from support.locks import Locks


@pytest.fixture
async def locks() -> AsyncIterator[Locks]:
    opened = Locks()
    yield opened
    await opened.close()


async def one(lock: DistributedLock) -> bool:
    async with lock.lock("a", blocking_timeout_seconds=0.3):
        return True


async def several(lock: DistributedLock) -> bool:
    async with lock.locks(["a", "b"], blocking_timeout_seconds=0.3):
        return True


async def again(lock: DistributedLock) -> bool:
    return (await lock.acquire("held", blocking_timeout_seconds=0.3, timeout_seconds=60)).acquired


async def renewal(lock: DistributedLock) -> bool:
    return await lock.extend("held", 60)


async def arrives(forward: Forward) -> Any:
    """After 100 ms it is in the socket, and then it passes through the callbacks and tasks of a driver."""
    await asyncio.sleep(0.1)
    answer = await forward()
    for _ in range(8):
        await asyncio.sleep(0)
    return answer


CASES: List[Any] = [
    pytest.param(one, {}, id="the waiting time of a claim"),
    pytest.param(several, {}, id="the waiting time of several claims"),
    pytest.param(again, {"reacquire": "extend"}, id="the waiting time of a re-acquisition"),
    pytest.param(renewal, {"call_timeout_seconds": 0.3}, id="the timeout of a call"),
]


@pytest.mark.parametrize("work, options", CASES)
async def test_failure_80_an_answer_that_has_arrived_counts_after(
    locks: Locks, work: Callable[[DistributedLock], Awaitable[bool]], options: Any
) -> None:
    lock, network = locks.behind_network(**options)
    assert await lock.acquire("held")
    for method in ("acquire", "renew"):
        network.always(method, arrives)
    working = asyncio.ensure_future(work(lock))
    await asyncio.sleep(0.05)
    time.sleep(0.5)
    assert await working is True


async def test_a_call_that_is_not_answered_still_fails_after_the_event_loop_was_blocked(locks: Locks) -> None:
    lock, network = locks.behind_network(call_timeout_seconds=0.3)
    assert await lock.acquire("held")
    network.cut()
    calls = [asyncio.ensure_future(each) for each in (lock.extend("held", 60), one(lock))]
    await asyncio.sleep(0.05)
    time.sleep(0.5)
    for call in calls:
        with pytest.raises(StoreError, match="did not answer"):
            await asyncio.wait_for(call, 5)
