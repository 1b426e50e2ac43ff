"""The lock over a client that the application has: what people write."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Callable

import asyncpg
import psycopg
import psycopg_pool
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast.core.driver import ANY_TOKEN
from holdfast import DistributedLock, LeaseLostError, NotAcquiredError, SyncDistributedLock
from support.names import unique
from support.postgres import claim_on, grant_of, opened
from support.steered_clock import SteeredClock

CLIENTS = ["url", "asyncpg pool", "asyncpg connection", "psycopg", "psycopg pool", "psycopg sync", "engine", "handle"]


async def client_of(kind: str, url: str, cleanup: AsyncExitStack) -> Any:
    if kind == "url":
        return url
    if kind == "asyncpg pool":
        return await cleanup.enter_async_context(asyncpg.create_pool(url, min_size=0, max_size=2))
    if kind == "asyncpg connection":
        connection = await asyncpg.connect(url)
        cleanup.push_async_callback(connection.close)
        return connection
    if kind == "psycopg":
        of_psycopg = await psycopg.AsyncConnection.connect(url, autocommit=True)
        cleanup.push_async_callback(of_psycopg.close)
        return of_psycopg
    if kind == "psycopg pool":
        pool: Any = psycopg_pool.AsyncConnectionPool(url, min_size=1, max_size=2)
        cleanup.push_async_callback(pool.close)
        return pool
    if kind == "psycopg sync":
        sync = psycopg.connect(url, autocommit=True)
        cleanup.callback(sync.close)
        return sync
    if kind == "engine":
        engine = create_async_engine(url.replace("postgres://", "postgresql+asyncpg://"))
        cleanup.push_async_callback(engine.dispose)
        return engine

    class Handle:
        def __init__(self, connections: Any) -> None:
            self._connections = connections

        async def execute(self, sql: str, *args: Any) -> Any:
            return await self._connections.fetch(sql, *args)

    return Handle(await cleanup.enter_async_context(asyncpg.create_pool(url, min_size=0, max_size=2)))


@pytest.mark.parametrize("kind", CLIENTS)
async def test_async_with_lock_over_every_client(kind: str, postgres_url: str, lock_name: str) -> None:
    async with AsyncExitStack() as cleanup:
        lock = DistributedLock(await client_of(kind, postgres_url, cleanup))
        rival = DistributedLock(postgres_url)
        cleanup.push_async_callback(lock.close)
        cleanup.push_async_callback(rival.close)
        async with lock.lock(lock_name) as lease:
            assert lease.held and not await rival.acquire(lock_name)
            with pytest.raises(NotAcquiredError):
                async with rival.lock(lock_name):
                    raise AssertionError("two holders")
        result = await rival.acquire(lock_name)
        assert result
        waiting = asyncio.ensure_future(lock.acquire(lock_name, blocking_timeout_seconds=20))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert await rival.release(lock_name)
        assert await waiting
        assert await lock.extend(lock_name, 20)
        assert await lock.release(lock_name)


@pytest.mark.parametrize("kind", ["url", "psycopg", "psycopg sync"])
async def test_the_heartbeat_finds_that_a_lease_was_force_released_and_ends_the_block(
    kind: str, postgres_url: str, lock_name: str
) -> None:
    async with AsyncExitStack() as cleanup:
        clock = SteeredClock()
        lock = DistributedLock(await client_of(kind, postgres_url, cleanup), clock=clock)
        cleanup.push_async_callback(lock.close)
        taker = await cleanup.enter_async_context(opened("url with asyncpg", postgres_url))
        with pytest.raises(LeaseLostError):
            async with lock.lock(lock_name, timeout_seconds=600):
                await grant_of(taker, claim_on(lock_name, force_up_to=ANY_TOKEN))
                clock.advance(240)  # the next heartbeat is due
                await asyncio.sleep(50)
                raise AssertionError("the block was not ended")


@pytest.mark.parametrize("open_client", [str, lambda url: psycopg.connect(url, autocommit=True)])
def test_with_lock_in_a_synchronous_program(open_client: Callable[[str], Any], postgres_url: str) -> None:
    name = unique("lock")
    client = open_client(postgres_url)
    with SyncDistributedLock(client) as lock, SyncDistributedLock(postgres_url) as rival:
        with lock.lock(name) as lease:
            assert lease.held and not rival.acquire(name)
        assert rival.acquire(name)
        assert rival.release(name)
    if not isinstance(client, str):
        client.close()
