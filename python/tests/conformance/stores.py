"""The stores that the suite runs on. Each opens as many drivers as a case plays processes."""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, AsyncContextManager, AsyncIterator, Awaitable, Callable, Dict, List, Optional

from holdfast.core.clock import Clock
from holdfast.core.driver import Capabilities, Driver, InspectQuery

OpenDriver = Callable[[AsyncExitStack], Awaitable[Driver]]


@dataclass
class Store:
    driver: OpenDriver
    """Opens a new driver, with connections of its own. What the driver does not close itself is left to the stack."""
    end_session: Callable[[Driver], Awaitable[None]]
    """Cuts a driver's connections as if its process had died, and returns when the server has noticed."""
    lose_data: Optional[Callable[[], Awaitable[None]]] = None
    """All stored data is gone."""
    step_clock: Optional[Callable[[float], Awaitable[None]]] = None
    """Sets the store's clock, forwards or back."""
    capabilities: Optional[Capabilities] = None


@dataclass(frozen=True)
class StoreKind:
    name: str
    """The first words of the title of each of its tests."""
    open: Callable[[], AsyncContextManager[Store]]
    second_client: bool = False
    """For the second client of a driver whose first client runs everything: the other primitives ask the driver for
    nothing that its own cases do not."""
    damageable: bool = False
    """Whether a store of its own can be damaged. What a server does then is decided by the Lua and SQL of protocol/."""
    at_a_time: int = 20
    """How many cases run at the same time."""


async def no_session(driver: Driver) -> None:
    raise NotImplementedError("a store whose leases last as long as a session needs a way to end one")


@asynccontextmanager
async def memory() -> AsyncIterator[Store]:
    from holdfast.drivers.memory import MemoryStore, memory_driver

    clock = SteppedClock()
    shared = MemoryStore(clock)

    async def driver(cleanup: AsyncExitStack) -> Driver:
        return memory_driver(shared)

    async def lose_data() -> None:
        # The drivers keep the object.
        shared.__dict__.update(MemoryStore(clock).__dict__)

    async def step_clock(ms: float) -> None:
        clock.ahead_seconds += ms / 1_000

    yield Store(driver, no_session, lose_data, step_clock)


class SteppedClock(Clock):
    ahead_seconds = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead_seconds


@asynccontextmanager
async def sqlite() -> AsyncIterator[Store]:
    from holdfast.drivers import sqlite as module
    from holdfast.drivers.sqlite import sqlite_driver

    # Dozens of connections of the suite use one file. On a busy machine, one of them may wait for long.
    module.MAX_BUSY_SECONDS = 30
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        path = Path(folder, "locks.db")

        async def driver(cleanup: AsyncExitStack) -> Driver:
            return sqlite_driver(path)

        async def execute(*statements: str) -> None:
            connection = sqlite3.connect(path, timeout=10)
            with connection:
                for statement in statements:
                    connection.execute(statement)
            connection.close()

        async def lose_data() -> None:
            await execute(*(f"DELETE FROM holdfast_{table}" for table in ("leases", "waiters", "counter", "rates")))

        async def step_clock(ms: float) -> None:
            # The clock is the machine's, so the stored times are moved the other way instead.
            await execute(
                "UPDATE holdfast_leases"
                f" SET acquired_at_ms = acquired_at_ms - {ms}, expires_at_ms = expires_at_ms - {ms}",
                "UPDATE holdfast_waiters"
                f" SET waiting_since_ms = waiting_since_ms - {ms}, expires_at_ms = expires_at_ms - {ms}",
                f"UPDATE holdfast_counter SET last_token = last_token - {ms} * 1000",
                f"UPDATE holdfast_rates SET reset_at_ms = reset_at_ms - {ms}",
            )

        yield Store(driver, no_session, lose_data, step_clock)


@asynccontextmanager
async def redis_asyncio() -> AsyncIterator[Store]:
    import redis.asyncio
    from holdfast.drivers.redis import redis_driver

    # One client for all drivers of the suite, which take its settings. Each has its own connections.
    client: Any = redis.asyncio.Redis.from_url(urls_of("HOLDFAST_TEST_REDIS_URL")[0])

    async def driver(cleanup: AsyncExitStack) -> Driver:
        return redis_driver(client)

    yield Store(driver, no_session)
    await client.close()


@asynccontextmanager
async def redis_sync() -> AsyncIterator[Store]:
    import redis
    from holdfast.drivers.redis import redis_driver

    client: Any = redis.Redis.from_url(urls_of("HOLDFAST_TEST_REDIS_URL")[0])

    async def driver(cleanup: AsyncExitStack) -> Driver:
        return redis_driver(client)

    yield Store(driver, no_session)
    client.close()


@asynccontextmanager
async def redis_cluster() -> AsyncIterator[Store]:
    from holdfast.drivers.redis import redis_driver
    from redis.asyncio.cluster import RedisCluster

    # One client for all drivers of the suite, because it asks the nodes for all their commands when it connects. Each
    # driver has its own connections that listen.
    client: Any = RedisCluster.from_url(urls_of("HOLDFAST_TEST_REDIS_CLUSTER_URL")[0])
    try:

        async def driver(cleanup: AsyncExitStack) -> Driver:
            return redis_driver(client)

        yield Store(driver, no_session)
    finally:
        await client.close()


@asynccontextmanager
async def redlock() -> AsyncIterator[Store]:
    import redis.asyncio
    from holdfast.drivers.redlock import redlock_driver

    clients: List[Any] = [redis.asyncio.Redis.from_url(url) for url in urls_of("HOLDFAST_TEST_REDIS_URL")[:3]]

    async def driver(cleanup: AsyncExitStack) -> Driver:
        # The servers of the tests have forgotten nothing: they may vote at once.
        return redlock_driver(clients, persistent=True, node_timeout_seconds=9)

    yield Store(driver, no_session)
    for client in clients:
        await client.close()


@asynccontextmanager
async def postgres_asyncpg() -> AsyncIterator[Store]:
    import asyncpg
    from holdfast.drivers.postgres import postgres_driver

    # One pool for all drivers of the suite, which never close it. Each driver has its own connection that listens.
    async with asyncpg.create_pool(postgres_url(), min_size=1, max_size=10) as pool:

        async def driver(cleanup: AsyncExitStack) -> Driver:
            return postgres_driver(pool)

        yield Store(driver, no_session)


@asynccontextmanager
async def postgres_psycopg() -> AsyncIterator[Store]:
    import psycopg
    from holdfast.drivers.postgres import postgres_driver

    async def driver(cleanup: AsyncExitStack) -> Driver:
        connection = await psycopg.AsyncConnection.connect(postgres_url(), autocommit=True)
        cleanup.push_async_callback(connection.close)
        return postgres_driver(connection)

    yield Store(driver, no_session)


@asynccontextmanager
async def postgres_psycopg_sync() -> AsyncIterator[Store]:
    import psycopg
    from holdfast.drivers.postgres import postgres_driver

    async def driver(cleanup: AsyncExitStack) -> Driver:
        connection = await asyncio.to_thread(psycopg.connect, postgres_url(), autocommit=True)
        cleanup.callback(connection.close)
        return postgres_driver(connection)

    yield Store(driver, no_session)


@asynccontextmanager
async def postgres_advisory() -> AsyncIterator[Store]:
    import asyncpg

    async def pool(name: str, cleanup: AsyncExitStack) -> Any:
        settings = {"application_name": name}
        opened = asyncpg.create_pool(postgres_url(), min_size=0, max_size=2, server_settings=settings)
        return await cleanup.enter_async_context(opened)

    async with _advisory_store(pool) as store:
        yield store


@asynccontextmanager
async def postgres_advisory_psycopg() -> AsyncIterator[Store]:
    from psycopg_pool import AsyncConnectionPool

    async def pool(name: str, cleanup: AsyncExitStack) -> Any:
        # The driver opens connections of its own with these settings.
        return AsyncConnectionPool(postgres_url(), kwargs={"application_name": name}, open=False)

    async with _advisory_store(pool) as store:
        yield store


@asynccontextmanager
async def _advisory_store(open_pool: Callable[[str, AsyncExitStack], Awaitable[Any]]) -> AsyncIterator[Store]:
    import asyncpg
    from holdfast.drivers.postgres_advisory import postgres_advisory_driver

    # Each driver has a pool of its own. Its connections have an application name, so that they can be ended.
    names: Dict[int, str] = {}

    async with asyncpg.create_pool(postgres_url(), min_size=1, max_size=2) as admin:

        async def driver(cleanup: AsyncExitStack) -> Driver:
            name = f"advisory {secrets.token_hex(6)}"
            opened = postgres_advisory_driver(await open_pool(name, cleanup))
            names[id(opened)] = name
            # Connected in advance, so that a case with a deadline of a tenth of a second does not spend it on that.
            await opened.inspect(InspectQuery(lock_name="free"))
            return opened

        async def end_session(of: Driver) -> None:
            text = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = $1"
            await admin.fetch(text, names[id(of)])

        yield Store(driver, end_session)


def urls_of(variable: str) -> List[str]:
    value = os.environ.get(variable)
    if not value:
        raise RuntimeError(f"{variable} is not set. Run `npm test -- test/python`, which starts the servers")
    return [url.strip() for url in value.split(",")]


def postgres_url() -> str:
    return urls_of("HOLDFAST_TEST_POSTGRES_URL")[0]


STORES = [
    # The longest first, so that processes that share the work end together.
    StoreKind("redlock", redlock, at_a_time=10),
    StoreKind("redis-cluster", redis_cluster),
    StoreKind("postgres-advisory", postgres_advisory, at_a_time=10),
    StoreKind("postgres-advisory-psycopg", postgres_advisory_psycopg, second_client=True, at_a_time=10),
    StoreKind("postgres-psycopg", postgres_psycopg, second_client=True),
    StoreKind("redis-asyncio", redis_asyncio),
    StoreKind("postgres-asyncpg", postgres_asyncpg),
    # More threads than this mostly wait for each other, and for the interpreter's lock.
    StoreKind("sqlite", sqlite, damageable=True, at_a_time=12),
    StoreKind("redis-sync", redis_sync, second_client=True),
    StoreKind("postgres-psycopg-sync", postgres_psycopg_sync, second_client=True),
    StoreKind("memory", memory, damageable=True),
]
