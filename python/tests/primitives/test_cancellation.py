"""A call that is cancelled at any await leaves nothing behind: neither a lease nor a place in the queue.

Each case is cancelled after every number of steps of the event loop, until it ends by itself. So every await of the
call is hit, also those between the grant and the return.
"""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Coroutine, Dict, List, Tuple

import pytest

from holdfast import LeaderElection, OnceOnly, RateLimiter, ReadWriteLock, Semaphore, Term
from holdfast.core.driver import InspectQuery
from holdfast.drivers.memory import MemoryDriver, MemoryStore, memory_driver

Call = Callable[[MemoryDriver, List[Any]], Coroutine[Any, Any, Any]]


class SlowDriver(MemoryDriver):
    """Answers after some turns of the event loop, so that there are awaits to be cancelled at."""

    async def acquire(self, claims: Any) -> Any:
        await _turns()
        answer = await super().acquire(claims)
        await _turns()
        return answer

    async def renew(self, renewals: Any) -> Any:
        await _turns()
        return await super().renew(renewals)

    async def release(self, leases: Any) -> Any:
        await _turns()
        answer = await super().release(leases)
        await _turns()
        return answer

    async def inspect(self, query: Any) -> Any:
        await _turns()
        return await super().inspect(query)


async def _turns() -> None:
    for _ in range(2):
        await asyncio.sleep(0)


def _kept(kind: Any, made: List[Any], driver: MemoryDriver, **options: Any) -> Any:
    instance = kind(driver, **options)
    made.append(instance)
    return instance


async def campaign(driver: MemoryDriver, made: List[Any]) -> None:
    term: Term = await _kept(LeaderElection, made, driver, name="name").campaign(value=1)
    await term.resign()


async def run(driver: MemoryDriver, made: List[Any]) -> None:
    election = _kept(LeaderElection, made, driver, name="name")

    async def lead(term: Term) -> None:
        await _turns()
        raise EOFError

    try:
        await election.run(lead)
    except EOFError:
        pass


async def once(driver: MemoryDriver, made: List[Any]) -> None:
    async def job(_: Any) -> None:
        await _turns()
        raise EOFError

    try:
        await _kept(OnceOnly, made, driver).once("name", job, for_seconds=60)
    except EOFError:
        pass


async def read(driver: MemoryDriver, made: List[Any]) -> None:
    async with _kept(ReadWriteLock, made, driver).read("name", blocking=True):
        await _turns()


async def write(driver: MemoryDriver, made: List[Any]) -> None:
    async with _kept(ReadWriteLock, made, driver).write("name", blocking=True):
        await _turns()


async def permits(driver: MemoryDriver, made: List[Any]) -> None:
    async with _kept(Semaphore, made, driver, limit=1).permits("name", blocking=True):
        await _turns()


async def hold(driver: MemoryDriver, made: List[Any]) -> None:
    lease = await _kept(Semaphore, made, driver, limit=1).hold("name", blocking=True)
    await lease.release()


CASES: Dict[str, Tuple[Call, str]] = {
    "campaign": (campaign, "name"),
    "run": (run, "name"),
    "once": (once, "once:name:run"),
    "read": (read, "name"),
    "write": (write, "name"),
    "permits": (permits, "name"),
    "hold": (hold, "name"),
}


async def _leftovers(store: MemoryStore) -> List[str]:
    page = await memory_driver(store).inspect(InspectQuery())
    return [f"lease {each.lock_name}" for each in page.leases] + [f"waiter {each.lock_name}" for each in page.waiters]


@pytest.mark.parametrize("waits", [False, True], ids=["free", "held"])
@pytest.mark.parametrize("case", CASES)
async def test_a_call_that_is_cancelled_at_any_await_leaves_nothing_behind(case: str, waits: bool) -> None:
    call, lock_name = CASES[case]
    is_over = False
    steps = 0
    while not is_over:
        store = MemoryStore()
        made: List[Any] = []
        rival = await ReadWriteLock(memory_driver(store)).hold_write(lock_name) if waits else None
        task = asyncio.create_task(call(SlowDriver(store), made))
        for step in range(steps):
            await asyncio.sleep(0)
            # The lock becomes free in the middle, so that the cancellation also meets a grant without a request.
            if rival is not None and step == 12:
                await rival.release()
                rival = None
        is_over = task.done()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or is_over, task
        # Before the instance is closed, which would release everything. A withdrawal in the background takes turns.
        expected = [] if rival is None else [f"lease {lock_name}"]
        for _ in range(60):
            if await _leftovers(store) == expected:
                break
            await asyncio.sleep(0)
        assert await _leftovers(store) == expected, f"cancelled after {steps} steps"
        for instance in made:
            await instance.close()
        steps += 1
    assert steps > 10


async def test_a_rate_limit_wait_that_is_cancelled_at_any_await_leaves_no_call_behind() -> None:
    for steps in range(30):
        limiter = RateLimiter(SlowDriver(), limits="2/hour")
        await limiter.consume("key", cost=2)
        first = asyncio.create_task(limiter.wait("key", blocking_timeout_seconds=7_000))
        second = asyncio.create_task(limiter.wait("key", blocking_timeout_seconds=7_000))
        for _ in range(steps):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        await limiter.reset("key")
        assert await second
        assert limiter._waiting._calls == set() and limiter._waiting._queues == {}
        await limiter.close()


@pytest.mark.parametrize("case", CASES)
async def test_a_program_that_cancels_all_its_tasks_and_goes_on_leaves_nothing_behind(case: str) -> None:
    """Also the tasks of the library itself: one that has not begun would never send its release, and the heartbeat
    would renew the lease for ever."""
    call, _ = CASES[case]
    steps = 0
    is_over = False
    while not is_over:
        store = MemoryStore()
        made: List[Any] = []
        task = asyncio.create_task(call(SlowDriver(store), made))
        for _ in range(steps):
            await asyncio.sleep(0)
        is_over = task.done()
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        await asyncio.wait({task}, timeout=15)
        # A call that was cancelled in the driver is repeated after a pause.
        for _ in range(3_000):
            if not await _leftovers(store):
                break
            await asyncio.sleep(0.001)
        assert await _leftovers(store) == [], f"cancelled after {steps} steps"
        for instance in made:
            await instance.close()
        steps += 1
    assert steps > 10
