"""Locked rows, broken connections, silent servers, poolers and forks."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from holdfast.core.driver import Grant, LeaseRef, Renewal
from holdfast.drivers._postgres.own_pool import OwnPool
from holdfast.errors import StoreError
from support.postgres import claim_on, connected, grant_of, lease_of, opened, refusal_of

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


async def test_parts_of_a_list_fail_alone(postgres_url: str, lock_name: str) -> None:
    async with opened("url with asyncpg", postgres_url) as driver, connected(postgres_url) as other:
        plain, locked, after = (claim_on(f"{lock_name}:{letter}") for letter in "abc")
        await grant_of(driver, claim_on(locked.lock_name))
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT FROM distributed_locks WHERE lock_name = $1 FOR UPDATE", locked.lock_name)
        stealing = claim_on(locked.lock_name, steal=True)
        answers = await driver.acquire([plain, stealing, after])
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
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1", application
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
            for _ in range(1_000):
                ended = await admin.fetchval(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE application_name = $1 AND wait_event_type = 'Lock'",
                    application,
                )
                if ended:
                    break
            with pytest.raises(StoreError) as unknown:
                await releasing
            assert unknown.value.retryable
            await other.execute("ROLLBACK")
            # It was not sent again behind the caller's back: the lease is still there.
            assert (await grant_of(driver, claim)).fencing_token == grant.fencing_token
            assert await driver.release([lease_of(claim, grant)]) == [True]



@pytest.mark.parametrize("how", BOTH)
async def test_failure_26_a_server_that_stops_answering_costs_a_deadline_and_not_the_driver(
    how: str, postgres_url: str, lock_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(how, postgres_url) as driver, connected(postgres_url) as other:
        claim = claim_on(lock_name)
        grant = await grant_of(driver, claim)
        pool: Any = driver._connections
        [session] = pool._idle
        fetch = session.fetch

        async def brief(text: str, values: Any = (), timeout_seconds: Any = 10) -> Any:
            # The statement itself takes longer than its deadline.
            return await fetch("SELECT pg_sleep(5), $1::text", ["x"], 0.1)

        session.fetch = brief
        with pytest.raises(StoreError, match="in time") as late:
            await driver.release([lease_of(claim, grant)])
        assert late.value.retryable
        assert not session.is_open and session not in pool._idle
        assert await driver.release([lease_of(claim, grant)]) == [True]
        assert await other.fetchval("SELECT 1") == 1


async def test_failure_24_no_more_than_four_connections_are_used_and_nobody_waits_for_ever(
    postgres_url: str, lock_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.drivers._postgres.own_pool.QUERY_SECONDS", 0.2)
    async with opened("url with asyncpg", postgres_url) as driver:
        await grant_of(driver, claim_on(lock_name))
        pool: Any = driver._connections
        assert isinstance(pool, OwnPool)
        slow = [asyncio.ensure_future(pool.query("SELECT pg_sleep(1)", [])) for _ in range(4)]
        await asyncio.sleep(0.05)
        with pytest.raises(StoreError, match="all 4 connections"):
            await driver.acquire([claim_on(f"{lock_name}:second")])
        await asyncio.gather(*slow)
        assert len(pool._idle) <= 4
        await grant_of(driver, claim_on(f"{lock_name}:second"))


@pytest.mark.parametrize("how", BOTH)
async def test_many_drivers_behind_a_pooler_in_transaction_mode(
    how: str, pgbouncer_url: str, postgres_url: str, lock_name: str
) -> None:
    """Statements must not be prepared: another transaction gets another connection of the pooler."""
    async with opened(how, pgbouncer_url) as one, opened(how, pgbouncer_url) as two, opened(how, postgres_url) as direct:

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
async def test_an_acquire_whose_answer_was_lost_can_be_asked_again(
    how: str, postgres_url: str, lock_name: str
) -> None:
    async with opened(how, postgres_url) as driver:
        claim = claim_on(lock_name)
        await driver.acquire([])
        lost = asyncio.ensure_future(driver.acquire([claim]))
        await asyncio.wait([lost])
        first = await grant_of(driver, claim)
        assert (await grant_of(driver, claim)).fencing_token == first.fencing_token
        assert await driver.release([LeaseRef(lock_name, claim.claim_id)]) == [True]


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
