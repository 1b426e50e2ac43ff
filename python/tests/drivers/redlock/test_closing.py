"""A driver that is closed while it begins to listen."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, List, Optional

import pytest
import redis
import redis.asyncio

from holdfast.core.driver import Grant
from holdfast.drivers.redlock import redlock_driver
from holdfast.errors import HoldfastError


class _Listener:
    def concerns(self, claim_id: str) -> bool:
        return True

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
