"""One pinned connection carries many locks, and its end is their loss."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Awaitable, Callable

import asyncpg
import psycopg_pool
import pytest
from holdfast.core.driver import Grant, InspectQuery, Refusal
from holdfast.drivers._postgres.asyncpg_client import open_asyncpg
from holdfast.drivers._postgres.asyncpg_connection import AsyncpgConnection
from holdfast.drivers._postgres.psycopg_connection import PsycopgConnection
from holdfast.drivers._postgres.url import postgres_url as parsed_url
from holdfast.drivers._postgres_advisory.held_locks import LockRequest
from holdfast.drivers._postgres_advisory.inspect_locks import inspect_locks
from holdfast.drivers._postgres_advisory.session import Session
from holdfast.drivers.postgres_advisory import advisory_key, open_postgres_advisory, postgres_advisory_driver
from holdfast.errors import ClosedError, InvalidArgumentError, StoreError, UnsupportedError
from support.advisory import Listener, claim_on, granted, is_free, pids, ref_of, renewal_of, terminate_holder, until
from support.names import unique
from support.pgbouncer import PgBouncer

BESIDE = ["asyncpg pool", "psycopg pool", "sync psycopg pool"]
ITSELF = ["asyncpg connection", "psycopg connection", "sync psycopg connection"]
OpenOn = Callable[[str], Awaitable[Any]]
OpenDriver = Callable[..., Awaitable[Any]]


@pytest.mark.parametrize("kind", [*BESIDE, *ITSELF])
async def test_every_client_excludes_every_other_and_shows_its_holder(
    kind: str, open_on: OpenOn, open_driver: OpenDriver
) -> None:
    name, driver, other = unique("client"), (await open_on(kind)).driver, await open_driver()
    claim = claim_on(name, holder_id="first")
    grant = await granted(driver, claim)
    [refusal] = await other.acquire([claim_on(name)])
    assert isinstance(refusal, Refusal) and refusal.holder is not None
    assert (refusal.holder.holder_id, refusal.holder.fencing_token) == ("first", grant.fencing_token)
    assert refusal.holder.acquired_at_ms == pytest.approx(grant.acquired_at_ms, abs=50)
    assert await driver.renew([renewal_of(claim, grant)]) == ["held"]
    [shown] = (await other.inspect(InspectQuery(lock_name=name))).leases
    assert (shown.claim_id, shown.fencing_token) == (claim.claim_id, grant.fencing_token)
    assert await driver.release([ref_of(claim, grant)]) == [True]
    assert (await granted(other, claim_on(name))).fencing_token > grant.fencing_token
    assert not await is_free(driver, name)


async def test_a_session_shows_a_lease_although_another_statement_was_sent_before_it_knew_of_the_grant(
    postgres_url: str, cleanup: AsyncExitStack
) -> None:
    connections = open_asyncpg(parsed_url(postgres_url)[0])
    cleanup.push_async_callback(connections.close)
    holder, other = [await Session.open(connections, lambda *_: None) for _ in range(2)]
    cleanup.push_async_callback(holder.end)
    cleanup.push_async_callback(other.end)
    name = unique("pipelined")
    request = LockRequest(name, "claim", "holder", False, advisory_key(name))
    [lease], _ = await asyncio.gather(holder.try_locks([request]), holder.locks([request.key]))
    assert lease is not None
    [shown] = inspect_locks(InspectQuery(lock_name=name), await other.locks([request.key])).leases
    assert (shown.lock_name, shown.fencing_token) == (name, lease.fencing_token)


@pytest.mark.parametrize("kind", [*BESIDE, *ITSELF])
async def test_the_end_of_the_connection_loses_every_lease_on_it_at_once(
    kind: str, open_on: OpenOn, admin: asyncpg.Pool
) -> None:
    driver, listener = (await open_on(kind)).driver, Listener()
    await driver.listen(listener)
    claims = [claim_on(unique("lost")), claim_on(unique("lost"))]
    grants = await driver.acquire(claims)
    await terminate_holder(admin, claims[0].lock_name)
    # Without a heartbeat, a call or a poll.
    await until("both losses", lambda: len(listener.lost_claims) == 2)
    assert sorted(listener.lost_claims) == sorted(claim.claim_id for claim in claims)
    assert all(isinstance(cause, StoreError) for cause in listener.causes)
    renewals = [renewal_of(claim, grant) for claim, grant in zip(claims, grants)]
    assert await driver.renew(renewals) == ["lost", "lost"]
    assert await driver.release([ref_of(claims[0], grants[0])]) == [False]
    if kind in BESIDE:
        assert await granted(driver, claim_on(claims[0].lock_name))
    else:
        with pytest.raises(StoreError):
            await driver.acquire([claim_on(claims[0].lock_name)])


async def test_failures_23_and_24_a_hundred_locks_use_one_connection_beside_the_pool(
    postgres_url: str, admin: asyncpg.Pool, cleanup: AsyncExitStack
) -> None:
    name = unique("pinned")
    pool = await cleanup.enter_async_context(
        asyncpg.create_pool(postgres_url, min_size=1, max_size=1, server_settings={"application_name": name})
    )
    async with pool.acquire():
        driver = postgres_advisory_driver(pool)
        claims = [claim_on(f"{name}:{number}") for number in range(100)]
        assert all(isinstance(answer, Grant) for answer in await driver.acquire(claims))
        # One of the pool, one with the locks, and one for the first claim that waits.
        text = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1"
        assert await admin.fetchval(text, name) == 3
        assert await driver.release([ref_of(claim) for claim in claims]) == [True] * 100
        await driver.close()


async def test_failure_25_no_timeout_of_the_server_ends_an_idle_session_with_a_lock(open_driver: OpenDriver) -> None:
    pool = "-c idle_session_timeout=200 -c idle_in_transaction_session_timeout=200"
    url = (await open_driver()).place.replace("postgres://", "postgres://postgres@")
    driver = await open_driver(f"{url}?options={pool.replace(' ', '%20').replace('=', '%3D')}")
    claim = claim_on(unique("idle"))
    grant = await granted(driver, claim)
    await asyncio.sleep(0.6)  # Far beyond the timeout, without traffic.
    assert await driver.renew([renewal_of(claim, grant)]) == ["held"]


@pytest.mark.parametrize("kind", ITSELF)
async def test_failure_41_a_connection_has_one_driver_and_two_claims_on_it_exclude_each_other(
    kind: str, open_on: OpenOn
) -> None:
    opened = await open_on(kind)
    with pytest.raises(InvalidArgumentError, match="another postgres-advisory driver"):
        postgres_advisory_driver(opened.client)
    name = unique("same")
    claim = claim_on(name)
    grant = await granted(opened.driver, claim)
    assert not await is_free(opened.driver, name)
    [first, second] = await opened.driver.acquire([claim_on(f"{name}:2"), claim_on(f"{name}:2")])
    assert isinstance(first, Grant) and isinstance(second, Refusal)
    # Asking again with the same claim returns its lease, and does not count twice.
    assert (await granted(opened.driver, claim)).fencing_token == grant.fencing_token
    assert await opened.driver.release([ref_of(claim)]) == [True]
    assert await is_free(opened.driver, name)
    await opened.driver.close()
    second_driver = postgres_advisory_driver(opened.client)
    assert await is_free(second_driver, name)
    await second_driver.close()


UNTOUCHED = """DO $$ BEGIN
    IF coalesce(current_setting('holdfast.session', true), '') <> '' THEN RAISE 'the driver has changed it'; END IF;
END $$"""


@pytest.mark.parametrize("kind", ITSELF)
async def test_failure_40_a_connection_inside_an_open_transaction_is_refused(kind: str, open_on: OpenOn) -> None:
    opened = await open_on(kind)
    name = unique("transaction")
    for is_connected in (False, True):
        await opened.execute("BEGIN")
        with pytest.raises(StoreError, match="inside a transaction") as refused:
            await opened.driver.acquire([claim_on(name)])
        assert not refused.value.retryable
        # The caller's transaction is as it was: its rollback would undo what a session needs.
        await opened.execute("SELECT 1" if is_connected else UNTOUCHED)
        await opened.execute("ROLLBACK")
        assert await is_free(opened.driver, name), is_connected


@pytest.mark.parametrize("kind", ITSELF)
async def test_a_lease_can_be_renewed_and_released_inside_a_transaction_of_the_caller(
    kind: str, open_on: OpenOn, open_driver: OpenDriver
) -> None:
    opened, name = await open_on(kind), unique("release")
    claim = claim_on(name)
    grant = await granted(opened.driver, claim)
    await opened.execute("BEGIN")
    assert await opened.driver.renew([renewal_of(claim, grant)]) == ["held"]
    assert await opened.driver.release([ref_of(claim, grant)]) == [True]
    await opened.execute("ROLLBACK")
    assert await is_free(await open_driver(), name)


@pytest.mark.parametrize("kind", ITSELF)
async def test_in_a_failed_transaction_of_the_caller_nothing_is_lost_or_forgotten(kind: str, open_on: OpenOn) -> None:
    opened, listener = await open_on(kind), Listener()
    await opened.driver.listen(listener)
    claim = claim_on(unique("failed"))
    grant = await granted(opened.driver, claim)
    await opened.execute("BEGIN")
    with pytest.raises(Exception, match="division by zero"):
        await opened.execute("SELECT 1 / 0")
    [renewed] = await opened.driver.renew([renewal_of(claim, grant)])
    [released] = await opened.driver.release([ref_of(claim, grant)])
    assert isinstance(renewed, StoreError) and isinstance(released, StoreError)
    await opened.execute("ROLLBACK")
    assert await opened.driver.renew([renewal_of(claim, grant)]) == ["held"]
    assert await opened.driver.release([ref_of(claim, grant)]) == [True]
    assert listener.lost_claims == []


@pytest.mark.parametrize("kind", ITSELF)
async def test_statements_of_the_caller_on_its_connection_do_not_disturb_the_driver(kind: str, open_on: OpenOn) -> None:
    opened, listener = await open_on(kind), Listener()
    await opened.driver.listen(listener)
    claim = claim_on(unique("busy"))
    grant = await granted(opened.driver, claim)
    slow = asyncio.ensure_future(opened.execute("SELECT pg_sleep(0.2)"))
    await asyncio.sleep(0.05)
    assert await opened.driver.renew([renewal_of(claim, grant)]) == ["held"]
    await slow
    for _ in range(5):
        await opened.execute("SELECT 1")
    assert await opened.driver.release([ref_of(claim, grant)]) == [True]
    assert listener.lost_claims == []


@pytest.mark.parametrize("kind", ITSELF)
async def test_a_statement_in_flight_on_the_callers_connection_is_no_transaction(kind: str, open_on: OpenOn) -> None:
    """Of the caller, or of the driver itself, which looks for the holder of one lock while it takes another."""
    opened = await open_on(kind)
    await granted(opened.driver, claim_on(unique("before")))
    statement = asyncio.ensure_future(opened.execute("SELECT pg_sleep(0.3)"))
    await asyncio.sleep(0.1)
    await granted(opened.driver, claim_on(unique("during")))
    await statement


@pytest.mark.parametrize("statement", ["unlock", "unlock_list", "take", "take_list"])
@pytest.mark.parametrize("kind", ITSELF)
async def test_a_statement_whose_answer_is_lost_leaves_no_lock_behind_on_a_connection_that_lives_on(
    kind: str, statement: str, open_on: OpenOn, admin: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_on(kind)
    claims, takes = [claim_on(unique("lost")) for _ in range(3)], statement.startswith("take")
    few = claims[: 2 if statement.endswith("_list") else 1]
    await opened.driver.acquire(claims[2:] if takes else claims)
    for each in (AsyncpgConnection, PsycopgConnection):
        monkeypatch.setattr(each, "fetch", _losing_answers(each.fetch, f"EXECUTE holdfast_{statement}_", takes))
    if takes:
        with pytest.raises(StoreError):
            await opened.driver.acquire(few)
    else:
        await opened.driver.release([ref_of(claim) for claim in few])
    for claim in claims:
        await until("the lock to be free", lambda: _none(pids(admin, claim.lock_name)))
    await opened.execute("SELECT 1")


def _losing_answers(query: Any, of: str, sends: bool) -> Any:
    async def lose(self: Any, text: str, *values: Any, **options: Any) -> Any:
        if of not in text:
            return await query(self, text, *values, **options)
        if sends:
            await query(self, text, *values, **options)
        raise ConnectionError("the answer was lost")

    return lose


async def _none(found: Awaitable[Any]) -> bool:
    return not await found


@pytest.mark.parametrize("kind", ITSELF)
async def test_an_unlock_that_the_server_does_not_know_of_ends_the_session_and_every_lease_on_it(
    kind: str, open_on: OpenOn, open_driver: OpenDriver
) -> None:
    opened, listener = await open_on(kind), Listener()
    await opened.driver.listen(listener)
    claim, other = claim_on(unique("false")), claim_on(unique("other"))
    await opened.driver.acquire([claim, other])
    # As if another part of the program used the driver's connection.
    await opened.execute(f"SELECT pg_advisory_unlock({advisory_key(claim.lock_name)})")
    assert await opened.driver.release([ref_of(claim)]) == [False]
    assert listener.lost_claims == [other.claim_id]
    rival = await open_driver()
    await until("the other lock to be free", lambda: is_free(rival, other.lock_name))
    # The connection is the caller's, and stays open.
    await opened.execute("SELECT 1")


@pytest.mark.parametrize("statement", ["SELECT pg_advisory_unlock_all()", "DISCARD ALL", "one unlock"])
@pytest.mark.parametrize("kind", ITSELF)
async def test_a_lock_that_the_application_releases_on_its_connection_is_lost_with_the_next_renewal(
    kind: str, statement: str, open_on: OpenOn, open_driver: OpenDriver
) -> None:
    opened, listener = await open_on(kind), Listener()
    await opened.driver.listen(listener)
    claim, reader = claim_on(unique("unlocked")), replace(claim_on(unique("reader")), mode="shared")
    grants = [await granted(opened.driver, claim), await granted(opened.driver, reader)]
    renewals = [renewal_of(claim, grants[0]), renewal_of(reader, grants[1])]
    assert await opened.driver.renew(renewals) == ["held", "held"]
    key = advisory_key(claim.lock_name)
    await opened.execute(f"SELECT pg_advisory_unlock({key})" if statement == "one unlock" else statement)
    await granted(await open_driver(), claim_on(claim.lock_name))
    assert await opened.driver.renew(renewals) == ["lost", "lost"]
    assert listener.lost_claims == [claim.claim_id, reader.claim_id]
    # The driver opens its session again. asyncpg itself believes in prepared statements that are gone.
    if statement != "DISCARD ALL":
        await granted(opened.driver, claim_on(unique("next")))


@pytest.mark.parametrize("kind", ITSELF)
async def test_closing_the_driver_restores_the_connection_locks_settings_statements(kind: str, open_on: OpenOn) -> None:
    opened = await open_on(kind)
    await opened.execute("SET statement_timeout = '5s'")
    await opened.execute("SET lock_timeout = '7s'")
    await opened.execute("SELECT pg_advisory_lock(42), pg_advisory_lock_shared(4, 2)")
    before = await _state_of(opened)
    claims = [claim_on(unique("a")), claim_on(unique("b")), claim_on(unique("c"), mode="shared")]
    assert all(isinstance(answer, Grant) for answer in await opened.driver.acquire(claims))
    assert await _state_of(opened) != before
    await opened.driver.close()
    assert await _state_of(opened) == before


async def _state_of(opened: Any) -> str:
    """Settings, locks and prepared statements of the connection itself, as one text."""
    text = """SELECT jsonb_build_array(
        (SELECT jsonb_agg(name || ' ' || setting ORDER BY name) FROM pg_settings
         WHERE name ~ 'timeout|synchronous|keepalives|read_only|check_interval'),
        (SELECT jsonb_agg(classid || ' ' || objid || ' ' || objsubid || ' ' || mode ORDER BY classid, objid)
         FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
        (SELECT jsonb_agg(name ORDER BY name) FROM pg_prepared_statements
         WHERE name LIKE 'holdfast%'))::text AS state"""
    if hasattr(opened.client, "fetchval"):
        return str(await opened.client.fetchval(text))
    cursor = await opened.execute(text)
    row = cursor.fetchone()
    return str((await row if asyncio.iscoroutine(row) else row)[0])


async def test_a_connection_without_autocommit_or_from_a_pool_is_refused(
    postgres_url: str, cleanup: AsyncExitStack
) -> None:
    import psycopg

    connection = cleanup.enter_context(psycopg.Connection.connect(postgres_url))
    with pytest.raises(InvalidArgumentError, match="autocommit"):
        postgres_advisory_driver(connection)
    pool = await cleanup.enter_async_context(asyncpg.create_pool(postgres_url, min_size=0, max_size=1))
    async with pool.acquire() as lent:
        with pytest.raises(InvalidArgumentError, match="given back"):
            postgres_advisory_driver(lent)
    for other in (object(), "postgres://", None):
        with pytest.raises(InvalidArgumentError):
            postgres_advisory_driver(other)


async def test_autocommit_that_is_switched_off_later_is_refused_and_the_lease_stays(open_on: OpenOn) -> None:
    opened = await open_on("psycopg connection")
    claim = claim_on(unique("autocommit"))
    grant = await granted(opened.driver, claim)
    await opened.client.set_autocommit(False)
    [answer] = await opened.driver.renew([renewal_of(claim, grant)])
    assert isinstance(answer, StoreError) and not answer.retryable
    await opened.client.set_autocommit(True)
    assert await opened.driver.renew([renewal_of(claim, grant)]) == ["held"]


@pytest.mark.parametrize("kind", ["url", "asyncpg pool", "psycopg pool"])
async def test_failure_22_a_pooler_in_transaction_mode_is_refused_and_the_error_says_why(
    kind: str, pgbouncer_url: str, cleanup: AsyncExitStack
) -> None:
    from psycopg_pool import AsyncConnectionPool

    if kind == "url":
        driver = await open_postgres_advisory(pgbouncer_url)
    elif kind == "asyncpg pool":
        pool = asyncpg.create_pool(pgbouncer_url, min_size=0, max_size=2, statement_cache_size=0)
        driver = postgres_advisory_driver(await cleanup.enter_async_context(pool))
    else:
        # Opened without connections of its own: the driver opens what it needs.
        driver = postgres_advisory_driver(AsyncConnectionPool(pgbouncer_url, open=False))
    with pytest.raises(UnsupportedError, match="pooler in transaction mode"):
        await driver.acquire([claim_on(unique("pooled"))])
    await driver.close()


async def test_failure_22_the_callers_connection_to_a_pooler_is_refused(
    pgbouncer_url: str, cleanup: AsyncExitStack
) -> None:
    connection = await asyncpg.connect(pgbouncer_url, statement_cache_size=0)
    cleanup.push_async_callback(connection.close)
    driver = postgres_advisory_driver(connection)
    with pytest.raises(UnsupportedError, match="pooler in transaction mode"):
        await driver.acquire([claim_on(unique("pooled"))])
    await driver.close()


async def test_failure_22_a_pooler_in_session_mode_is_accepted_and_keeps_no_lock_of_a_closed_driver(
    postgres_url: str, open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    port = int(postgres_url.rsplit(":", 1)[1].partition("/")[0])
    with PgBouncer(port, pool_mode="session", default_pool_size="10") as pooler:
        driver, claims = await open_driver(pooler.url), [claim_on(unique("session")), claim_on(unique("session"))]
        assert all(isinstance(answer, Grant) for answer in await driver.acquire(claims))
        assert len(await pids(admin, claims[0].lock_name)) == 1
        await driver.close()
        assert await pids(admin, claims[0].lock_name) == await pids(admin, claims[1].lock_name) == []


async def test_failure_22_a_pooler_in_session_mode_that_does_not_reset_sessions_is_refused(
    postgres_url: str, open_driver: OpenDriver
) -> None:
    port = int(postgres_url.rsplit(":", 1)[1].partition("/")[0])
    with PgBouncer(port, pool_mode="session", default_pool_size="10", server_reset_query="") as pooler:
        driver = await open_driver(pooler.url)
        with pytest.raises(UnsupportedError, match="does not reset the session"):
            await driver.acquire([claim_on(unique("session"))])


_EVERY_SESSION = "pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql RETURN true"
_NO_SESSION = "pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql RETURN false"
_COCKROACH = "version() RETURNS text LANGUAGE sql RETURN 'CockroachDB CCL v23.2.3'"


@pytest.mark.parametrize("definition", [_EVERY_SESSION, _NO_SESSION, _COCKROACH])
@pytest.mark.parametrize("package", ["asyncpg", "psycopg"])
async def test_a_server_whose_locks_exclude_nothing_is_refused_before_the_first_claim(
    package: str, definition: str, postgres_url: str, admin: asyncpg.Pool, cleanup: AsyncExitStack
) -> None:
    """Functions before those of the server play what other servers and proxies do."""
    schema = unique("fake").replace(":", "_").replace("-", "_").lower()
    await admin.execute(f'CREATE SCHEMA "{schema}"')
    await admin.execute(f'CREATE FUNCTION "{schema}".{definition}')
    path = f'"{schema}", pg_catalog'
    if package == "asyncpg":
        pool: Any = asyncpg.create_pool(postgres_url, min_size=0, max_size=2, server_settings={"search_path": path})
        await pool
    else:
        options = f'-c search_path="{schema}",pg_catalog'
        pool = psycopg_pool.AsyncConnectionPool(postgres_url, kwargs={"options": options}, min_size=1, open=False)
        await pool.open()
    cleanup.push_async_callback(pool.close)
    driver = postgres_advisory_driver(pool)
    with pytest.raises(UnsupportedError, match="advisory locks"):
        await driver.acquire([claim_on(unique("other"))])
    await driver.close()
    await admin.execute(f'DROP SCHEMA "{schema}" CASCADE')


async def test_failure_22_a_pooler_in_transaction_mode_is_refused_under_traffic_without_leaks(
    postgres_url: str, open_driver: OpenDriver, admin: asyncpg.Pool, cleanup: AsyncExitStack
) -> None:
    """Other transactions through the pooler can hide for a moment that it switches sessions."""
    port = int(postgres_url.rsplit(":", 1)[1].partition("/")[0])
    with PgBouncer(port, pool_mode="transaction", default_pool_size="5") as pooler:
        pool = asyncpg.create_pool(pooler.url, min_size=5, max_size=5, statement_cache_size=0)
        app = await cleanup.enter_async_context(pool)
        traffic = [asyncio.ensure_future(_traffic(app)) for _ in range(4)]
        names = [unique("traffic") for _ in range(8)]
        for name in names:
            driver = await open_driver(pooler.url)
            with pytest.raises(UnsupportedError):
                await driver.acquire([claim_on(name)])
            await driver.close()
        for task in traffic:
            task.cancel()
        await asyncio.gather(*traffic, return_exceptions=True)
        for name in names:
            assert await pids(admin, name) == []


async def _traffic(pool: asyncpg.Pool) -> None:
    while True:
        await pool.execute("SELECT pg_sleep(0.004)")
        await asyncio.sleep(0.003)


async def test_a_closed_driver_refuses_every_call_and_has_released_its_locks(
    open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    driver, claim = await open_driver(), claim_on(unique("closed"))
    grant = await granted(driver, claim)
    await driver.close()
    await driver.close()
    await until("the end of the session", lambda: _none(pids(admin, claim.lock_name)))
    for call in (
        lambda: driver.acquire([claim]),
        lambda: driver.renew([renewal_of(claim, grant)]),
        lambda: driver.release([ref_of(claim)]),
        lambda: driver.inspect(InspectQuery()),
        lambda: driver.listen(Listener()),
    ):
        with pytest.raises(ClosedError):
            await call()


async def test_an_unreachable_server_is_a_store_error_without_the_password() -> None:
    driver = await open_postgres_advisory("postgres+advisory://app:secret-word@127.0.0.1:1/shop")
    with pytest.raises(StoreError, match="127.0.0.1:1/shop") as failed:
        await driver.acquire([claim_on("x")])
    assert "secret-word" not in f"{failed.value} {failed.value.__cause__!r} {failed.value.__context__!r}"
    await driver.close()


async def test_parts_of_a_url_that_mean_nothing_here_are_refused() -> None:
    for url in ("postgres+advisory://h/db?holdfast_schema=x", "postgres+advisory://h", "postgres+advisory://h/db?x=1"):
        with pytest.raises(InvalidArgumentError):
            await open_postgres_advisory(url)
    for wrong in (-1, 101, 1.5, True, "8"):
        with pytest.raises(InvalidArgumentError):
            await open_postgres_advisory("postgres+advisory://h/db", max_waiting_connections=wrong)  # type: ignore


async def _none(found: Awaitable[Any]) -> bool:
    return not await found


async def test_a_release_that_is_cancelled_before_it_is_sent_leaves_no_lock_behind(
    open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    driver, claim = await open_driver(), claim_on(unique("cancelled"))
    grant = await granted(driver, claim)
    session = driver._main.current
    assert session is not None
    async with session._opened.connection._turn:
        release = asyncio.ensure_future(driver.release([ref_of(claim, grant)]))
        while session.leases:
            await asyncio.sleep(0)
        release.cancel()
        await asyncio.wait({release})

    async def is_gone() -> bool:
        return await pids(admin, claim.lock_name) == []

    await until("the end of the lock", is_gone, 5)
