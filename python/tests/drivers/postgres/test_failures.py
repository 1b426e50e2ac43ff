"""Locked rows, broken connections, silent servers, poolers and forks."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Tuple
from urllib.parse import urlsplit

import pytest

from holdfast.core.driver import ANY_TOKEN, Grant, InspectQuery, Renewal
from holdfast.drivers._postgres import deadlines
from holdfast.drivers._postgres.own_pool import OwnPool
from holdfast.drivers._postgres.psycopg_client import open_psycopg
from holdfast.drivers._postgres.url import postgres_url as parsed_url
from holdfast.errors import StoreError
from support.names import unique
from support.postgres import EVERY_CLIENT, Heard, claim_on, connected, grant_of, lease_of, opened, refusal_of, until
from support.tcp_proxy import TcpProxy

BOTH = ["url with asyncpg", "url with psycopg"]


async def test_failure_44_a_locked_row_costs_only_its_own_entry_an_answer(postgres_url: str, lock_name: str) -> None:
    names = [f"{lock_name}:{letter}" for letter in "abc"]
    async with opened("url with asyncpg", postgres_url) as driver, connected(postgres_url) as other:
        claims = [claim_on(name) for name in names]
        grants = [await grant_of(driver, claim) for claim in claims]
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT FROM distributed_locks WHERE lock_name = $1 FOR UPDATE", names[1])
        renewals = [Renewal(c.lock_name, c.claim_id, g.fencing_token, 60_000) for c, g in zip(claims, grants)]
        renewed = await driver.renew(renewals)
        assert [renewed[0], renewed[2]] == ["renewed", "renewed"]
        assert isinstance(renewed[1], StoreError) and renewed[1].retryable and names[1] in str(renewed[1])
        again = await driver.acquire(claims)
        assert isinstance(again[0], Grant) and isinstance(again[2], Grant)
        assert isinstance(again[1], StoreError)
        released = await driver.release([lease_of(claim, grant) for claim, grant in zip(claims, grants)])
        assert [released[0], released[2]] == [True, True]
        assert isinstance(released[1], StoreError)
        with pytest.raises(StoreError, match="55P03"):
            await driver.release([lease_of(claims[1], grants[1])])
        await transaction.rollback()
        assert await driver.release([lease_of(claims[1], grants[1])]) == [True]


@pytest.mark.parametrize("how", BOTH)
async def test_failure_44_claims_that_wait_for_a_locked_row_cost_no_other_lease(
    how: str, postgres_url: str, lock_name: str
) -> None:
    async with opened(how, postgres_url) as driver, connected(postgres_url) as other:
        claim = claim_on(f"{lock_name}:kept")
        grant = await grant_of(driver, claim)
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT acquire_lock($1, 'open')", lock_name)
        # Each waits for half a second, three at once.
        claims = [asyncio.ensure_future(driver.acquire([claim_on(lock_name)])) for _ in range(24)]
        await asyncio.sleep(0.1)
        renewal = Renewal(claim.lock_name, claim.claim_id, grant.fencing_token, 60_000)
        assert await driver.renew([renewal]) == ["renewed"]
        assert not any(each.done() for each in claims[12:])
        failures = await asyncio.gather(*claims, return_exceptions=True)
        assert all("locked by another transaction" in str(failure) for failure in failures)
        await transaction.rollback()


async def test_each_call_that_waits_for_a_locked_row_says_so(postgres_url: str, lock_name: str) -> None:
    async with opened("url with asyncpg", postgres_url) as driver, connected(postgres_url) as other:
        claims = [claim_on(lock_name, mode="shared") for _ in range(3)]
        grants = [await grant_of(driver, claim) for claim in claims]
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT FROM distributed_locks WHERE lock_name = $1 FOR UPDATE", lock_name)
        renewals = [Renewal(c.lock_name, c.claim_id, g.fencing_token, 60_000) for c, g in zip(claims, grants)]
        calls = [driver.renew([each]) for each in renewals]
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert all("locked by another transaction" in str(failure) for failure in failures), failures
        await transaction.rollback()


async def test_parts_of_a_list_fail_alone(postgres_url: str, lock_name: str) -> None:
    async with opened("url with asyncpg", postgres_url) as driver, connected(postgres_url) as other:
        plain, locked, after = (claim_on(f"{lock_name}:{letter}") for letter in "abc")
        await grant_of(driver, claim_on(locked.lock_name))
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT FROM distributed_locks WHERE lock_name = $1 FOR UPDATE", locked.lock_name)
        forcing = claim_on(locked.lock_name, force_up_to=ANY_TOKEN)
        answers = await driver.acquire([plain, forcing, after])
        assert [type(answer) for answer in answers] == [Grant, StoreError, Grant]
        await transaction.rollback()


@pytest.mark.parametrize("how", BOTH)
async def test_idle_connections_that_the_server_has_ended_are_replaced_unnoticed(
    how: str, postgres_url: str, lock_name: str
) -> None:
    application = f"py {lock_name}"
    async with connected(postgres_url) as admin:
        async with opened(how, f"{postgres_url}?application_name={application.replace(' ', '%20')}") as driver:
            claim = claim_on(lock_name)
            grant = await grant_of(driver, claim)
            await asyncio.gather(*(grant_of(driver, claim_on(f"{lock_name}:{n}")) for n in range(4)))
            ended = await admin.fetchval(
                "SELECT count(pg_terminate_backend(pid, 30000)) FROM pg_stat_activity WHERE application_name = $1",
                application,
            )
            assert 1 <= ended <= 4
            await asyncio.sleep(0.1)
            assert await driver.release([lease_of(claim, grant)]) == [True]


@pytest.mark.parametrize("how", BOTH)
async def test_a_connection_that_breaks_in_the_middle_leaves_the_outcome_unknown(
    how: str, postgres_url: str, lock_name: str
) -> None:
    application = f"py {lock_name}"
    async with connected(postgres_url) as admin, connected(postgres_url) as other:
        async with opened(how, f"{postgres_url}?application_name={application.replace(' ', '%20')}") as driver:
            claim = claim_on(lock_name)
            grant = await grant_of(driver, claim)
            await other.execute("BEGIN")
            await other.execute("SELECT FROM distributed_locks WHERE lock_name = $1 FOR UPDATE", lock_name)
            releasing = asyncio.ensure_future(driver.release([lease_of(claim, grant)]))
            of_driver = "FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'"
            pids = await until("the call", lambda: admin.fetch(f"SELECT pid {of_driver}", application))
            await admin.execute("SELECT pg_terminate_backend($1)", pids[0]["pid"])

            async def gone() -> bool:
                sql = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1"
                return bool(await admin.fetchval(sql, pids[0]["pid"]))

            await until("the end of the connection", gone)
            # If the call were sent again, it would succeed now.
            await other.execute("ROLLBACK")
            with pytest.raises(StoreError) as unknown:
                await releasing
            assert unknown.value.retryable
            # It was not sent again behind the caller's back: the lease is still there.
            assert (await grant_of(driver, claim)).fencing_token == grant.fencing_token
            assert await driver.release([lease_of(claim, grant)]) == [True]



@asynccontextmanager
async def proxied(postgres_url: str) -> AsyncIterator[Tuple[TcpProxy, str]]:
    parts = urlsplit(postgres_url)
    async with TcpProxy(parts.port or 5432) as proxy:
        yield proxy, postgres_url.replace(f":{parts.port}/", f":{proxy.port}/")


@pytest.mark.parametrize("how", [how for how in EVERY_CLIENT if "connection" not in how])
async def test_failure_26_a_server_that_stops_answering_costs_a_deadline_and_not_the_driver(
    how: str, postgres_url: str, lock_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(postgres_url) as (proxy, url), opened(how, url) as driver:
        claim = claim_on(lock_name)
        grant = await grant_of(driver, claim)
        renewal = Renewal(lock_name, claim.claim_id, grant.fencing_token, 60_000)
        assert await driver.renew([renewal]) == ["renewed"]
        monkeypatch.setattr(deadlines, "QUERY_SECONDS", 0.3)
        proxy.go_silent()
        with pytest.raises(StoreError, match="in time") as late:
            await driver.renew([renewal])
        assert late.value.retryable
        proxy.release("to_server")
        proxy.release("to_client")
        monkeypatch.undo()
        assert await driver.release([lease_of(claim, grant)]) == [True]


@pytest.mark.parametrize("how", BOTH)
async def test_failure_26_a_silent_listening_connection_is_reported(
    how: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(postgres_url) as (proxy, url), opened(how, url) as driver:
        await driver.acquire([claim_on(unique())])
        monkeypatch.setattr("holdfast.drivers._postgres.notify_connection._PING_SECONDS", 0.1)
        heard = Heard(set())
        await driver.listen(heard)
        monkeypatch.setattr(deadlines, "QUERY_SECONDS", 0.2)
        proxy.go_silent()
        await heard.wait_for("disconnected")
        proxy.release("to_server")
        proxy.release("to_client")
        monkeypatch.undo()
        await driver.listen(heard)


@pytest.mark.parametrize("how", EVERY_CLIENT)
async def test_failure_11_a_grant_whose_answer_was_lost_is_still_there_for_the_same_claim(
    how: str, postgres_url: str, lock_name: str
) -> None:
    async with proxied(postgres_url) as (proxy, url), opened("url with asyncpg", postgres_url) as direct:
        async with opened(how, url) as driver:
            await driver.release([lease_of(claim, await grant_of(driver, claim)) for claim in [claim_on(unique())]])
            claim = claim_on(lock_name)
            # Prepared statements are sent without their text, so the claim id marks the call.
            cut = proxy.cut_after(claim.claim_id)
            with pytest.raises(StoreError) as unknown:
                await driver.acquire([claim])
            assert unknown.value.retryable and cut.is_set()

            async def stored() -> bool:
                return len((await direct.inspect(InspectQuery(lock_name=lock_name))).leases) == 1

            await until("the grant", stored)
        await refusal_of(direct, claim_on(lock_name))
        async with opened(how, postgres_url) as again:
            grant = await grant_of(again, claim)
            assert await again.release([lease_of(claim, grant)]) == [True]


async def test_failure_24_no_more_than_four_connections_are_used_and_nobody_waits_for_ever(
    postgres_url: str, lock_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened("url with asyncpg", postgres_url) as driver:
        await grant_of(driver, claim_on(lock_name))
        pool: Any = driver._connections
        assert isinstance(pool, OwnPool)
        busy = [await pool._take(is_urgent=True) for _ in range(4)]
        monkeypatch.setattr(deadlines, "QUERY_SECONDS", 0.2)
        with pytest.raises(StoreError, match="all 4 connections"):
            await driver.acquire([claim_on(f"{lock_name}:second")])
        monkeypatch.undo()
        waiting = asyncio.ensure_future(grant_of(driver, claim_on(f"{lock_name}:second")))
        await asyncio.sleep(0.01)
        for session in busy:
            pool._give_back(session, True)
        await waiting
        assert len(pool._idle) == 4
        most = 0

        async def call(index: int) -> None:
            nonlocal most
            for turn in range(5):
                await grant_of(driver, claim_on(f"{lock_name}:{index}:{turn}"))
                most = max(most, pool._used)

        await asyncio.gather(*map(call, range(16)))
        # One is left to renewals and releases.
        assert most == 3 and pool._used == 0 and len(pool._idle) == 4


@pytest.mark.parametrize("how", BOTH)
async def test_a_connection_to_a_server_that_became_read_only_is_not_used_again(
    how: str, postgres_url: str, lock_name: str
) -> None:
    async with opened(how, postgres_url) as driver:
        await grant_of(driver, claim_on(f"{lock_name}:before"))
        pool: Any = driver._connections
        [session] = pool._idle
        await session.script("SET default_transaction_read_only = on")
        with pytest.raises(StoreError, match="read-only") as refused:
            await driver.acquire([claim_on(lock_name)])
        # This driver has written there before, so the server was demoted.
        assert refused.value.retryable
        await grant_of(driver, claim_on(lock_name))


@pytest.mark.parametrize("how", BOTH)
async def test_many_drivers_behind_a_pooler_in_transaction_mode(
    how: str, pgbouncer_url: str, postgres_url: str, lock_name: str
) -> None:
    """Statements must not be prepared: another transaction gets another connection of the pooler."""
    async with opened(how, pgbouncer_url) as one, opened(how, pgbouncer_url) as two, opened(
        how, postgres_url
    ) as direct:

        async def work(driver: Any, index: int) -> None:
            for turn in range(10):
                claim = claim_on(f"{lock_name}:{index}:{turn}")
                grant = await grant_of(driver, claim)
                await refusal_of(direct, claim_on(claim.lock_name))
                renewal = Renewal(claim.lock_name, claim.claim_id, grant.fencing_token, 60_000)
                assert await driver.renew([renewal]) == ["renewed"]
                assert await driver.release([lease_of(claim, grant)]) == [True]

        await asyncio.gather(*(work([one, two][index % 2], index) for index in range(8)))


@pytest.mark.parametrize("how", BOTH)
async def test_nothing_is_sent_on_the_parents_connections_after_a_fork(
    how: str, postgres_url: str, lock_name: str
) -> None:
    async with opened(how, postgres_url) as driver:
        claim = claim_on(lock_name)
        grant = await grant_of(driver, claim)
        pool: Any = driver._connections
        child = os.fork()
        if child == 0:
            # In the child: the pool must refuse before it touches a socket.
            code = 1
            try:
                pool._check_open()
            except StoreError as error:
                code = 0 if not error.retryable and "fork" in str(error) else 2
            os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert await driver.release([lease_of(claim, grant)]) == [True]


async def test_calls_that_were_cancelled_do_not_keep_psycopg_from_connecting_again(postgres_url: str) -> None:
    """The event loop refused a new socket with the number of one that it still watched, for as long as it ran."""
    pool = open_psycopg(parsed_url(postgres_url)[0])
    try:
        for _ in range(3):
            assert await pool.query("SELECT 1 AS found", []) == [{"found": 1}]
            call = asyncio.ensure_future(pool.query("SELECT pg_sleep(2)", []))
            # It is sent when the event loop has turned a few times.
            await asyncio.sleep(0.05)
            call.cancel()
            await asyncio.wait({call})
            assert call.cancelled()
        assert await pool.query("SELECT 1 AS found", []) == [{"found": 1}]
    finally:
        await pool.close()
