"""A client of the caller in another process, or in another event loop, than its own."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast import SyncDistributedLock
from holdfast.drivers.postgres import PostgresDriver, postgres_driver
from holdfast.errors import StoreError
from support.postgres import EVERY_CLIENT, claim_on, grant_of, lease_of, opened, until

POOLS = [each for each in EVERY_CLIENT if "pool" in each or "engine" in each]


def client_of(driver: PostgresDriver) -> Any:
    beside: Any = driver._connections
    lender = beside._pool._pool
    return getattr(lender, "_engine", lender)


async def is_refused(driver: PostgresDriver, lock_name: str) -> bool:
    try:
        await driver.acquire([claim_on(lock_name)])
    except StoreError as error:
        return not error.retryable and "fork" in str(error)
    return False


@pytest.mark.parametrize("how", POOLS)
async def test_a_forked_process_does_not_send_on_the_connections_of_the_parents_client(
    how: str, postgres_url: str, lock_name: str
) -> None:
    """Otherwise parent and child would read each other's answers from one socket."""
    async with opened(how, postgres_url) as driver:
        claim = claim_on(lock_name)
        grant = await grant_of(driver, claim)
        if how == "sqlalchemy engine":
            # Without a free one, the child would open a connection of its own.
            await until("the connection", lambda: client_of(driver).sync_engine.pool.checkedin() > 0)
        # An instance in the child makes a driver of its own.
        other = postgres_driver(client_of(driver))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                refused = [asyncio.run(is_refused(each, f"{lock_name} child")) for each in (driver, other)]
                code = 0 if all(refused) else 1
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert await asyncio.wait_for(driver.release([lease_of(claim, grant)]), 5) == [True]
        # The child has not sent its claim either.
        await grant_of(driver, claim_on(f"{lock_name} child"))


async def test_a_pool_of_another_event_loop_is_refused_before_anything_is_sent(
    postgres_url: str, lock_name: str
) -> None:
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
        driver = postgres_driver(pool)
        await grant_of(driver, claim_on(lock_name))
        lock = SyncDistributedLock(pool)
        with pytest.raises(StoreError, match="another event loop"):
            await asyncio.to_thread(lock.acquire, f"{lock_name} other")
        await asyncio.to_thread(lock.close)
        await grant_of(driver, claim_on(f"{lock_name} other"))
        assert await pool.fetchval("SELECT 1") == 1
        await driver.close()


async def test_an_engine_can_be_used_after_it_was_disposed_of_in_the_child(postgres_url: str, lock_name: str) -> None:
    engine = create_async_engine(postgres_url.replace("postgres://", "postgresql+asyncpg://"))
    driver = postgres_driver(engine)
    claim = claim_on(lock_name)
    grant = await grant_of(driver, claim)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            engine.sync_engine.pool = engine.sync_engine.pool.recreate()
            asyncio.run(grant_of(postgres_driver(engine), claim_on(f"{lock_name} child")))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert await driver.release([lease_of(claim, grant)]) == [True]
    await driver.close()
    await engine.dispose()
