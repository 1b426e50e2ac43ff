"""`postgres_fence` in the transaction of each client."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, AsyncIterator, Callable, Iterator

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from holdfast.drivers.postgres import migrate_postgres_url, postgres_fence, sync_postgres_fence
from holdfast.errors import InvalidArgumentError, StaleTokenError, StoreError
from support.postgres import own_schema


@dataclass(frozen=True)
class Held:
    fencing_token: int


@pytest.fixture
async def migrated(postgres_url: str) -> str:
    await migrate_postgres_url(postgres_url)
    return postgres_url


@asynccontextmanager
async def asyncpg_transaction(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool_transaction(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        async with pool.acquire() as connection, connection.transaction():
            yield connection


@asynccontextmanager
async def psycopg_transaction(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def sqlalchemy_connection(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(url.replace("postgres://", "postgresql+asyncpg://"))
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def sqlalchemy_session(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(url.replace("postgres://", "postgresql+asyncpg://"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


@pytest.mark.parametrize(
    "begin",
    [asyncpg_transaction, asyncpg_pool_transaction, psycopg_transaction, sqlalchemy_connection, sqlalchemy_session],
)
async def test_a_stale_token_is_refused_in_the_callers_transaction(
    migrated: str, begin: Any, unique_name: Callable[[str], str]
) -> None:
    resource = unique_name("account")
    for token in (5, Held(7), 7):
        async with begin(migrated) as transaction:
            await postgres_fence(transaction).accept(resource, token)
    with pytest.raises(StaleTokenError) as refused:
        async with begin(migrated) as transaction:
            await postgres_fence(transaction).accept(resource, Held(6))
    assert (refused.value.resource, refused.value.fencing_token, refused.value.largest_token) == (resource, 6, 7)
    async with begin(migrated) as transaction:
        guard: Any = postgres_fence(transaction)
        assert [await guard.reset(resource), await guard.reset(resource)] == [True, False]
    async with begin(migrated) as transaction:
        await postgres_fence(transaction).accept(resource, 1)


async def test_a_token_counts_only_if_its_transaction_commits(migrated: str, lock_name: str) -> None:
    connection = await asyncpg.connect(migrated)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await postgres_fence(connection).accept(lock_name, 9)
        await transaction.rollback()
        async with connection.transaction():
            await postgres_fence(connection).accept(lock_name, 5)
    finally:
        await connection.close()


@contextmanager
def sync_psycopg(url: str) -> Iterator[Any]:
    with psycopg.connect(url) as connection:
        yield connection


@contextmanager
def sync_sqlalchemy_connection(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(url.replace("postgres://", "postgresql+psycopg2://"))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def sync_sqlalchemy_session(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(url.replace("postgres://", "postgresql+psycopg2://"))
    try:
        with Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


@contextmanager
def sync_psycopg2(url: str) -> Iterator[Any]:
    connection = psycopg2.connect(url)
    try:
        with connection:
            yield connection
    finally:
        connection.close()


@pytest.mark.parametrize("begin", [sync_psycopg, sync_psycopg2, sync_sqlalchemy_connection, sync_sqlalchemy_session])
async def test_a_synchronous_transaction_needs_no_await(migrated: str, begin: Any, lock_name: str) -> None:
    with begin(migrated) as transaction:
        assert sync_postgres_fence(transaction).accept(lock_name, 8) is None
    with pytest.raises(StaleTokenError):
        with begin(migrated) as transaction:
            sync_postgres_fence(transaction).accept(lock_name, 7)
    with begin(migrated) as transaction:
        assert sync_postgres_fence(transaction).reset(lock_name) is True
    with begin(migrated) as transaction:
        with pytest.raises(InvalidArgumentError, match="sync_"):
            postgres_fence(transaction)


async def test_a_fence_outside_a_transaction_is_refused_because_its_row_would_be_free_at_once(
    migrated: str, lock_name: str
) -> None:
    connection = await asyncpg.connect(migrated)
    autocommit = await psycopg.AsyncConnection.connect(migrated, autocommit=True)
    engine = create_async_engine(
        migrated.replace("postgres://", "postgresql+asyncpg://"), isolation_level="AUTOCOMMIT"
    )
    try:
        async with engine.connect() as of_sqlalchemy:
            for each in (connection, autocommit, of_sqlalchemy):
                with pytest.raises(InvalidArgumentError, match="transaction"):
                    await postgres_fence(each).accept(lock_name, 7)
    finally:
        await connection.close()
        await autocommit.close()
        await engine.dispose()
    async with asyncpg.create_pool(migrated, min_size=0, max_size=1) as pool:
        for unknown in (pool, None, "postgres://", object(), sqlalchemy):
            with pytest.raises(InvalidArgumentError, match="transaction"):
                postgres_fence(unknown)
            with pytest.raises(InvalidArgumentError, match="transaction"):
                sync_postgres_fence(unknown)
        async with pool.acquire() as connection:
            with pytest.raises(InvalidArgumentError, match="without sync_"):
                sync_postgres_fence(connection)


async def test_a_schema_without_the_guard_says_what_to_run(postgres_url: str, lock_name: str) -> None:
    async with own_schema(postgres_url) as schema:
        async with asyncpg_transaction(postgres_url) as transaction:
            with pytest.raises(StoreError, match=f"holdfast migrate --only fence --schema {schema}") as refused:
                await postgres_fence(transaction, schema=schema).accept(lock_name, 7)
            assert not refused.value.retryable
            assert await migrate_postgres_url(postgres_url, schema=schema, only="fence")
        async with asyncpg_transaction(postgres_url) as transaction:
            await postgres_fence(transaction, schema=schema).accept(lock_name, 7)


async def test_waits_for_a_transaction_that_has_presented_a_token(migrated: str, lock_name: str) -> None:
    import asyncio

    async with asyncpg_transaction(migrated) as first, asyncpg_transaction(migrated) as second:
        await postgres_fence(first).accept(lock_name, 5)
        late: Any = asyncio.ensure_future(postgres_fence(second).accept(lock_name, 4))
        await asyncio.sleep(0.1)
        assert not late.done()
        await first.execute("COMMIT")
        with pytest.raises(StaleTokenError):
            await late
        await second.execute("ROLLBACK")
        await second.execute("BEGIN")
        await first.execute("BEGIN")
