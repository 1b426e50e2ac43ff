"""A lease that a thread asks, or that is asked after its event loop was closed. And blocks that overlap."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Callable, List

from holdfast import DistributedLock, LeaseLostError
from holdfast._reentry import current_frame

from support.locks import Locks, until


def answers_of(lease: Any) -> List[Any]:
    def answer(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as error:
            return type(error)

    return [answer(ask) for ask in (lambda: lease.held, lease.lost.is_set, lease.assert_held)]


LOST = [False, True, LeaseLostError]


async def test_rule_2_a_thread_that_works_under_a_lease_learns_that_its_time_has_passed() -> None:
    """Only the event loop's own thread may report the loss: it would otherwise not be woken, or run it twice."""
    asyncio.get_running_loop().set_debug(True)  # It refuses calls from other threads.
    locks = Locks()
    lease = await locks().hold("a", timeout_seconds=0.1, heartbeat=False)
    reported: List[Any] = []
    lease.add_loss_callback(lambda error: reported.append(threading.get_ident()))
    found: List[Any] = []

    def work() -> None:
        time.sleep(0.15)
        found.extend(answers_of(lease))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()  # The event loop is blocked meanwhile, and cannot have noticed it.
    assert found == LOST and reported == []
    await until(lambda: reported)
    assert reported == [threading.get_ident()] and answers_of(lease) == LOST
    await until(lambda: locks.holders == 0)
    await locks.close()


def test_rule_2_a_lease_can_be_asked_after_its_event_loop_was_closed() -> None:
    async def hold() -> Any:
        return await DistributedLock("memory:").hold("a", timeout_seconds=0.1)

    lease = asyncio.run(hold())
    time.sleep(0.15)
    assert answers_of(lease) == LOST


async def test_blocks_that_overlap_know_of_each_other_and_leave_nothing() -> None:
    """Each block begins before the one before it has ended."""
    locks = Locks()
    lock = locks()
    before = lock.lock("0")
    await before.__aenter__()
    for number in range(1, 50):
        block = lock.lock(str(number))
        await block.__aenter__()
        await before.__aexit__(None, None, None)
        async with lock.lock(str(number)):
            pass
        before = block
    depth, frame = 0, current_frame.get()
    while frame is not None:
        depth, frame = depth + 1, frame.outer
    assert depth <= 2
    await before.__aexit__(None, None, None)
    assert current_frame.get() is None and locks.holders == 0
    await locks.close()
