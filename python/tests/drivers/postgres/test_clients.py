"""A client of the caller stays the caller's: its transactions, its settings and its life."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, AsyncIterator, Iterator

import asyncpg
import psycopg
import psycopg_pool
import pytest

from holdfast import DistributedLock
from holdfast.core.driver import LeaseRef
from holdfast.drivers.postgres import migrate_postgres, postgres_driver
from holdfast.drivers.postgres_advisory import postgres_advisory_driver
from holdfast.errors import ClosedError, InvalidArgumentError, StoreError
from support.postgres import (
    EVERY_CLIENT,
    Heard,
    claim_on,
    connected,
    grant_of,
    lease_of,
    opened,
    own_schema,
    refusal_of,
    until,
)


@pytest.mark.parametrize("how", EVERY_CLIENT)
async def test_works_through_every_client_and_never_closes_it(how: str, postgres_url: str, lock_name: str) -> None:
    async with opened(how, postgres_url) as driver:
        claim = claim_on(lock_name)
        grant = await grant_of(driver, claim)
        await refusal_of(driver, claim_on(lock_name))
        # Asking again with the same claim id returns the same lease.
        assert (await grant_of(driver, claim)).fencing_token == grant.fencing_token
        stop = await driver.listen(Heard())
        await stop()
        assert await driver.release([lease_of(claim, grant)]) == [True]
        await driver.close()
        await driver.close()
        with pytest.raises(ClosedError):
            await driver.acquire([claim])
    async with opened(how, postgres_url) as other:
        await grant_of(other, claim_on(lock_name))


@pytest.mark.parametrize("how", EVERY_CLIENT)
async def test_many_calls_at_once_are_all_answered(how: str, postgres_url: str, lock_name: str) -> None:
    async with opened(how, postgres_url) as driver:
        claims = [claim_on(f"{lock_name}:{index}") for index in range(40)]
        grants = await asyncio.gather(*(grant_of(driver, claim) for claim in claims))
        assert len({grant.fencing_token for grant in grants}) == 40
        leases = [lease_of(claim, grant) for claim, grant in zip(claims, grants)]
        assert await driver.release(leases) == [True] * 40


async def test_failure_40_a_pool_with_a_connection_returned_in_a_transaction_is_refused(
    postgres_url: str, lock_name: str
) -> None:
    class Forgetful(asyncpg.Connection):  # type: ignore[misc]
        async def reset(self, *, timeout: Any = None) -> None:
            """As a pool that does not reset its connections."""

    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1, connection_class=Forgetful) as pool:
        driver = postgres_driver(pool)
        await grant_of(driver, claim_on(f"{lock_name}:before"))
        async with pool.acquire() as connection:
            await connection.execute("BEGIN")
        with pytest.raises(StoreError, match="transaction that your code has begun") as refused:
            await driver.acquire([claim_on(lock_name)])
        # Another try may get another connection of the pool.
        assert refused.value.retryable
        async with pool.acquire() as connection:
            await connection.execute("ROLLBACK")
        await grant_of(driver, claim_on(lock_name))
        await driver.close()


@pytest.mark.parametrize("client", [None, "postgres://h/d", object(), asyncpg, 7])
def test_an_unknown_client_is_refused(client: Any) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        postgres_driver(client)
    assert refused.value.argument == "client"


@pytest.mark.parametrize(
    "options", [{"schema": ""}, {"schema": None}, {"schema": "x" * 64}, {"durability": "fast"}, {"migrate": "yes"}]
)
async def test_an_option_with_a_wrong_value_is_refused(options: Any, postgres_url: str) -> None:
    async with connected(postgres_url) as connection:
        with pytest.raises(InvalidArgumentError) as refused:
            postgres_driver(connection, **options)
        assert refused.value.argument == next(iter(options))


async def test_two_drivers_with_the_settings_of_one_asyncpg_connection_leave_it_as_it_was(
    postgres_url: str, lock_name: str
) -> None:
    async with connected(postgres_url) as connection:
        one, other = postgres_driver(connection), postgres_driver(connection)
        heard = Heard()
        stop = await one.listen(heard)
        claims = [claim_on(f"{lock_name}:{index}") for index in range(20)]
        await asyncio.gather(*(grant_of([one, other][index % 2], claim) for index, claim in enumerate(claims)))
        waiting = claim_on(claims[0].lock_name, waiter_ttl_ms=60_000)
        await refusal_of(one, waiting)
        assert await other.release([lease_of(claims[0], await grant_of(other, claims[0]))]) == [True]
        await heard.wait_for("granted", waiting.claim_id)
        await stop()
        assert await connection.fetch("SELECT * FROM pg_listening_channels()") == []
        await one.close()
        await other.close()
        assert await connection.fetchval("SELECT 1") == 1


async def test_a_statement_cache_behind_a_pooler_is_refused_because_names_of_statements_would_be_mixed_up(
    pgbouncer_url: str, lock_name: str
) -> None:
    async with asyncpg.create_pool(pgbouncer_url, min_size=1, max_size=2) as pool, pool.acquire() as connection:
        driver = postgres_driver(pool)
        with pytest.raises(StoreError, match="statement_cache_size=0") as refused:
            await driver.acquire([claim_on(lock_name)])
        assert not refused.value.retryable
        await driver.close()
        # The driver's own connections, with the settings of this one, are opened without a cache.
        driver = postgres_driver(connection)
        await grant_of(driver, claim_on(lock_name))
        await driver.close()
    async with asyncpg.create_pool(pgbouncer_url, min_size=1, max_size=4, statement_cache_size=0) as pool:
        drivers = [postgres_driver(pool), postgres_driver(pool)]
        claims = [claim_on(f"{lock_name}:{index}") for index in range(20)]
        await asyncio.gather(*(grant_of(drivers[index % 2], claim) for index, claim in enumerate(claims)))
        for driver in drivers:
            await driver.close()


@pytest.mark.parametrize("how", EVERY_CLIENT)
async def test_a_ping_does_not_disturb_another_statement_of_the_listening_connection(
    how: str, postgres_url: str
) -> None:
    async with opened(how, postgres_url) as driver:
        heard = Heard(set())
        stop = await driver.listen(heard)
        session: Any = await driver._notify_connection._current.opened
        answers = await asyncio.gather(*(session.fetch("SELECT $1::text AS n", [str(n)]) for n in range(10)))
        assert [rows[0]["n"] for rows in answers] == [str(n) for n in range(10)]
        assert heard.events == []
        await stop()


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_psycopg_pool_whose_transactions_begin_by_themselves_is_left_as_it_was(
    is_sync: bool, postgres_url: str, lock_name: str
) -> None:
    """`autocommit` is off, as it is by default."""
    async with AsyncExitStack() as cleanup:
        pool: Any
        if is_sync:
            pool = psycopg_pool.ConnectionPool(postgres_url, min_size=1, max_size=2)
            cleanup.push_async_callback(asyncio.to_thread, pool.close)
            pool.wait()
        else:
            pool = psycopg_pool.AsyncConnectionPool(postgres_url, min_size=1, max_size=2)
            cleanup.push_async_callback(pool.close)
        driver = postgres_driver(pool)
        claims = [claim_on(f"{lock_name}:{index}") for index in range(8)]
        await asyncio.gather(*(grant_of(driver, claim) for claim in claims))
        heard = Heard({claim.claim_id for claim in claims})
        stop = await driver.listen(heard)
        waiting = claim_on(claims[0].lock_name, waiter_ttl_ms=60_000)
        heard.about = {waiting.claim_id}
        await refusal_of(driver, waiting)
        assert await driver.release([lease_of(claims[0], await grant_of(driver, claims[0]))]) == [True]
        await heard.wait_for("granted", waiting.claim_id)
        await stop()
        for _ in range(2):
            connection = pool.getconn() if is_sync else await pool.getconn()
            assert connection.autocommit is False
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        await driver.close()


@pytest.mark.parametrize("is_sync", [False, True])
async def test_failure_40_a_psycopg_pool_that_lends_a_connection_in_a_transaction_is_refused(
    is_sync: bool, postgres_url: str, lock_name: str
) -> None:
    class Pool(psycopg_pool.ConnectionPool):
        @contextmanager
        def connection(self, timeout: Any = None) -> Iterator[Any]:
            with super().connection(timeout) as connection:
                connection.execute("SELECT 1")
                yield connection

    class AsyncPool(psycopg_pool.AsyncConnectionPool):
        @asynccontextmanager
        async def connection(self, timeout: Any = None) -> AsyncIterator[Any]:
            async with super().connection(timeout) as connection:
                await connection.execute("SELECT 1")
                yield connection

    pool: Any = (Pool if is_sync else AsyncPool)(postgres_url, min_size=1, max_size=1)
    driver = postgres_driver(pool)
    with pytest.raises(StoreError, match="transaction that your code has begun") as refused:
        await driver.acquire([claim_on(lock_name)])
    assert refused.value.retryable
    await driver.close()
    closed = pool.close()
    if not is_sync:
        await closed


async def test_a_driver_on_a_table_that_may_not_be_created_says_what_to_run(postgres_url: str) -> None:
    async with own_schema(postgres_url) as schema:
        async with opened("asyncpg connection", postgres_url, schema=schema, migrate=False) as driver:
            with pytest.raises(StoreError, match=f"holdfast migrate --schema {schema}") as refused:
                await driver.acquire([claim_on("x")])
            assert not refused.value.retryable
            async with connected(postgres_url) as admin:
                assert await migrate_postgres(admin, schema=schema)
                assert not await migrate_postgres(admin, schema=schema)
            # It looks again: the tables may have been created meanwhile.
            await grant_of(driver, claim_on("x"))


async def test_a_table_that_is_dropped_is_created_again(postgres_url: str) -> None:
    async with own_schema(postgres_url) as schema, connected(postgres_url) as admin:
        async with opened("url with asyncpg", postgres_url, schema=schema) as driver:
            first = await grant_of(driver, claim_on("x"))
            await admin.execute(f"DROP SCHEMA {schema} CASCADE")

            async def again() -> Any:
                try:
                    return await driver.acquire([claim_on("y")])
                except StoreError:
                    return None

            [grant] = await until("the tables", again)
            assert grant.fencing_token > first.fencing_token


@pytest.mark.parametrize("how", ["url with asyncpg", "url with psycopg"])
async def test_a_schema_with_an_odd_name_is_quoted(how: str, postgres_url: str) -> None:
    async with connected(postgres_url) as admin:
        schema = f'odd "$1" %s; {id(admin)} ü'
        quoted = schema.replace('"', '""')
        try:
            client = postgres_url
            if how == "url with psycopg":
                async with opened(how, client, schema=schema) as driver:
                    await grant_of(driver, claim_on("x"))
                    await driver.listen(Heard())
            else:
                driver = postgres_driver(admin, schema=schema)
                await grant_of(driver, claim_on("x"))
                await driver.listen(Heard())
                await driver.close()
            assert await admin.fetchval(f'SELECT count(*) FROM "{quoted}".distributed_locks') == 1
        finally:
            await admin.execute(f'DROP SCHEMA IF EXISTS "{quoted}" CASCADE')


class OddLoader(psycopg.adapt.Loader):
    def load(self, data: Any) -> Any:
        return {"odd": bytes(data)}


def odd_rows(_cursor: Any) -> Any:
    return lambda values: ("odd", values)


@asynccontextmanager
async def converting(how: str, url: str) -> AsyncIterator[Any]:
    """A client whose rows and values are the application's own."""
    if how == "asyncpg codecs":
        client: Any = await asyncpg.connect(url)
        for name in ("json", "jsonb", "int8", "float8", "timestamptz"):
            await client.set_type_codec(name, encoder=str, decoder=lambda text: {"odd": text}, schema="pg_catalog")
    elif how == "psycopg rows":
        client = await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=odd_rows)
        client.cursor_factory = psycopg.AsyncClientCursor
    elif how == "psycopg loaders":
        client = await psycopg.AsyncConnection.connect(url, autocommit=True)
        for name in ("bool", "text", "int8"):
            client.adapters.register_loader(name, OddLoader)
    elif how == "sync psycopg":
        client = psycopg.Connection.connect(url, autocommit=True, row_factory=odd_rows)
        client.cursor_factory = psycopg.ClientCursor
        client.adapters.register_loader("text", OddLoader)
        try:
            yield client
        finally:
            client.close()
        return
    else:
        settings = {"row_factory": odd_rows, "cursor_factory": psycopg.AsyncClientCursor, "autocommit": True}
        client = psycopg_pool.AsyncConnectionPool(url, kwargs=settings, min_size=1, open=False)
        await client.open()
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("open_driver", [postgres_driver, postgres_advisory_driver])
@pytest.mark.parametrize("how", ["asyncpg codecs", "psycopg rows", "psycopg loaders", "sync psycopg", "psycopg pool"])
async def test_the_driver_does_not_depend_on_how_the_client_converts_rows(
    how: str, open_driver: Any, postgres_url: str, lock_name: str
) -> None:
    async with converting(how, postgres_url) as client:
        driver = open_driver(client)
        lock = DistributedLock(driver)
        async with lock.lock(lock_name) as lease:
            assert await lock.is_locked(lock_name)
            assert await lease.extend(10)
        assert not await lock.is_locked(lock_name)
        await lock.close()
        await driver.close()


async def test_the_driver_does_not_depend_on_array_nulls(postgres_url: str, lock_name: str) -> None:
    settings = {"array_nulls": "off", "standard_conforming_strings": "off"}
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=2, server_settings=settings) as pool:
        driver = postgres_driver(client=pool)
        claims = [claim_on(f"{lock_name}:{each}", waiter_ttl_ms=60_000) for each in "ab"]
        for each in claims:
            await grant_of(driver, each)
        await refusal_of(driver, claim_on(lock_name + ":a", waiter_ttl_ms=60_000))
        assert await driver.release([LeaseRef(each.lock_name, each.claim_id) for each in claims]) == [True, True]
        await driver.close()
