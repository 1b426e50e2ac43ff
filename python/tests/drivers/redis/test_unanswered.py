"""A server that hangs: it accepts connections and commands, and answers none."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import count
from typing import Any, Awaitable, Callable, Optional

import pytest
from holdfast import DistributedLock
from holdfast.core.driver import Grant
from holdfast.core.limits import MAX_UNANSWERED_COMMANDS
from holdfast.drivers.redis import redis_driver
from holdfast.drivers.redlock import NodeError, redlock_driver
from holdfast.errors import StoreError

from support.redis_drivers import KINDS, claim_on, client_at, closing, error_of, grant_of, until

TOO_MANY = re.compile(r"has not answered \d+ commands")


class Counts:
    """What is in flight while the server is known to hang: until then, it may just be slow."""

    def __init__(self) -> None:
        self.most = 0
        self._known_since: Optional[float] = None

    def failed(self, error: str) -> None:
        if self._known_since is None and TOO_MANY.search(error):
            self._known_since = time.monotonic()

    async def watch(self, work: Callable[[int], Awaitable[int]]) -> None:
        """Calls `work`, which returns how much is in flight, for two seconds of that time."""
        start = time.monotonic()
        for at in count():
            in_flight = await work(at)
            known = 0.0 if self._known_since is None else time.monotonic() - self._known_since
            # What has timed out is gone a few turns of the event loop later.
            if known > 0.5:
                self.most = max(self.most, in_flight)
            if known > 2.5:
                return
            assert known or time.monotonic() - start < 20, "no command was refused"


@pytest.mark.parametrize("kind", KINDS)
async def test_failure_66_keeps_a_bounded_number_of_commands_and_all_is_well_when_the_server_answers(
    own_redis, kind, unique_name
):
    server = own_redis()
    async with closing(redis_driver(client_at(kind, server.port), command_timeout_seconds=1)) as driver:
        await grant_of(driver, claim_on(unique_name("before")))
        server.pause()
        counts = Counts()
        asking: "set[asyncio.Task[Any]]" = set()

        async def ask(at: int) -> None:
            [answer] = await driver.acquire([claim_on(unique_name(f"{at}"))])
            counts.failed(str(answer))

        async def begin(at: int) -> int:
            task = asyncio.ensure_future(ask(at))
            asking.add(task)
            task.add_done_callback(asking.discard)
            in_flight = len(asking)
            await asyncio.sleep(0.001)
            return in_flight

        await counts.watch(begin)
        # One more is about to be refused.
        assert counts.most <= MAX_UNANSWERED_COMMANDS + 1, f"{counts.most} commands were kept"
        server.resume()

        async def is_granted() -> bool:
            [answer] = await driver.acquire([claim_on(unique_name("after"))])
            return isinstance(answer, Grant)

        await until(is_granted, "no lock is granted after the server has come back")
        await asyncio.wait_for(asyncio.gather(*asking), 20)


async def test_failure_66_calls_right_after_an_outage_are_not_refused(own_redis, unique_name):
    server = own_redis()
    async with closing(redis_driver(client_at("asyncio", server.port), command_timeout_seconds=1)) as driver:
        server.pause()
        assert isinstance(await error_of(driver.acquire([claim_on(unique_name("during"))])), StoreError)
        server.resume()
        await grant_of(driver, claim_on(unique_name("after")))
        names = [unique_name(f"{at}") for at in range(2 * MAX_UNANSWERED_COMMANDS)]
        await asyncio.gather(*(grant_of(driver, claim_on(name)) for name in names))


@pytest.mark.parametrize("kind", KINDS)
async def test_failure_66_a_redlock_node_that_hangs_is_sent_a_bounded_number_of_commands(
    own_redis, kind, unique_name, monkeypatch
):
    monkeypatch.setattr("holdfast.drivers.redlock._COMMAND_TIMEOUT_SECONDS", 1)
    servers = [own_redis() for _ in range(5)]
    clients = [client_at(kind, server.port) for server in servers]
    counts = Counts()

    def failed(failure: NodeError) -> None:
        counts.failed(str(failure.error))

    lock = DistributedLock(redlock_driver(clients, persistent=True, on_node_error=failed))

    async def hold(at: int) -> int:
        async with lock.lock(unique_name(f"{at}")):
            pass
        return len(asyncio.all_tasks())

    try:
        await hold(0)
        servers[4].pause()
        await counts.watch(hold)
        # At most two for a command: one of the first vote waits for what the node says of itself.
        assert counts.most <= 2.5 * MAX_UNANSWERED_COMMANDS, f"{counts.most} tasks wait for the node"
    finally:
        servers[4].resume()
        await lock.close()
