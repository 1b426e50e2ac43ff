"""A program whose event loop begins tasks at once (`asyncio.eager_task_factory`)."""

from __future__ import annotations

import asyncio
from typing import Any, List, Sequence

import pytest

from holdfast import DistributedLock
from holdfast.core.driver import Claim
from holdfast.drivers.memory import MemoryStore, memory_driver
from support.eager_tasks import make_tasks_eager


@pytest.fixture(params=["memory", "sqlite", "redis", "redis sync", "redlock", "postgres", "postgres+advisory"])
def store(request: pytest.FixtureRequest) -> Any:
    if request.param == "memory":
        return "memory:"
    if request.param == "redis sync":
        import redis

        return redis.Redis.from_url(request.getfixturevalue("redis_url"))
    url = request.getfixturevalue(f"{request.param.partition('+')[0]}_url")
    if request.param == "redlock":
        # Otherwise a server that has just started does not vote.
        return f"{url}?persistent=true"
    return url.replace("postgres:", f"{request.param}:", 1)


async def test_a_lock_is_acquired_handed_over_and_released(store: Any, lock_name: str) -> None:
    make_tasks_eager()
    async with DistributedLock(store) as lock:
        async with await lock.hold(lock_name) as lease:
            waiting = asyncio.ensure_future(lock.acquire(lock_name, blocking_timeout_seconds=30))
            await asyncio.sleep(0.05)  # It waits in the store.
            assert lease.held and not waiting.done()
        assert await waiting
        assert await lock.release(lock_name)


async def test_requests_of_one_turn_are_one_list() -> None:
    make_tasks_eager()
    driver: Any = memory_driver(MemoryStore())
    acquire, lists = driver.acquire, []

    async def count(claims: Sequence[Claim]) -> Any:
        lists.append(len(claims))
        return await acquire(claims)

    driver.acquire = count
    async with DistributedLock(driver) as lock:
        await lock.ping()
        lists.clear()
        results: List[Any] = await asyncio.gather(*(lock.acquire(f"name {each}") for each in range(5)))
        assert all(results) and lists == [5]
