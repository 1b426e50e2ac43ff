"""Failure 78: a heartbeat on the one connection of the caller, while the caller has a transaction open there."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Callable, List

import asyncpg
import psycopg
import pytest

from holdfast import DistributedLock
from holdfast.drivers.postgres_advisory import postgres_advisory_driver
from support.names import unique

TTL_SECONDS = 1.2
SLOW = "SELECT pg_sleep(1)"
"""A statement of the caller that is in flight when heartbeats are due."""


@pytest.fixture
async def table(postgres_url: str, admin: asyncpg.Pool) -> AsyncIterator[str]:
    name = unique("rows").replace(":", "_").replace("-", "_")
    await admin.execute(f'CREATE TABLE "{name}" (n int)')
    yield name
    await admin.execute(f'DROP TABLE "{name}"')


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "psycopg sync"])
async def test_failure_78_heartbeats_leave_the_transaction_of_the_caller_and_the_lease_alone(
    kind: str, postgres_url: str, table: str, admin: asyncpg.Pool
) -> None:
    async with connection_of(kind, postgres_url) as (connection, run):
        driver = postgres_advisory_driver(connection)
        async with DistributedLock(driver) as lock:
            async with lock.lock(unique("held"), timeout_seconds=TTL_SECONDS) as lease:
                await run([f'INSERT INTO "{table}" VALUES (1)', SLOW, f'INSERT INTO "{table}" VALUES (2)'])
                assert lease.held
        await driver.close()
    assert [row["n"] for row in await admin.fetch(f'SELECT n FROM "{table}" ORDER BY n')] == [1, 2]


@asynccontextmanager
async def connection_of(kind: str, url: str) -> AsyncIterator[tuple[Any, Callable[[List[str]], Any]]]:
    """A connection, and what runs statements in one transaction on it."""
    if kind == "asyncpg":
        own = await asyncpg.connect(url)

        async def run(statements: List[str]) -> None:
            async with own.transaction():
                for each in statements:
                    # asyncpg refuses a statement on a connection that has one in flight, ours or the caller's.
                    await own.execute(each.replace("pg_sleep(1)", "1"))
                    await asyncio.sleep(0.4)

        yield own, run
        await own.close()
    elif kind == "psycopg":
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:

            async def run_async(statements: List[str]) -> None:
                async with connection.transaction():
                    for each in statements:
                        await connection.execute(each)

            yield connection, run_async
    else:
        with await asyncio.to_thread(psycopg.connect, url, autocommit=True) as blocking:

            def work(statements: List[str]) -> None:
                with blocking.transaction():
                    for each in statements:
                        blocking.execute(each)

            async def run_in_thread(statements: List[str]) -> None:
                await asyncio.to_thread(work, statements)

            yield blocking, run_in_thread
