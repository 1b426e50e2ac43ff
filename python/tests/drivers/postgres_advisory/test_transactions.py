"""`lock_in_transaction`, and the idiom `pg_advisory_lock` around a block of SQLAlchemy."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Iterator, List, Tuple

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy
from holdfast import DistributedLock
from holdfast.drivers.postgres_advisory import (
    PostgresAdvisoryDriver,
    advisory_key,
    lock_in_transaction,
    postgres_advisory_driver,
    sync_lock_in_transaction,
    sync_try_lock_in_transaction,
    try_lock_in_transaction,
)
from holdfast.errors import InvalidArgumentError, NotAcquiredError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from support.advisory import claim_on, granted, is_free, ref_of
from support.names import unique

OpenDriver = Callable[..., Awaitable[PostgresAdvisoryDriver]]
ASYNC = ["asyncpg", "asyncpg pool", "psycopg", "psycopg autocommit", "sqlalchemy session", "sqlalchemy connection"]
SYNC = ["psycopg", "psycopg autocommit", "psycopg2", "sqlalchemy session", "sqlalchemy connection", "sqlalchemy future"]


@asynccontextmanager
async def transaction_of(kind: str, url: str) -> AsyncIterator[Any]:
    """An open transaction. It is committed at the end of the block, and rolled back on an error."""
    if kind == "asyncpg":
        connection = await asyncpg.connect(url, statement_cache_size=0)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()
    elif kind == "asyncpg pool":
        async with asyncpg.create_pool(url, min_size=0, max_size=1, statement_cache_size=0) as pool:
            async with pool.acquire() as lent, lent.transaction():
                yield lent
    elif kind == "psycopg":
        async with await psycopg.AsyncConnection.connect(url, prepare_threshold=None) as implicit:
            yield implicit
    elif kind == "psycopg autocommit":
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=None) as explicit:
            async with explicit.transaction():
                yield explicit
    else:
        engine = create_async_engine(
            url.replace("postgres://", "postgresql+asyncpg://"),
            poolclass=sqlalchemy.pool.NullPool,
            connect_args={"statement_cache_size": 0, "prepared_statement_cache_size": 0},
        )
        try:
            if kind == "sqlalchemy session":
                async with AsyncSession(engine) as session, session.begin():
                    yield session
            else:
                async with engine.begin() as begun:
                    yield begun
        finally:
            await engine.dispose()


@contextmanager
def sync_transaction_of(kind: str, url: str) -> Iterator[Any]:
    if kind == "psycopg":
        with psycopg.Connection.connect(url) as implicit:
            yield implicit
    elif kind == "psycopg autocommit":
        with psycopg.Connection.connect(url, autocommit=True) as explicit, explicit.transaction():
            yield explicit
    elif kind == "psycopg2":
        connection = psycopg2.connect(url)
        try:
            with connection:
                yield connection
        finally:
            connection.close()
    else:
        with sync_engine(url, **({"future": True} if kind == "sqlalchemy future" else {})) as engine:
            if kind == "sqlalchemy session":
                with Session(engine) as session, session.begin():
                    yield session
            else:
                with engine.begin() as begun:
                    yield begun


@contextmanager
def sync_engine(url: str, **options: Any) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(url.replace("postgres://", "postgresql+psycopg2://"), **options)
    try:
        yield engine
    finally:
        engine.dispose()


class Failed(Exception):
    pass


@pytest.mark.parametrize("kind", ASYNC)
async def test_a_lock_lasts_until_commit_or_rollback_and_excludes_the_driver_both_ways(
    kind: str, postgres_url: str, open_driver: OpenDriver
) -> None:
    name, driver = unique("transaction"), await open_driver()
    for error in (None, Failed):
        try:
            async with transaction_of(kind, postgres_url) as transaction:
                assert await lock_in_transaction(transaction, name) is None
                assert not await is_free(driver, name)
                # Again in the same transaction.
                assert await try_lock_in_transaction(transaction, name) is True
                if error is not None:
                    raise error
        except Failed:
            pass
        claim = claim_on(name)
        await granted(driver, claim)
        async with transaction_of(kind, postgres_url) as transaction:
            assert await try_lock_in_transaction(transaction, name) is False
        assert await driver.release([ref_of(claim)]) == [True]


@pytest.mark.parametrize("kind", SYNC)
async def test_a_synchronous_transaction_locks_in_the_same_way(
    kind: str, postgres_url: str, open_driver: OpenDriver
) -> None:
    name, driver = unique("transaction"), await open_driver()
    for error in (None, Failed):
        try:
            with sync_transaction_of(kind, postgres_url) as transaction:
                assert sync_lock_in_transaction(transaction, name) is None
                assert not await is_free(driver, name)
                assert sync_try_lock_in_transaction(transaction, name) is True
                if error is not None:
                    raise error
        except Failed:
            pass
        claim = claim_on(name)
        await granted(driver, claim)
        with sync_transaction_of(kind, postgres_url) as transaction:
            assert sync_try_lock_in_transaction(transaction, name) is False
        assert await driver.release([ref_of(claim)]) == [True]


async def test_a_rollback_to_a_savepoint_releases_what_was_locked_after_it_and_nothing_else(
    postgres_url: str, open_driver: OpenDriver
) -> None:
    before, inside, driver = unique("before"), unique("inside"), await open_driver()
    async with transaction_of("asyncpg", postgres_url) as transaction:
        await lock_in_transaction(transaction, before)
        with pytest.raises(Failed):
            async with transaction.transaction():
                await lock_in_transaction(transaction, before)
                await lock_in_transaction(transaction, inside)
                assert not await is_free(driver, inside)
                raise Failed
        assert await is_free(driver, inside)
        assert not await is_free(driver, before)


async def test_a_transaction_waits_for_a_lease_and_a_lease_for_a_transaction(
    postgres_url: str, open_driver: OpenDriver
) -> None:
    name, driver, claim = unique("waits"), await open_driver(), claim_on(unique("x"))
    claim = claim_on(name)
    await granted(driver, claim)

    async def work() -> None:
        async with transaction_of("sqlalchemy session", postgres_url) as session:
            await lock_in_transaction(session, name, blocking_timeout_seconds=30)

    waiting = asyncio.ensure_future(work())
    done, _ = await asyncio.wait({waiting}, timeout=0.15)
    assert not done
    await driver.release([ref_of(claim)])
    await waiting

    lock = DistributedLock(driver)
    async with transaction_of("asyncpg", postgres_url) as transaction:
        await lock_in_transaction(transaction, name)
        pending = asyncio.ensure_future(lock.acquire(name, blocking_timeout_seconds=30))
        done, _ = await asyncio.wait({pending}, timeout=0.15)
        assert not done
    assert await pending
    await lock.close()


@pytest.mark.parametrize("kind", ASYNC)
async def test_a_transaction_waits_only_if_it_is_asked_to_and_keeps_its_own_lock_timeout(
    kind: str, postgres_url: str
) -> None:
    name, free = unique("held"), unique("free")
    async with transaction_of("asyncpg", postgres_url) as holder:
        await lock_in_transaction(holder, name)
        with pytest.raises(NotAcquiredError, match=f'"{name}" is held by another client$'):
            async with transaction_of(kind, postgres_url) as transaction:
                await lock_in_transaction(transaction, name, blocking=False)
        with pytest.raises(NotAcquiredError, match="waited 0.1 s, which has aborted the transaction: roll it back"):
            async with transaction_of(kind, postgres_url) as transaction:
                await lock_in_transaction(transaction, name, blocking_timeout_seconds=timedelta(seconds=0.1))
    async with transaction_of("asyncpg", postgres_url) as transaction:
        await transaction.execute("SET LOCAL lock_timeout = 1234")
        await lock_in_transaction(transaction, free, blocking=True)
        assert await transaction.fetchval("SHOW lock_timeout") == "1234ms"


@pytest.mark.parametrize("kind", SYNC)
async def test_a_synchronous_transaction_waits_in_the_same_way(kind: str, postgres_url: str) -> None:
    name, some = unique("held"), {"blocking_timeout_seconds": 0.1}
    cases: List[Tuple[Dict[str, Any], str]] = [({}, "is held"), (some, "waited 0.1 s")]
    async with transaction_of("asyncpg", postgres_url) as holder:
        await lock_in_transaction(holder, name)
        for waits, expected in cases:
            with pytest.raises(NotAcquiredError, match=expected):
                with sync_transaction_of(kind, postgres_url) as transaction:
                    sync_lock_in_transaction(transaction, name, **waits)


async def test_shared_locks_are_held_beside_each_other_never_beside_an_exclusive_one(postgres_url: str) -> None:
    name = unique("shared")
    async with transaction_of("psycopg", postgres_url) as first, transaction_of("asyncpg", postgres_url) as second:
        await lock_in_transaction(first, name, shared=True)
        assert await try_lock_in_transaction(second, name, shared=True)
        with sync_transaction_of("sqlalchemy session", postgres_url) as third:
            assert not sync_try_lock_in_transaction(third, name)
            assert sync_try_lock_in_transaction(third, name, shared=True)


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "sqlalchemy session"])
async def test_it_excludes_behind_a_pooler_in_transaction_mode(kind: str, pgbouncer_url: str) -> None:
    name, inside, most = unique("pooled"), 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with transaction_of(kind, pgbouncer_url) as transaction:
            await lock_in_transaction(transaction, name, blocking=True)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.002)
            inside -= 1

    await asyncio.gather(work(), work())
    assert most == 1


async def test_without_an_open_transaction_it_is_refused(postgres_url: str, cleanup: AsyncExitStack) -> None:
    name, refused = unique("none"), pytest.raises(InvalidArgumentError, match="No transaction is open")
    connection = await asyncpg.connect(postgres_url)
    cleanup.push_async_callback(connection.close)
    with refused:
        await lock_in_transaction(connection, name)
    explicit = await psycopg.AsyncConnection.connect(postgres_url, autocommit=True)
    cleanup.push_async_callback(explicit.close)
    with refused:
        await lock_in_transaction(explicit, name)
    with psycopg.Connection.connect(postgres_url, autocommit=True) as sync_explicit:
        with refused:
            sync_lock_in_transaction(sync_explicit, name)
    older = psycopg2.connect(postgres_url)
    older.autocommit = True
    with refused:
        sync_lock_in_transaction(older, name)
    older.close()
    with sync_engine(postgres_url, isolation_level="AUTOCOMMIT") as engine:
        with Session(engine) as session, refused:
            sync_lock_in_transaction(session, name)
    with sync_engine(postgres_url) as engine, engine.connect() as plain:
        if not getattr(plain, "_is_future", True):
            with refused:
                sync_lock_in_transaction(plain, name)
    async_engine = create_async_engine(
        postgres_url.replace("postgres://", "postgresql+asyncpg://"), isolation_level="AUTOCOMMIT"
    )
    async with AsyncSession(async_engine) as async_session:
        with refused:
            await lock_in_transaction(async_session, name)
    await async_engine.dispose()


async def test_failure_76_a_pipeline_without_a_transaction_is_refused(postgres_url: str) -> None:
    """To the server, its statements are one transaction until the next synchronization, which ends it."""
    name = unique("pipeline")
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        async with connection.pipeline():
            with pytest.raises(InvalidArgumentError, match="No transaction is open"):
                await lock_in_transaction(connection, name)
    async with await psycopg.AsyncConnection.connect(postgres_url) as implicit, implicit.pipeline():
        await lock_in_transaction(implicit, name)
        with sync_transaction_of("psycopg2", postgres_url) as other:
            assert not sync_try_lock_in_transaction(other, name)


async def test_the_answer_does_not_depend_on_the_rows_and_cursors_of_the_application(postgres_url: str) -> None:
    name = unique("rows")

    def answer(cursor: Any) -> Callable[[Any], object]:
        return lambda values: {"changed": values}

    async with await psycopg.AsyncConnection.connect(postgres_url, row_factory=answer) as first:
        first.cursor_factory = psycopg.AsyncClientCursor
        assert await try_lock_in_transaction(first, name)
        with sync_transaction_of("psycopg", postgres_url) as second:
            second.row_factory = answer
            second.cursor_factory = psycopg.ClientCursor
            assert not sync_try_lock_in_transaction(second, name)
        connection = await asyncpg.connect(postgres_url)
        await connection.set_type_codec("int4", encoder=str, decoder=lambda _: "changed", schema="pg_catalog")
        async with connection.transaction():
            assert not await try_lock_in_transaction(connection, name)
        await connection.close()
        with psycopg2.connect(postgres_url, cursor_factory=psycopg2.extras.NamedTupleCursor) as third:
            assert not sync_try_lock_in_transaction(third, name)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_it_is_refused_without_a_transaction_also_while_another_statement_is_in_flight(
    kind: str, postgres_url: str
) -> None:
    """Then the client of the database knows no more than that. The lock would be free again at once."""
    if kind == "async":
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
            slow = asyncio.ensure_future(connection.execute("SELECT pg_sleep(0.3)"))
            await asyncio.sleep(0.1)
            with pytest.raises(InvalidArgumentError, match="No transaction is open"):
                await lock_in_transaction(connection, unique("in-flight"))
            await slow
        return
    with psycopg.Connection.connect(postgres_url, autocommit=True) as sync_connection:
        slow = asyncio.ensure_future(asyncio.to_thread(sync_connection.execute, "SELECT pg_sleep(0.3)"))
        await asyncio.sleep(0.1)
        with pytest.raises(InvalidArgumentError, match="No transaction is open"):
            await asyncio.to_thread(sync_lock_in_transaction, sync_connection, unique("in-flight"))
        await slow


async def test_a_handle_of_the_other_kind_and_anything_else_is_refused(postgres_url: str) -> None:
    with sync_transaction_of("psycopg", postgres_url) as transaction:
        with pytest.raises(InvalidArgumentError, match="begins with sync_"):
            await lock_in_transaction(transaction, "x")
    async with transaction_of("sqlalchemy session", postgres_url) as session:
        with pytest.raises(InvalidArgumentError, match="await the function without sync_"):
            sync_lock_in_transaction(session, "x")
        for wrong in ("", "\0", "x" * 256, "\ud800", None):
            with pytest.raises(InvalidArgumentError, match="lock_name"):
                await lock_in_transaction(session, wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="shared"):
            await lock_in_transaction(session, "x", shared="yes")  # type: ignore[arg-type]
    for other in (None, object(), "postgres://", sqlalchemy.create_engine("sqlite://")):
        with pytest.raises(InvalidArgumentError, match="an open transaction"):
            await lock_in_transaction(other, "x")
        with pytest.raises(InvalidArgumentError, match="an open transaction"):
            sync_lock_in_transaction(other, "x")


async def test_failure_41_a_connection_that_a_driver_uses_is_refused(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    driver = postgres_advisory_driver(connection)
    name = unique("occupied")
    await granted(driver, claim_on(name))
    async with connection.transaction():
        with pytest.raises(InvalidArgumentError, match="postgres-advisory driver"):
            await lock_in_transaction(connection, name)
    await driver.close()
    async with connection.transaction():
        await lock_in_transaction(connection, name)
    await connection.close()


def test_pg_advisory_lock_around_a_session_block_of_sqlalchemy_excludes_our_leases(postgres_url: str) -> None:
    """The idiom that people know, with the published key."""

    @contextmanager
    def advisory_lock(session: Session, key: int) -> Iterator[None]:
        session.execute(sqlalchemy.text("SELECT pg_advisory_lock(:key)"), {"key": key})
        try:
            yield
        finally:
            session.execute(sqlalchemy.text("SELECT pg_advisory_unlock(:key)"), {"key": key})

    name = unique("idiom")
    url = postgres_url.replace("postgres://", "postgres+advisory://")

    async def is_acquired() -> bool:
        lock = DistributedLock(url)
        try:
            return bool(await lock.acquire(name))
        finally:
            await lock.close()

    with sync_engine(postgres_url) as engine, Session(engine) as session, session.begin():
        with advisory_lock(session, advisory_key(name)):
            assert not asyncio.run(is_acquired())
        assert asyncio.run(is_acquired())


async def test_pg_advisory_lock_around_an_async_session_block_waits_for_our_lease(postgres_url: str) -> None:
    name, steps = unique("idiom"), []
    url = postgres_url.replace("postgres://", "postgresql+asyncpg://")
    engine = create_async_engine(url, poolclass=sqlalchemy.pool.NullPool)
    lock = DistributedLock(postgres_url.replace("postgres://", "postgres+advisory://"))

    async def work() -> None:
        async with AsyncSession(engine) as session, session.begin():
            key = {"key": advisory_key(name)}
            await session.execute(sqlalchemy.text("SELECT pg_advisory_lock(:key)"), key)
            steps.append("idiom")
            result = await lock.acquire(name)
            assert not result and "pid " in str(result.holder)
            await session.execute(sqlalchemy.text("SELECT pg_advisory_unlock(:key)"), key)

    async with lock.lock(name):
        waiting = asyncio.ensure_future(work())
        await asyncio.wait({waiting}, timeout=0.15)
        steps.append("lease")
    await waiting
    assert steps == ["lease", "idiom"]
    assert await lock.acquire(name)
    await lock.close()
    await engine.dispose()
