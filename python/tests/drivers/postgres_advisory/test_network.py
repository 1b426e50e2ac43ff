"""Replies that are late or lost, connections that are silent, and a server that is full or crashes."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator

import asyncpg
import pytest
from holdfast import DistributedLock
from holdfast.core.driver import Claim, Grant, InspectQuery
from holdfast.drivers._postgres import deadlines
from holdfast.drivers.postgres_advisory import PostgresAdvisoryDriver, postgres_advisory_driver
from holdfast.errors import StoreError
from support.advisory import Listener, claim_on, granted, is_free, pids, ref_of, renewal_of, terminate_holder, until
from support.names import unique
from support.postgres_server import PostgresServer
from support.tcp_proxy import TcpProxy

OpenDriver = Callable[..., Awaitable[PostgresAdvisoryDriver]]


async def test_failure_26_a_session_that_does_not_answer_is_lost_after_its_deadline(
    proxied_url: str, proxy: TcpProxy, open_driver: OpenDriver, admin: asyncpg.Pool, monkeypatch: Any
) -> None:
    driver, listener = await open_driver(proxied_url), Listener()
    await driver.listen(listener)
    claim = claim_on(unique("silent"))
    grant = await granted(driver, claim)
    monkeypatch.setattr(deadlines, "QUERY_SECONDS", 0.3)
    proxy.go_silent()
    assert await driver.renew([renewal_of(claim, grant)]) == ["lost"]
    assert listener.lost_claims == [claim.claim_id]
    proxy.release("to_server")
    proxy.release("to_client")
    # The connection was ended, and with it the lock.
    await until("the end of the session", lambda: _none(pids(admin, claim.lock_name)))


@dataclass
class _SlowList:
    """A waiter that was granted its lock asks for it in a list, and another claim of the list is slow."""

    driver: PostgresAdvisoryDriver
    rival: PostgresAdvisoryDriver
    listener: Listener
    claim: Claim
    answers: "asyncio.Task[Any]"


async def _slow_list(proxied_url: str, proxy: TcpProxy, open_driver: OpenDriver) -> _SlowList:
    driver, rival, listener = await open_driver(proxied_url), await open_driver(), Listener()
    await driver.listen(listener)
    holder = claim_on(unique("slow-list"))
    waiter = claim_on(holder.lock_name, waiter_ttl_ms=2_500)
    grant = await granted(rival, holder)
    await driver.acquire([waiter])
    await rival.release([ref_of(holder, grant)])
    await until("the grant", lambda: waiter.claim_id in listener.grants)
    proxy.hold("to_server")
    answers = asyncio.ensure_future(driver.acquire([waiter, claim_on(unique("other"))]))
    await asyncio.sleep(0.05)  # until the list is under way
    return _SlowList(driver, rival, listener, waiter, answers)


async def test_the_lease_of_a_waiter_that_asks_for_it_in_a_slow_list_outlives_its_place(
    proxied_url: str, proxy: TcpProxy, open_driver: OpenDriver
) -> None:
    scene = await _slow_list(proxied_url, proxy, open_driver)
    await asyncio.sleep(2.6)  # until the place of a waiter that does not ask has ended
    proxy.release("to_server")
    answer, _ = await scene.answers
    assert isinstance(answer, Grant), answer
    assert await scene.driver.renew([renewal_of(scene.claim, answer)]) == ["held"]
    assert not await is_free(scene.rival, scene.claim.lock_name)


async def test_a_lease_whose_session_ends_before_the_answer_to_its_list_is_not_granted(
    proxied_url: str, proxy: TcpProxy, open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    scene = await _slow_list(proxied_url, proxy, open_driver)
    await terminate_holder(admin, scene.claim.lock_name)
    await until("the loss", lambda: scene.listener.lost_claims)
    proxy.release("to_server")
    answer, _ = await scene.answers
    assert isinstance(answer, StoreError) and "has ended" in str(answer)
    assert await is_free(scene.rival, scene.claim.lock_name)


@pytest.mark.parametrize("kind", ["asyncpg connection", "psycopg connection", "sync psycopg connection"])
async def test_failure_26_the_callers_connection_is_ended_if_it_does_not_answer(
    kind: str, proxied_url: str, proxy: TcpProxy, open_on: Any, admin: asyncpg.Pool, monkeypatch: Any
) -> None:
    """It has a statement in flight, so nothing can be undone on it, and the server would keep the lock with it."""
    opened, listener = await open_on(kind, proxied_url), Listener()
    await opened.driver.listen(listener)
    claim = claim_on(unique("silent"))
    grant = await granted(opened.driver, claim)
    monkeypatch.setattr(deadlines, "QUERY_SECONDS", 0.3)
    proxy.go_silent()
    assert await opened.driver.renew([renewal_of(claim, grant)]) == ["lost"]
    assert listener.lost_claims == [claim.claim_id]
    assert opened.client.is_closed() if kind.startswith("asyncpg") else opened.client.closed
    proxy.release("to_server")
    proxy.release("to_client")
    await until("the end of the session", lambda: _none(pids(admin, claim.lock_name)))


async def test_failure_26_a_release_without_an_answer_is_an_error_and_leaves_no_lock(
    proxied_url: str, proxy: TcpProxy, open_driver: OpenDriver, admin: asyncpg.Pool, monkeypatch: Any
) -> None:
    driver, claim = await open_driver(proxied_url), claim_on(unique("silent"))
    await granted(driver, claim)
    monkeypatch.setattr(deadlines, "QUERY_SECONDS", 0.3)
    proxy.go_silent()
    [answer] = await driver.release([ref_of(claim)])
    assert isinstance(answer, StoreError)
    proxy.release("to_server")
    proxy.release("to_client")
    await until("the end of the session", lambda: _none(pids(admin, claim.lock_name)))


async def test_failure_26_the_holder_learns_in_time_that_the_network_is_silent(
    proxied_url: str, proxy: TcpProxy
) -> None:
    lock = DistributedLock(proxied_url.replace("postgres://", "postgres+advisory://"))
    result = await lock.acquire(unique("silent"), timeout_seconds=1, heartbeat=True)
    assert result
    proxy.go_silent()
    await asyncio.wait_for(result.lease.lost, 40)
    assert not result.lease.held
    proxy.cut()
    await lock.close()


async def test_failure_11_a_lost_reply_ends_the_session_and_its_lock_and_asking_again_takes_it(
    proxied_url: str, proxy: TcpProxy, open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    driver, claim = await open_driver(proxied_url), claim_on(unique("lost-reply"))
    await driver.inspect(InspectQuery(lock_name=claim.lock_name))  # Connected.
    cut = proxy.cut_after("EXECUTE holdfast_take")
    with pytest.raises(StoreError):
        await driver.acquire([claim])
    await cut.wait()

    async def again() -> bool:
        [answer] = await driver.acquire([claim])
        return isinstance(answer, Grant)

    await until("the grant on a new session", again)
    assert len(await pids(admin, claim.lock_name)) == 1


async def test_failure_14_a_renewal_in_flight_does_not_keep_a_lock_that_is_released(
    proxied_url: str, proxy: TcpProxy, open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    driver, claim = await open_driver(proxied_url), claim_on(unique("renewal"))
    grant = await granted(driver, claim)
    proxy.hold("to_server")
    renewal = asyncio.ensure_future(driver.renew([renewal_of(claim, grant)]))
    release = asyncio.ensure_future(driver.release([ref_of(claim, grant)]))
    await asyncio.sleep(0)
    proxy.release("to_server")
    assert (await renewal, await release) == (["held"], [True])
    assert await pids(admin, claim.lock_name) == []


async def test_failures_12_and_13_a_late_release_or_renewal_does_not_touch_the_rivals_lease(
    open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    first, rival, claim = await open_driver(), await open_driver(), claim_on(unique("overtaken"))
    grant = await granted(first, claim)
    [pid] = await pids(admin, claim.lock_name)
    await admin.fetch("SELECT pg_terminate_backend($1, 5000)", pid)
    next_claim = claim_on(claim.lock_name)
    next_grant = await granted(rival, next_claim)
    assert next_grant.fencing_token > grant.fencing_token
    assert await first.release([ref_of(claim, grant)]) == [False]
    assert await first.renew([renewal_of(claim, grant)]) == ["lost"]
    assert await rival.renew([renewal_of(next_claim, next_grant)]) == ["held"]
    assert not await is_free(first, claim.lock_name)


async def test_an_unlock_that_is_canceled_ends_the_session_so_that_no_lock_is_left_behind(
    postgres_url: str, open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    class Canceling(asyncpg.Connection):  # type: ignore[misc]
        async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
            if "EXECUTE holdfast_unlock_" in query:
                raise asyncpg.QueryCanceledError("canceling statement due to user request")
            return await super().fetch(query, *args, **options)

    connection = await asyncpg.connect(postgres_url, connection_class=Canceling)
    driver, claim = postgres_advisory_driver(connection), claim_on(unique("canceled"))
    await granted(driver, claim)
    [answer] = await driver.release([ref_of(claim)])
    assert isinstance(answer, StoreError)
    await until("the lock to be free", lambda: _none(pids(admin, claim.lock_name)))
    await driver.close()
    await connection.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server with room for few locks, which the tests may kill."""
    with PostgresServer({"max_connections": "20", "max_locks_per_transaction": "10"}) as server:
        yield server


async def test_failure_28_when_the_lock_table_is_full_the_error_says_so_and_nothing_is_half_held(
    own_server: PostgresServer, open_driver: OpenDriver
) -> None:
    driver = await open_driver(own_server.url)
    kept = claim_on("kept")
    grant = await granted(driver, kept)
    for number in range(10):
        claims = [claim_on(f"many:{number}:{index}") for index in range(1_000)]
        try:
            await driver.acquire(claims)
        except StoreError as error:
            assert "max_locks_per_transaction" in str(error)
            break
    else:
        pytest.fail("the lock table never became full")
    assert await driver.renew([renewal_of(kept, grant)]) == ["held"]
    connection = await asyncpg.connect(own_server.url)
    held = await connection.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1")
    await connection.close()
    assert held == 1 + number * 1_000


async def test_failure_18_tokens_rise_over_a_crash_of_the_server_and_the_leases_are_lost_at_once(
    own_server: PostgresServer, open_driver: OpenDriver
) -> None:
    driver, listener, claim = await open_driver(own_server.url), Listener(), claim_on("crash")
    await driver.listen(listener)
    before = await granted(driver, claim)
    own_server.kill()
    await until("the loss", lambda: listener.lost_claims == [claim.claim_id])
    with pytest.raises(StoreError) as failed:
        await driver.acquire([claim_on("crash")])
    assert failed.value.retryable
    own_server.start()
    after = await granted(driver, claim_on("crash"))
    assert after.fencing_token > before.fencing_token


async def _none(found: Awaitable[Any]) -> bool:
    return not await found


_ENDS = """
import asyncio, sys
import psycopg
import sqlalchemy
from holdfast.core.driver import Claim
from holdfast.drivers.postgres_advisory import postgres_advisory_driver

kind, url = sys.argv[1:]


async def main():
    if kind == "connection":
        client = psycopg.Connection.connect(url, autocommit=True)
    else:
        client = sqlalchemy.create_engine(url.replace("postgres://", "postgresql+psycopg2://"))
    driver = postgres_advisory_driver(client)
    if kind == "connection":
        await driver.acquire([Claim("ends before", "1", "h", 30_000)])
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.ensure_future(driver.acquire([Claim("ends", "2", "h", 30_000)]))
    await asyncio.sleep(0.1)


asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["connection", "engine"])
async def test_a_process_ends_although_a_call_of_a_synchronous_client_has_no_answer(
    kind: str, proxied_url: str, proxy: TcpProxy
) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _ENDS, kind, proxied_url, stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        proxy.go_silent()
        process.stdin.write(b"\n")
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
