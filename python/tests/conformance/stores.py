"""The stores that the suite runs on. Each opens as many drivers as a case plays processes."""

from __future__ import annotations

import os
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, AsyncContextManager, AsyncIterator, Awaitable, Callable, List, Optional

from holdfast.core.driver import Capabilities, Driver

OpenDriver = Callable[[AsyncExitStack], Awaitable[Driver]]


@dataclass
class Store:
    driver: OpenDriver
    """Opens a new driver, with connections of its own. What the driver does not close itself is left to the stack."""
    end_session: Callable[[Driver], Awaitable[None]]
    """Cuts a driver's connections as if its process had died, and returns when the server has noticed."""
    capabilities: Optional[Capabilities] = None


@dataclass(frozen=True)
class StoreKind:
    name: str
    """The first words of the title of each of its tests."""
    open: Callable[[], AsyncContextManager[Store]]
    driver_module: str
    lock_only: bool = False
    """For the second client of a driver whose first client runs everything: the other primitives ask the driver for
    nothing that its own cases do not."""
    at_a_time: int = 20
    """How many cases run at the same time."""


async def no_session(driver: Driver) -> None:
    raise NotImplementedError("a store whose leases last as long as a session needs a way to end one")


@asynccontextmanager
async def memory() -> AsyncIterator[Store]:
    from holdfast.drivers.memory import MemoryStore, memory_driver

    shared = MemoryStore()

    async def driver(cleanup: AsyncExitStack) -> Driver:
        return memory_driver(shared)

    yield Store(driver, no_session)


@asynccontextmanager
async def sqlite() -> AsyncIterator[Store]:
    from holdfast.drivers.sqlite import sqlite_driver

    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:

        async def driver(cleanup: AsyncExitStack) -> Driver:
            return sqlite_driver(Path(folder, "locks.db"))

        yield Store(driver, no_session)


@asynccontextmanager
async def redis_asyncio() -> AsyncIterator[Store]:
    import redis.asyncio
    from holdfast.drivers.redis import redis_driver

    async def driver(cleanup: AsyncExitStack) -> Driver:
        client: Any = redis.asyncio.Redis.from_url(urls_of("HOLDFAST_TEST_REDIS_URL")[0])
        cleanup.push_async_callback(client.close)
        return redis_driver(client)

    yield Store(driver, no_session)


@asynccontextmanager
async def postgres_asyncpg() -> AsyncIterator[Store]:
    """One pool for all drivers, which never close it. Each driver has its own connection that listens."""
    import asyncpg
    from holdfast.drivers.postgres import postgres_driver

    async with asyncpg.create_pool(urls_of("HOLDFAST_TEST_POSTGRES_URL")[0], min_size=0, max_size=10) as pool:

        async def driver(cleanup: AsyncExitStack) -> Driver:
            return postgres_driver(pool)

        yield Store(driver, no_session)


@asynccontextmanager
async def postgres_psycopg() -> AsyncIterator[Store]:
    import psycopg
    from holdfast.drivers.postgres import postgres_driver

    async def driver(cleanup: AsyncExitStack) -> Driver:
        url = urls_of("HOLDFAST_TEST_POSTGRES_URL")[0]
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        cleanup.push_async_callback(connection.close)
        return postgres_driver(connection)

    yield Store(driver, no_session)


@asynccontextmanager
async def postgres_psycopg_sync() -> AsyncIterator[Store]:
    import psycopg
    from holdfast.drivers.postgres import postgres_driver

    async def driver(cleanup: AsyncExitStack) -> Driver:
        url = urls_of("HOLDFAST_TEST_POSTGRES_URL")[0]
        connection = psycopg.Connection.connect(url, autocommit=True)
        cleanup.callback(connection.close)
        return postgres_driver(connection)

    yield Store(driver, no_session)


def urls_of(variable: str) -> List[str]:
    value = os.environ.get(variable)
    if not value:
        raise RuntimeError(f"{variable} is not set: start the test servers, or set it to the URL of your own")
    return value.split(",")


_KINDS = [
    StoreKind("memory", memory, "holdfast.drivers.memory"),
    StoreKind("sqlite", sqlite, "holdfast.drivers.sqlite"),
    StoreKind("redis-asyncio", redis_asyncio, "holdfast.drivers.redis"),
    StoreKind("postgres-asyncpg", postgres_asyncpg, "holdfast.drivers.postgres"),
    StoreKind("postgres-psycopg", postgres_psycopg, "holdfast.drivers.postgres", lock_only=True),
    StoreKind("postgres-psycopg-sync", postgres_psycopg_sync, "holdfast.drivers.postgres", lock_only=True),
]

STORES = [kind for kind in _KINDS if find_spec(kind.driver_module) is not None]
