"""A driver that is closed while it begins to listen, in a forked process, or after its event loop has ended."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, List, Optional

import pytest
import redis
import redis.asyncio

from holdfast.core.driver import Grant
from holdfast.drivers.redlock import redlock_driver
from holdfast.errors import HoldfastError
from support.redis_drivers import Heard, claim_on, grant_of, lease_of


class _Listener:
    def wake(self, lock_name: str, claim_id: Optional[str] = None) -> None: ...

    def granted(self, claim_id: str, grant: Grant) -> None: ...

    def lost(self, claim_id: str, cause: Exception) -> None: ...

    def disconnected(self, cause: Exception) -> None: ...


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_driver_that_is_closed_while_it_begins_to_listen_leaves_no_subscription(
    kind: str, redis_urls: List[str]
) -> None:
    module: Any = redis.asyncio if kind == "async" else redis
    clients = [module.Redis.from_url(url) for url in redis_urls]
    unheard: List[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    listening: "asyncio.Future[Any]"
    # After each number of turns of the event loop, until it listens.
    for turns in range(500):
        driver = redlock_driver(clients, persistent=True)
        listening = asyncio.ensure_future(driver.listen(_Listener()))
        for _ in range(turns):
            await asyncio.sleep(0 if kind == "async" else 0.0001)
        is_over = listening.done()
        await driver.close()
        await asyncio.wait({listening}, timeout=30)
        # Not a cancellation: the core would take that for the end of its own task.
        assert listening.done() and not listening.cancelled(), f"after {turns} turns"
        error = listening.exception()
        assert error is None or isinstance(error, HoldfastError), f"after {turns} turns: {error!r}"
        left = [task for task in asyncio.all_tasks() - tasks if "_read()" in repr(task)]
        assert left == [], f"a connection is left after {turns} turns"
        if is_over:
            break
    for thread in set(threading.enumerate()) - threads:
        if isinstance(thread, threading._DummyThread):
            continue  # A thread of another test that Python knows only by its number.
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive(), f"{thread.name} is left"
    assert unheard == []


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_forked_process_that_closes_the_driver_leaves_the_parents_subscriptions_alone(
    kind: str, redis_urls: List[str], lock_name: str
) -> None:
    module: Any = redis.asyncio if kind == "async" else redis
    driver = redlock_driver([module.Redis.from_url(url) for url in redis_urls], persistent=True)
    await driver.listen(heard := Heard())
    claim = claim_on(lock_name)
    grant = await grant_of(driver, claim)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(driver.close())
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert await driver.release([lease_of(claim, grant)]) == [True]
    await heard.wake_of(claim)
    assert not heard.causes
    await driver.close()


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_driver_hears_releases_in_a_second_event_loop(kind: str, redis_urls: List[str], lock_name: str) -> None:
    module: Any = redis.asyncio if kind == "async" else redis
    driver = redlock_driver([module.Redis.from_url(url) for url in redis_urls], persistent=True)

    async def hear() -> None:
        await driver.listen(heard := Heard())
        claim = claim_on(lock_name)
        assert await driver.release([lease_of(claim, await grant_of(driver, claim))]) == [True]
        await heard.wake_of(claim)

    for _ in range(2):
        asyncio.run(hear())
    asyncio.run(driver.close())
