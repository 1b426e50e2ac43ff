"""A driver that is closed while it connects."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Callable, List, Optional

import pytest
import redis
import redis.asyncio
import redis.cluster
from redis.asyncio.cluster import RedisCluster

from holdfast import HoldfastError
from holdfast.core.driver import Claim, Grant, InspectQuery, Renewal
from holdfast.drivers.redis import redis_driver
from support.redis_drivers import (
    KINDS,
    Heard,
    claim_on,
    closing,
    grant_of,
    lease_of,
    refusal_of,
)


@pytest.fixture(params=["redis", "cluster"])
def open_client(request: pytest.FixtureRequest, redis_url: str, cluster_urls: List[str]) -> Callable[[], Any]:
    if request.param == "redis":
        return lambda: redis.asyncio.Redis.from_url(redis_url)
    return lambda: RedisCluster.from_url(cluster_urls[0])


async def test_a_call_that_is_closed_while_it_connects_fails_and_leaves_no_connection(
    open_client: Callable[[], Any], lock_name: str
) -> None:
    client = open_client()
    before = asyncio.all_tasks()
    # The driver is closed after each number of turns of the call, until the call has ended before.
    for turns in range(60):
        driver = redis_driver(client)
        call = asyncio.ensure_future(driver.inspect(InspectQuery(lock_name=lock_name)))
        for _ in range(turns):
            await asyncio.sleep(0)
        await driver.close()
        await asyncio.wait({call}, timeout=30)
        # Not a cancellation: the core would take that for the end of its own task.
        assert call.done() and not call.cancelled(), f"after {turns} turns"
        error = call.exception()
        assert error is None or isinstance(error, HoldfastError), f"after {turns} turns: {error!r}"
        left = [task for task in asyncio.all_tasks() - before if "_end_with_the_loop()" in repr(task)]
        assert left == [], f"a connection is left after {turns} turns"
    await client.close()


class _Listener:
    def wake(self, lock_name: str, claim_id: Optional[str] = None) -> None: ...

    def granted(self, claim_id: str, grant: Grant) -> None: ...

    def lost(self, claim_id: str, cause: Exception) -> None: ...

    def disconnected(self, cause: Exception) -> None: ...


@pytest.mark.parametrize("kind", ["redis", "cluster"])
async def test_calls_of_several_steps_that_a_synchronous_client_is_closed_under_end_and_leave_no_thread(
    kind: str, redis_url: str, cluster_urls: List[str], lock_name: str
) -> None:
    client: Any = redis.Redis.from_url(redis_url)
    if kind == "cluster":
        client = redis.cluster.RedisCluster.from_url(cluster_urls[0])
    before = set(threading.enumerate())
    for step in range(40):
        driver = redis_driver(client)
        calls: List["asyncio.Future[Any]"] = [
            asyncio.ensure_future(driver.acquire([Claim(f"{lock_name}:{step}", "1", "h", 3_000, waiter_ttl_ms=500)])),
            asyncio.ensure_future(driver.renew([Renewal(f"{lock_name}:{step}", "1", 1, 3_000)])),
            asyncio.ensure_future(driver.listen(_Listener())),
            asyncio.ensure_future(driver.inspect(InspectQuery())),
        ]
        # At different places of the calls, on a slow machine as well as on a fast one.
        await asyncio.sleep(step * 0.0002)
        await driver.close()
        _, stuck = await asyncio.wait(calls, timeout=30)
        assert not stuck and not any(call.cancelled() for call in calls), f"step {step}"
        errors = [call.exception() for call in calls]
        assert all(error is None or isinstance(error, HoldfastError) for error in errors), errors
    # The threads end by themselves, but not before `close` returns.
    for thread in set(threading.enumerate()) - before:
        await asyncio.to_thread(thread.join, 30)
    left = {each for each in set(threading.enumerate()) - before if each.name.startswith("holdfast")}
    assert left == set()
    client.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_forked_process_that_closes_the_driver_leaves_the_parents_connections_alone(
    kind: str, redis_url: str, lock_name: str
) -> None:
    """Both processes have one epoll instance: a socket that the child took out of it would be read by neither."""
    client: Any = (redis.asyncio.Redis if kind == "asyncio" else redis.Redis).from_url(redis_url)
    async with closing(redis_driver(client)) as driver:
        await driver.listen(heard := Heard())
        holder, waiter = claim_on(lock_name), claim_on(lock_name, waiter_ttl_ms=20_000)
        grant = await grant_of(driver, holder)
        await refusal_of(driver, waiter)
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
        assert await driver.release([lease_of(holder, grant)]) == [True]
        assert (await heard.grant_of(waiter)).fencing_token > grant.fencing_token
        assert not heard.causes
