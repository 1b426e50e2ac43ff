"""A connection of the caller's asyncpg pool is kept for the next call, and never to the harm of the pool."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager, suppress
from typing import Any, AsyncIterator, List

import asyncpg
import pytest

from holdfast.core.driver import Driver
from holdfast.drivers._postgres import deadlines, kept_connection
from holdfast.drivers.postgres import postgres_driver
from holdfast.errors import StoreError
from support.postgres import Heard, claim_on, grant_of, lease_of, until


class Counted(asyncpg.Connection):  # type: ignore[misc]
    """asyncpg resets a connection when it is given back to its pool."""

    opened: List[Any] = []
    resets = 0

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        Counted.opened.append(self)

    async def reset(self, *, timeout: Any = None) -> None:
        Counted.resets += 1
        await super().reset(timeout=timeout)


@asynccontextmanager
async def counted_pool(postgres_url: str, size: int) -> AsyncIterator[Any]:
    Counted.opened, Counted.resets = [], 0
    pool: Any = asyncpg.create_pool(postgres_url, min_size=size, max_size=size, connection_class=Counted)
    async with pool:
        yield pool


@pytest.fixture
def kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the machine were fast: no pause between two calls is too long."""
    monkeypatch.setattr(kept_connection, "UNUSED_SECONDS", 60)
    monkeypatch.setattr(kept_connection, "LENT_SECONDS", 60)


async def pair(driver: Driver, lock_name: str) -> None:
    claim = claim_on(lock_name)
    assert await driver.release([lease_of(claim, await grant_of(driver, claim))]) == [True]


@pytest.mark.usefixtures("kept_for_long")
async def test_calls_in_a_row_use_one_connection_and_close_gives_it_back(postgres_url: str, lock_name: str) -> None:
    async with counted_pool(postgres_url, 2) as pool:
        driver = postgres_driver(pool)
        await pair(driver, lock_name)
        before = Counted.resets
        await pair(driver, lock_name)
        assert Counted.resets == before
        assert pool.get_idle_size() == 1
        await driver.close()
        assert Counted.resets == before + 1
        assert pool.get_idle_size() == 2


@pytest.mark.usefixtures("kept_for_long")
async def test_the_last_free_connection_of_a_pool_is_not_kept(postgres_url: str, lock_name: str) -> None:
    async with counted_pool(postgres_url, 2) as pool:
        driver = postgres_driver(pool)
        async with pool.acquire():
            await pair(driver, lock_name)
            # It would wait for a minute.
            async with pool.acquire(timeout=30) as connection:
                assert await connection.fetchval("SELECT 1") == 1
        await driver.close()


async def test_a_kept_connection_that_is_not_used_goes_back(postgres_url: str, lock_name: str) -> None:
    async with counted_pool(postgres_url, 2) as pool:
        driver = postgres_driver(pool)
        await pair(driver, lock_name)
        await until("the connection", lambda: pool.get_idle_size() == 2)
        await driver.close()


async def test_a_pool_can_be_closed_while_calls_follow_each_other(
    postgres_url: str, lock_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would wait for its connection as long as they do."""
    monkeypatch.setattr(kept_connection, "UNUSED_SECONDS", 60)
    async with counted_pool(postgres_url, 2) as pool:
        driver = postgres_driver(pool)

        async def use() -> None:
            while True:
                await pair(driver, lock_name)

        using = asyncio.ensure_future(use())
        await until("a call", lambda: pool.get_idle_size() == 1)
        await asyncio.wait_for(pool.close(), 30)
        # The pool lends no more.
        with pytest.raises(Exception, match="pool is clos"):
            await using
        await driver.close()


@pytest.mark.usefixtures("kept_for_long")
async def test_a_kept_connection_that_has_ended_is_not_used(postgres_url: str, lock_name: str) -> None:
    async with counted_pool(postgres_url, 2) as pool:
        driver = postgres_driver(pool)
        await pair(driver, lock_name)
        assert pool.get_idle_size() == 1
        for connection in Counted.opened:
            connection.terminate()
        await pair(driver, lock_name)
        await driver.close()


async def test_a_pool_gets_back_what_its_server_has_ended(postgres_url: str, lock_name: str) -> None:
    """asyncpg counts a connection as lent for ever if its end is noticed in the wrong moment."""
    admin: Any = await asyncpg.connect(postgres_url)
    async with counted_pool(postgres_url, 2) as pool:
        driver = postgres_driver(pool)
        for _ in range(4):
            await pair(driver, lock_name)
            await until("the connections", lambda: pool.get_idle_size() > 0)
            for pid in [each.get_server_pid() for each in Counted.opened if not each.is_closed()]:
                await admin.execute(f"SELECT pg_terminate_backend({pid})")
            for _ in range(3):
                with suppress(StoreError):
                    await pair(driver, lock_name)
        await driver.close()
        lent = [await pool.acquire(timeout=30) for _ in range(2)]
        for connection in lent:
            await pool.release(connection)
    await admin.close()


@pytest.mark.parametrize("function", ["setup", "init after an end", "init after an expiry"])
async def test_a_function_of_the_pool_that_does_not_end_fails_the_call(
    function: str, postgres_url: str, lock_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may send a statement on a connection that no longer answers. A pool with a free connection may still lend the
    place of one that has ended, and connect first."""
    is_stuck = asyncio.Event()

    async def wait(connection: Any) -> None:
        if is_stuck.is_set():
            await asyncio.sleep(3_600)

    pool: Any = asyncpg.create_pool(postgres_url, min_size=2, max_size=2, **{function.split()[0]: wait})
    async with pool:
        driver = postgres_driver(pool)
        await pair(driver, lock_name)
        await until("the connection", lambda: pool.get_idle_size() == 2)
        if function == "init after an end":
            async with pool.acquire() as connection:
                connection.terminate()
            assert pool.get_idle_size() == 1
        elif function == "init after an expiry":
            await pool.expire_connections()
        monkeypatch.setattr(deadlines, "QUERY_SECONDS", 0.1)
        is_stuck.set()
        with pytest.raises(StoreError):
            await asyncio.wait_for(driver.acquire([claim_on(lock_name)]), 30)
        is_stuck.clear()
        await driver.close()


@pytest.mark.usefixtures("kept_for_long")
async def test_a_forked_process_that_closes_the_driver_leaves_the_parents_connections_alone(
    postgres_url: str, lock_name: str
) -> None:
    """Otherwise the child's statement would be sent on the parent's socket, and read by neither."""
    async with counted_pool(postgres_url, 2) as pool:
        driver = postgres_driver(pool)
        await driver.listen(heard := Heard())
        holder, waiter = claim_on(lock_name), claim_on(lock_name, waiter_ttl_ms=20_000)
        grant = await grant_of(driver, holder)
        await driver.acquire([waiter])
        await until("a kept connection", lambda: pool.get_idle_size() == 1)
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
        await heard.wait_for("granted", waiter.claim_id)
        assert not heard.causes
        await driver.close()
