"""One driver, or one instance, in two event loops."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import DistributedLock, SyncDistributedLock, UnsupportedError, connect


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres", "postgres+advisory"])
def url(request: Any, tmp_path: Any) -> str:
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/locks.db"
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return str(request.getfixturevalue("postgres_url")).replace("postgres://", f"{request.param}://")


async def test_a_driver_in_use_in_another_event_loop_is_refused_with_advice(url: str, lock_name: str) -> None:
    """The second event loop would lose the subscription of the first, and connect for each call."""
    driver = await connect(url)
    async with DistributedLock(driver) as lock:
        async with lock.lock(lock_name):

            async def elsewhere() -> None:
                with pytest.raises(UnsupportedError, match="driver is used in another event loop. Create one for each"):
                    await DistributedLock(driver).acquire(lock_name)

            await asyncio.to_thread(asyncio.run, elsewhere())
            with pytest.raises(UnsupportedError, match="another event loop"):
                await asyncio.to_thread(SyncDistributedLock(driver).acquire, lock_name)
            # The first event loop still has its subscription, and its leases.
            waiting = asyncio.ensure_future(DistributedLock(driver).acquire(lock_name, blocking_timeout_seconds=20))
            await asyncio.sleep(0.05)
        assert await waiting
    await driver.close()


def test_a_driver_may_be_used_in_the_next_event_loop_when_the_first_was_closed() -> None:
    from holdfast.drivers.memory import memory_driver

    driver = memory_driver()

    async def use() -> bool:
        async with DistributedLock(driver) as lock, lock.lock("job") as lease:
            return lease.held

    assert asyncio.run(use()) and asyncio.run(use())
    thread = threading.Thread(target=lambda: asyncio.run(use()))
    thread.start()
    thread.join()


def test_an_instance_that_was_closed_leaves_its_driver_to_another_event_loop() -> None:
    async def use(driver: Any) -> None:
        async with DistributedLock(driver) as lock, lock.lock("job"):
            pass

    from holdfast.drivers.memory import memory_driver

    driver = memory_driver()
    first = asyncio.new_event_loop()
    first.run_until_complete(use(driver))
    asyncio.run(use(driver))
    first.close()
