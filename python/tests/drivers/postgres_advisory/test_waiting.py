"""Waiters are in the server's own queue, on connections of their own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Awaitable, Callable

import asyncpg
import psycopg
import pytest
from holdfast import DistributedLock
from holdfast.core.driver import Grant, InspectQuery, Refusal
from holdfast.drivers._postgres.psycopg_client import open_psycopg
from holdfast.drivers._postgres.url import postgres_url as parsed_url
from holdfast.drivers.postgres_advisory import PostgresAdvisoryDriver, advisory_key
from support.advisory import Listener, claim_on, granted, is_free, pids, ref_of, renewal_of, until
from support.names import unique

OpenDriver = Callable[..., Awaitable[PostgresAdvisoryDriver]]


@pytest.fixture(params=["asyncpg", "psycopg"])
async def driver(
    request: Any, postgres_url: str, open_driver: OpenDriver, cleanup: AsyncExitStack
) -> PostgresAdvisoryDriver:
    if request.param == "asyncpg":
        return await open_driver()
    connections = open_psycopg(parsed_url(postgres_url)[0])
    made = PostgresAdvisoryDriver(connections, max_waiting_connections=8)
    cleanup.push_async_callback(made.close)
    return made


async def test_rule_10_a_waiter_is_granted_by_the_server_and_keeps_the_lease(
    driver: PostgresAdvisoryDriver, open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    name, holder, listener = unique("wait"), await open_driver(), Listener()
    await driver.listen(listener)
    claim, waiting = claim_on(name), claim_on(name, waiter_ttl_ms=10_000, holder_id="waiter")
    grant = await granted(holder, claim)
    [refusal] = await driver.acquire([waiting])
    assert isinstance(refusal, Refusal) and refusal.holder is not None and refusal.holder.claim_id == claim.claim_id
    # Others see it as soon as its claim is answered.
    [shown] = (await holder.inspect(InspectQuery(lock_name=name))).waiters
    assert (shown.claim_id, shown.holder_id) == (waiting.claim_id, "waiter")
    assert await holder.release([ref_of(claim, grant)]) == [True]
    reported: Grant = await until("the grant", lambda: listener.grants.get(waiting.claim_id))
    assert reported.fencing_token > grant.fencing_token
    assert (await granted(driver, waiting)).fencing_token == reported.fencing_token
    assert await driver.renew([renewal_of(waiting, reported)]) == ["held"]
    assert not await is_free(holder, name)
    assert await driver.release([ref_of(waiting, reported)]) == [True]
    assert await pids(admin, name) == []


async def test_the_end_of_a_connection_that_waited_is_the_loss_of_its_lease(
    driver: PostgresAdvisoryDriver, open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    name, holder, listener = unique("waited"), await open_driver(), Listener()
    await driver.listen(listener)
    other, claim, waiting = claim_on(unique("main")), claim_on(name), claim_on(name, waiter_ttl_ms=10_000)
    await granted(driver, other)
    await granted(holder, claim)
    await driver.acquire([waiting])
    await holder.release([ref_of(claim)])
    await until("the grant", lambda: waiting.claim_id in listener.grants)
    await granted(driver, waiting)
    [pid] = await pids(admin, name)
    await admin.fetch("SELECT pg_terminate_backend($1, 5000)", pid)
    await until("the loss", lambda: listener.lost_claims)
    # The lease on the other connection is not affected.
    assert listener.lost_claims == [waiting.claim_id]


async def test_a_waiter_that_gives_up_leaves_the_queue_and_its_connection_is_used_again(
    driver: PostgresAdvisoryDriver, open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    name, holder = unique("give-up"), await open_driver()
    await granted(holder, claim_on(name))
    seen = set()
    for _ in range(3):
        waiting = claim_on(name, waiter_ttl_ms=10_000)
        await driver.acquire([waiting])
        seen.update(await pids(admin, name, granted=False))
        assert await driver.release([ref_of(waiting)]) == [False]
        assert await pids(admin, name, granted=False) == []
    assert len(seen) == 1


async def test_a_waiter_that_gives_up_at_the_moment_of_its_grant_leaves_no_lock_behind(
    driver: PostgresAdvisoryDriver, admin: asyncpg.Pool
) -> None:
    name, listener = unique("moment"), Listener()
    key = advisory_key(name)
    await driver.listen(listener)
    async with admin.acquire() as holder:
        for number in range(40):
            await holder.fetch("SELECT pg_advisory_lock($1)", key)
            waiting = claim_on(name, waiter_ttl_ms=5_000)
            await driver.acquire([waiting])

            async def unlock(delay: float) -> None:
                await asyncio.sleep(delay)
                await holder.fetch("SELECT pg_advisory_unlock($1)", key)

            await asyncio.gather(unlock((number % 8) * 0.0003), driver.release([ref_of(waiting)]))
            await until("the lock to be free", lambda: _none(pids(admin, name)))


async def test_a_place_ends_if_its_claim_does_not_ask_again(
    driver: PostgresAdvisoryDriver, open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    name, holder = unique("dead"), await open_driver()
    claim = claim_on(name)
    await granted(holder, claim)
    await driver.acquire([claim_on(name, waiter_ttl_ms=300)])
    await until("the end of the place", lambda: _none(pids(admin, name, granted=False)))
    await holder.release([ref_of(claim)])
    assert await is_free(holder, name)


async def test_a_lease_that_was_handed_over_is_given_up_if_its_claim_does_not_ask(
    driver: PostgresAdvisoryDriver, open_driver: OpenDriver
) -> None:
    name, holder = unique("unclaimed"), await open_driver()
    claim = claim_on(name)
    await granted(holder, claim)
    await driver.acquire([claim_on(name, waiter_ttl_ms=400)])
    await holder.release([ref_of(claim)])
    assert await until("the end of the lease", lambda: is_free(holder, name))


async def test_failure_29_a_waiter_whose_connection_was_ended_is_queued_again_when_it_asks(
    driver: PostgresAdvisoryDriver, open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    name, holder, listener = unique("cut-off"), await open_driver(), Listener()
    await driver.listen(listener)
    claim, waiting = claim_on(name), claim_on(name, waiter_ttl_ms=10_000)
    await granted(holder, claim)
    await driver.acquire([waiting])
    [pid] = await pids(admin, name, granted=False)
    await admin.fetch("SELECT pg_terminate_backend($1, 5000)", pid)
    await driver.acquire([waiting])
    assert await until("another place", lambda: pids(admin, name, granted=False)) != [pid]
    await holder.release([ref_of(claim)])
    await until("the grant", lambda: waiting.claim_id in listener.grants)
    assert listener.lost_claims == []


async def test_waiters_use_no_more_connections_than_stated_and_the_others_poll(
    open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    name, holder = unique("bound"), await open_driver()
    driver = await open_driver(max_waiting_connections=2)
    claims = [claim_on(f"{name}:{number}") for number in range(5)]
    await holder.acquire(claims)
    waiting = [claim_on(claim.lock_name, waiter_ttl_ms=10_000) for claim in claims]
    answers = await driver.acquire(waiting)
    assert [getattr(answer, "ask_again_ms") is not None for answer in answers] == [False, False, True, True, True]
    await holder.release([ref_of(claim) for claim in claims])
    await until("all to be served", lambda: _all_granted(driver, waiting))


async def test_readers_share_a_lock_and_a_writer_waits_for_all_of_them(
    driver: PostgresAdvisoryDriver, open_driver: OpenDriver
) -> None:
    name, other, listener = unique("shared"), await open_driver(), Listener()
    await driver.listen(listener)
    readers = [claim_on(name, mode="shared") for _ in range(3)]
    grants = [await granted(each, reader) for each, reader in zip((driver, driver, other), readers)]
    assert len({grant.fencing_token for grant in grants}) == 3
    writer = claim_on(name, waiter_ttl_ms=10_000)
    await driver.acquire([writer])
    await driver.release([ref_of(readers[0]), ref_of(readers[1])])
    assert writer.claim_id not in listener.grants
    await other.release([ref_of(readers[2])])
    await until("the writer", lambda: writer.claim_id in listener.grants)


async def test_waiters_of_two_locks_are_served_through_the_whole_client(postgres_url: str) -> None:
    url = postgres_url.replace("postgres://", "postgres+advisory://")
    name, served = unique("client"), []
    first, second = DistributedLock(url), DistributedLock(url)

    async def work(lock: DistributedLock, number: int) -> None:
        async with lock.lock(name, blocking_timeout_seconds=30) as lease:
            served.append((number, lease.fencing_token))

    await asyncio.gather(*(work((first, second)[number % 2], number) for number in range(10)))
    assert sorted(number for number, _ in served) == list(range(10))
    assert [token for _, token in served] == sorted(token for _, token in served)
    await first.close()
    await second.close()


async def _none(found: Awaitable[Any]) -> bool:
    return not await found


async def _all_granted(driver: PostgresAdvisoryDriver, claims: Any) -> bool:
    return all(isinstance(answer, Grant) for answer in await driver.acquire(claims))


async def test_failure_70_the_snapshot_of_a_waiter_is_seconds_old(
    driver: PostgresAdvisoryDriver, open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    name, holder = unique("snapshot"), await open_driver()
    claim, waiter = claim_on(name), claim_on(name, waiter_ttl_ms=60_000)
    await granted(holder, claim)
    await driver.acquire([waiter])
    [pid] = await admin.fetch(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
        "AND (classid::bigint << 32 | objid::bigint) = $1",
        advisory_key(name),
    )
    look = "SELECT backend_xmin::text::bigint AS xmin, query_start FROM pg_stat_activity WHERE pid = $1"
    first = await admin.fetchrow(look, pid["pid"])
    now = await admin.fetchval("SELECT pg_current_xact_id()::text::bigint")
    assert first["xmin"] <= now

    async def is_newer() -> bool:
        row = await admin.fetchrow(look, pid["pid"])
        # It is still the same statement, of which the client knows nothing.
        return row["query_start"] == first["query_start"] and row["xmin"] > now

    await until("a newer snapshot", is_newer)
    await holder.release([ref_of(claim)])
    await until("the grant", lambda: _is_held(driver, name))


async def _is_held(driver: PostgresAdvisoryDriver, name: str) -> bool:
    return bool((await driver.inspect(InspectQuery(lock_name=name))).leases)


async def test_a_program_that_cancels_all_tasks_and_goes_on_leaves_no_lock_behind(
    driver: PostgresAdvisoryDriver, admin: asyncpg.Pool, postgres_url: str
) -> None:
    name = unique("cancelled")
    claim = claim_on(name, waiter_ttl_ms=30_000)
    await driver.listen(Listener())
    with psycopg.connect(postgres_url, autocommit=True) as holder:
        # It blocks the event loop, which has not read the grant when it cancels the tasks.
        holder.execute("SELECT pg_advisory_lock(%s)", [advisory_key(name)])
        [refusal] = await driver.acquire([claim])
        assert isinstance(refusal, Refusal)
        await until("the waiter", lambda: pids(admin, name, granted=False))
        holder.execute("SELECT pg_advisory_unlock(%s)", [advisory_key(name)])
        until_granted = "SELECT 1 FROM pg_locks WHERE granted AND (classid::bigint << 32 | objid::bigint) = %s"
        while not holder.execute(until_granted, [advisory_key(name)]).fetchall():
            pass
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await driver.release([ref_of(claim)])
    await until("the end of the lock", lambda: has_none(admin, name))
    assert await is_free(driver, name)


async def has_none(admin: asyncpg.Pool, lock_name: str) -> bool:
    return await pids(admin, lock_name) == []
