from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, AsyncIterator, Awaitable, Callable

import asyncpg
import psycopg
import pytest
from holdfast.drivers.postgres_advisory import (
    PostgresAdvisoryDriver,
    open_postgres_advisory,
    postgres_advisory_driver,
)
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from support.tcp_proxy import TcpProxy


@pytest.fixture
async def cleanup() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def admin(postgres_url: str, cleanup: AsyncExitStack) -> asyncpg.Pool:
    pool: asyncpg.Pool = await cleanup.enter_async_context(asyncpg.create_pool(postgres_url, min_size=0, max_size=4))
    return pool


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(int(postgres_url.rsplit(":", 1)[1].partition("/")[0])) as proxy:
        yield proxy


@pytest.fixture
def proxied_url(postgres_url: str, proxy: TcpProxy) -> str:
    start, _, rest = postgres_url.rpartition(":")
    return f"{start}:{proxy.port}/{rest.partition('/')[2]}"


OpenDriver = Callable[..., Awaitable[PostgresAdvisoryDriver]]


@pytest.fixture
async def open_driver(postgres_url: str, cleanup: AsyncExitStack) -> OpenDriver:
    """Opens drivers for the URL, with connections of their own. They are closed after the test."""

    async def open_one(url: str = postgres_url, **options: Any) -> PostgresAdvisoryDriver:
        driver = await open_postgres_advisory(url, **options)
        cleanup.push_async_callback(driver.close)
        return driver

    return open_one


@dataclass
class Opened:
    driver: PostgresAdvisoryDriver
    client: Any
    execute: Callable[[str], Awaitable[Any]]
    """Runs a statement on the client itself, as the application does."""


OpenOn = Callable[..., Awaitable[Opened]]
BESIDE = ["asyncpg pool", "psycopg pool", "sync psycopg pool"]
"""Clients beside which a driver opens connections of its own."""
ITSELF = ["asyncpg connection", "psycopg connection", "sync psycopg connection"]
"""Clients that are themselves the one connection of a driver."""


@pytest.fixture
async def open_on(postgres_url: str, cleanup: AsyncExitStack) -> OpenOn:
    """Opens a client of this kind, and a driver on it. Both are closed after the test."""

    async def opened(kind: str, url: str = postgres_url) -> Opened:
        client, execute = await _client(kind, url, cleanup)
        driver = postgres_advisory_driver(client)
        cleanup.push_async_callback(driver.close)
        return Opened(driver, client, execute)

    return opened


async def _client(kind: str, url: str, cleanup: AsyncExitStack) -> Any:
    if kind == "asyncpg pool":
        pool = await cleanup.enter_async_context(asyncpg.create_pool(url, min_size=0, max_size=2))
        return pool, pool.execute
    if kind == "psycopg pool":
        async_pool = await cleanup.enter_async_context(AsyncConnectionPool(url, min_size=0, max_size=2))
        return async_pool, None
    if kind == "sync psycopg pool":
        sync_pool = cleanup.enter_context(ConnectionPool(url, min_size=0, max_size=2))
        return sync_pool, None
    if kind == "asyncpg connection":
        connection = await asyncpg.connect(url)
        cleanup.push_async_callback(connection.close)
        return connection, connection.execute
    if kind == "psycopg connection":
        async_connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        cleanup.push_async_callback(async_connection.close)
        return async_connection, async_connection.execute
    # In a thread: a proxy of the test may run in this event loop.
    sync_connection = await asyncio.to_thread(psycopg.Connection.connect, url, autocommit=True)
    cleanup.callback(sync_connection.close)

    async def execute(text: str) -> Any:
        return await asyncio.to_thread(sync_connection.execute, text)

    return sync_connection, execute
