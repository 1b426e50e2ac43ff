"""A connection or a pool of the caller: neither its transactions nor its shortage concern a lease."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import AsyncExitStack
from typing import Any, AsyncIterator, List

import asyncpg
import psycopg
import psycopg_pool
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast import DistributedLock
from holdfast.drivers.postgres import postgres_driver
from holdfast.errors import InvalidArgumentError
from support.names import unique
from support.postgres import claim_on, connected, grant_of, lease_of, until

TTL_SECONDS = 1.2
SLOW = "SELECT pg_sleep(1)"
"""A statement of the caller that is in flight when heartbeats are due."""


@pytest.fixture
async def table(postgres_url: str) -> AsyncIterator[str]:
    name = unique("rows").replace(":", "_").replace("-", "_")
    async with connected(postgres_url) as admin:
        await admin.execute(f'CREATE TABLE "{name}" (n int)')
        yield name
        await admin.execute(f'DROP TABLE "{name}"')


async def rows_in(postgres_url: str, table: str) -> List[int]:
    async with connected(postgres_url) as admin:
        return [row["n"] for row in await admin.fetch(f'SELECT n FROM "{table}" ORDER BY n')]


async def test_failure_78_a_heartbeat_during_a_statement_in_a_callers_psycopg_transaction_leaves_its_rows(
    postgres_url: str, lock_name: str, table: str
) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        async with DistributedLock(connection) as lock:
            async with lock.lock(lock_name, timeout_seconds=TTL_SECONDS) as lease:
                async with connection.transaction():
                    await connection.execute(f'INSERT INTO "{table}" VALUES (1)')
                    await connection.execute(SLOW)
                    await connection.execute(f'INSERT INTO "{table}" VALUES (2)')
                assert lease.held
    assert await rows_in(postgres_url, table) == [1, 2]


async def test_failure_78_a_heartbeat_during_a_statement_in_a_synchronous_psycopg_transaction_leaves_its_rows(
    postgres_url: str, lock_name: str, table: str
) -> None:
    def work(connection: Any) -> None:
        with connection.transaction():
            connection.execute(f'INSERT INTO "{table}" VALUES (1)')
            connection.execute(SLOW)
            connection.execute(f'INSERT INTO "{table}" VALUES (2)')

    with await asyncio.to_thread(psycopg.connect, postgres_url, autocommit=True) as connection:
        async with DistributedLock(connection) as lock:
            async with lock.lock(lock_name, timeout_seconds=TTL_SECONDS) as lease:
                await asyncio.to_thread(work, connection)
                assert lease.held
    assert await rows_in(postgres_url, table) == [1, 2]


async def test_failure_78_a_heartbeat_neither_disturbs_nor_waits_for_a_transaction_on_an_asyncpg_connection(
    postgres_url: str, lock_name: str, table: str
) -> None:
    async with connected(postgres_url) as connection, DistributedLock(connection) as lock:
        async with lock.lock(lock_name, timeout_seconds=TTL_SECONDS) as lease:
            async with connection.transaction():
                for n in range(20):
                    # One after the other: asyncpg refuses a statement on a connection that has one in flight.
                    await connection.execute(f'INSERT INTO "{table}" VALUES ($1)', n)
                    await connection.execute("SELECT pg_sleep(0.05)")
            assert lease.held
    assert await rows_in(postgres_url, table) == list(range(20))


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "psycopg sync"])
async def test_failure_40_a_connection_in_a_transaction_takes_no_part_in_it(
    kind: str, postgres_url: str, lock_name: str
) -> None:
    """It only gives its settings: what the transaction does, also its rollback, changes no lease."""
    async with AsyncExitStack() as cleanup:
        connection: Any
        if kind == "asyncpg":
            connection = await cleanup.enter_async_context(connected(postgres_url))
            await connection.execute("BEGIN")
        elif kind == "psycopg":
            connection = await psycopg.AsyncConnection.connect(postgres_url)
            cleanup.push_async_callback(connection.close)
            await connection.execute("SELECT 1")
        else:
            connection = psycopg.connect(postgres_url)
            cleanup.callback(connection.close)
            connection.execute("SELECT 1")
        driver = postgres_driver(connection)
        cleanup.push_async_callback(driver.close)
        claim = claim_on(lock_name)
        grant = await grant_of(driver, claim)
        rolled_back = connection.execute("ROLLBACK")
        if kind != "psycopg sync":
            await rolled_back
        assert await driver.release([lease_of(claim, grant)]) == [True]


async def test_a_closed_psycopg_connection_is_refused(postgres_url: str) -> None:
    connection = await psycopg.AsyncConnection.connect(postgres_url)
    await connection.close()
    with pytest.raises(InvalidArgumentError, match="open"):
        postgres_driver(connection)


async def test_failure_77_a_lease_outlives_an_asyncpg_pool_without_a_free_connection(
    postgres_url: str, lock_name: str
) -> None:
    async with asyncpg.create_pool(postgres_url, min_size=0, max_size=2) as pool, DistributedLock(pool) as lock:
        async with lock.lock(lock_name, timeout_seconds=TTL_SECONDS) as lease:
            await asyncio.gather(*(pool.execute("SELECT pg_sleep(1.2)") for _ in range(4)))
            assert lease.held


@pytest.mark.parametrize("is_sync", [False, True])
async def test_failure_77_a_lease_outlives_a_psycopg_pool_without_a_free_connection(
    is_sync: bool, postgres_url: str, lock_name: str
) -> None:
    async with AsyncExitStack() as cleanup:
        pool: Any
        if is_sync:
            pool = psycopg_pool.ConnectionPool(postgres_url, min_size=1, max_size=2)
            cleanup.push_async_callback(asyncio.to_thread, pool.close)
        else:
            pool = psycopg_pool.AsyncConnectionPool(postgres_url, min_size=1, max_size=2)
            cleanup.push_async_callback(pool.close)

        async def slow() -> None:
            async with pool.connection() as connection:
                await connection.execute("SELECT pg_sleep(1.2)")

        def slow_in_thread() -> None:
            with pool.connection() as connection:
                connection.execute("SELECT pg_sleep(1.2)")

        lock = await cleanup.enter_async_context(DistributedLock(pool))
        async with lock.lock(lock_name, timeout_seconds=TTL_SECONDS) as lease:
            work = (asyncio.to_thread(slow_in_thread) if is_sync else slow() for _ in range(4))
            await asyncio.gather(*work)
            assert lease.held


async def test_failure_77_a_lease_outlives_an_engine_of_sqlalchemy_without_a_free_connection(
    postgres_url: str, lock_name: str
) -> None:
    url = postgres_url.replace("postgres://", "postgresql+asyncpg://")
    engine = create_async_engine(url, pool_size=2, max_overflow=0, connect_args={"server_settings": {"jit": "off"}})

    async def slow() -> None:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT pg_sleep(1.2)"))

    async with DistributedLock(engine) as lock:
        async with lock.lock(lock_name, timeout_seconds=TTL_SECONDS) as lease:
            await asyncio.gather(*(slow() for _ in range(4)))
            assert lease.held
    await engine.dispose()


async def test_when_no_connection_can_be_opened_beside_a_pool_its_own_are_used_and_a_warning_names_it_once(
    postgres_url: str, lock_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    role = unique("few").replace(":", "_").replace("-", "_")
    async with connected(postgres_url) as admin:
        await admin.execute(f'CREATE ROLE "{role}" LOGIN SUPERUSER')
        url = postgres_url.replace("postgres://postgres@", f"postgres://{role}@")
        pool: Any = await asyncpg.create_pool(url, min_size=2, max_size=2)
        try:
            driver = postgres_driver(pool)
            await grant_of(driver, claim_on(unique("first")))
            # From here on, no further connection of this role is accepted.
            await admin.execute(f'ALTER ROLE "{role}" NOLOGIN')
            with caplog.at_level(logging.WARNING, "holdfast"):
                for _ in range(3):
                    claim = claim_on(lock_name)
                    assert await driver.release([lease_of(claim, await grant_of(driver, claim))]) == [True]
            [warning] = [record.getMessage() for record in caplog.records]
            assert "asyncpg" in warning and "not permitted to log in" in warning
            await driver.close()
        finally:
            await pool.close()
            await admin.execute(f'REASSIGN OWNED BY "{role}" TO CURRENT_USER')
            await admin.execute(f'DROP ROLE "{role}"')


async def test_the_connections_beside_a_client_end_with_the_driver(postgres_url: str, lock_name: str) -> None:
    name = unique("app")
    url = f"{postgres_url}?application_name={name}"
    before = threading.active_count()

    async with connected(postgres_url) as admin:

        async def count() -> int:
            found = await admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", name)
            return int(found)

        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            driver = postgres_driver(connection)
            claim = claim_on(lock_name)
            grant = await grant_of(driver, claim)
            assert await count() == 2
            await driver.release([lease_of(claim, grant)])
            await driver.close()

            async def is_alone() -> bool:
                return await count() == 1

            await until("the end of the connection", is_alone)
    assert threading.active_count() <= before
