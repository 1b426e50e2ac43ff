"""What the tests of the PostgreSQL table driver share."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, Optional, Set, Tuple, Union

import asyncpg
import psycopg
import psycopg_pool
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast.core.driver import Claim, DriverListener, Grant, InspectQuery, LeaseRef, Refusal
from holdfast.drivers._postgres.psycopg_client import open_psycopg
from holdfast.drivers._postgres.url import postgres_url
from holdfast.drivers.postgres import PostgresDriver, open_postgres, postgres_driver

from support.names import unique


def schema_name() -> str:
    return f"py_{secrets.token_hex(6)}"


@asynccontextmanager
async def own_schema(url: str) -> AsyncIterator[str]:
    """A name for a schema, which is dropped afterwards if it was created."""
    name = schema_name()
    try:
        yield name
    finally:
        async with connected(url) as connection:
            await connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


Open = Callable[..., Awaitable[PostgresDriver]]


async def through_url(url: str, cleanup: AsyncExitStack, **options: Any) -> PostgresDriver:
    parameters = "&".join(f"holdfast_{name}={value}" for name, value in options.items())
    return await open_postgres(f"{url}?{parameters}" if parameters else url)


async def through_psycopg_url(url: str, cleanup: AsyncExitStack, **options: Any) -> PostgresDriver:
    """As if asyncpg were not installed."""
    target, _ = postgres_url(url)
    return PostgresDriver(open_psycopg(target), options.get("schema", "public"), "crash-safe", True)


async def through_asyncpg_pool(url: str, cleanup: AsyncExitStack, **options: Any) -> PostgresDriver:
    pool = await cleanup.enter_async_context(asyncpg.create_pool(url, min_size=0, max_size=2))
    return postgres_driver(pool, **options)


async def through_asyncpg_connection(url: str, cleanup: AsyncExitStack, **options: Any) -> PostgresDriver:
    return postgres_driver(await cleanup.enter_async_context(connected(url)), **options)


async def through_psycopg(url: str, cleanup: AsyncExitStack, **options: Any) -> PostgresDriver:
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    cleanup.push_async_callback(connection.close)
    return postgres_driver(connection, **options)


async def through_psycopg_sync(url: str, cleanup: AsyncExitStack, **options: Any) -> PostgresDriver:
    connection = await asyncio.to_thread(psycopg.connect, url, autocommit=True)
    cleanup.callback(connection.close)
    return postgres_driver(connection, **options)


async def through_psycopg_pool(url: str, cleanup: AsyncExitStack, **options: Any) -> PostgresDriver:
    pool: Any = psycopg_pool.AsyncConnectionPool(url, min_size=1, max_size=2)
    cleanup.push_async_callback(pool.close)
    return postgres_driver(pool, **options)


async def through_psycopg_sync_pool(url: str, cleanup: AsyncExitStack, **options: Any) -> PostgresDriver:
    pool: Any = psycopg_pool.ConnectionPool(url, min_size=1, max_size=2)
    cleanup.push_async_callback(asyncio.to_thread, pool.close)
    return postgres_driver(pool, **options)


async def through_engine(url: str, cleanup: AsyncExitStack, **options: Any) -> PostgresDriver:
    engine = create_async_engine(url.replace("postgres://", "postgresql+asyncpg://"), pool_size=2, max_overflow=1)
    cleanup.push_async_callback(engine.dispose)
    return postgres_driver(engine, **options)


async def through_sync_engine(url: str, cleanup: AsyncExitStack, **options: Any) -> PostgresDriver:
    engine = sqlalchemy.create_engine(url.replace("postgres://", "postgresql+psycopg2://"), pool_size=1, max_overflow=0)
    cleanup.callback(engine.dispose)
    # The application uses the only connection of its pool.
    cleanup.callback((await asyncio.to_thread(engine.connect)).close)
    return postgres_driver(engine, **options)


EVERY_CLIENT: Dict[str, Open] = {
    "url with asyncpg": through_url,
    "url with psycopg": through_psycopg_url,
    "asyncpg pool": through_asyncpg_pool,
    "asyncpg connection": through_asyncpg_connection,
    "psycopg connection": through_psycopg,
    "psycopg sync connection": through_psycopg_sync,
    "psycopg pool": through_psycopg_pool,
    "psycopg sync pool": through_psycopg_sync_pool,
    "sqlalchemy engine": through_engine,
    "sqlalchemy synchronous": through_sync_engine,
}


@asynccontextmanager
async def opened(how: str, url: str, **options: Any) -> AsyncIterator[PostgresDriver]:
    async with AsyncExitStack() as cleanup:
        driver = await EVERY_CLIENT[how](url, cleanup, **options)
        cleanup.push_async_callback(driver.close)
        yield driver


def claim_on(lock_name: str, **options: Any) -> Claim:
    return Claim(lock_name=lock_name, claim_id=unique("claim"), holder_id="python", **{"ttl_ms": 60_000, **options})


async def grant_of(driver: PostgresDriver, claim: Claim) -> Grant:
    [answer] = await driver.acquire([claim])
    assert isinstance(answer, Grant), answer
    return answer


async def refusal_of(driver: PostgresDriver, claim: Claim) -> Refusal:
    [answer] = await driver.acquire([claim])
    assert isinstance(answer, Refusal), answer
    return answer


def lease_of(claim: Claim, grant: Grant) -> LeaseRef:
    return LeaseRef(claim.lock_name, claim.claim_id, grant.fencing_token)


async def waiters_on(driver: PostgresDriver, lock_name: str) -> List[str]:
    return [waiter.claim_id for waiter in (await driver.inspect(InspectQuery(lock_name=lock_name))).waiters]


async def until(what: str, look: Callable[[], Union[Awaitable[Any], Any]]) -> Any:
    for _ in range(3_000):
        seen = look()
        if asyncio.iscoroutine(seen):
            seen = await seen
        if seen:
            return seen
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited 30 s for {what}")


@dataclass(eq=False)
class Heard(DriverListener):
    """A listener that remembers what it was told, about these claims or about all."""

    about: Optional[Set[str]] = None
    events: List[Tuple[str, Any]] = field(default_factory=list)
    grants: Dict[str, Grant] = field(default_factory=dict)
    causes: List[Exception] = field(default_factory=list)

    def wake(self, lock_name: str, claim_id: Any = None) -> None:
        self.events.append(("wake", claim_id))

    def granted(self, claim_id: str, grant: Grant) -> None:
        self.grants[claim_id] = grant
        self.events.append(("granted", claim_id))

    def lost(self, claim_id: str, cause: Exception) -> None:
        self.causes.append(cause)
        self.events.append(("lost", claim_id))

    def disconnected(self, cause: Exception) -> None:
        self.causes.append(cause)
        self.events.append(("disconnected", None))

    async def wait_for(self, kind: str, claim_id: Any = None) -> None:
        await until(f"{kind} {claim_id}", lambda: (kind, claim_id) in self.events)
