"""A driver that is closed while it connects."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, List

import pytest
import redis.asyncio
from redis.asyncio.cluster import RedisCluster

from holdfast import HoldfastError
from holdfast.core.driver import InspectQuery
from holdfast.drivers.redis import redis_driver


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
        left = [task for task in asyncio.all_tasks() - before if "_read()" in repr(task)]
        assert left == [], f"a connection is left after {turns} turns"
    await client.close()
