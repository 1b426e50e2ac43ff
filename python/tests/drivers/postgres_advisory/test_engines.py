"""The driver beside an Engine of SQLAlchemy, and in a process that forks."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Any, Awaitable, Callable

import asyncpg
import pytest
import sqlalchemy
from holdfast import DistributedLock, SyncDistributedLock
from holdfast.core.driver import InspectQuery
from holdfast.drivers._postgres import deadlines
from holdfast.drivers.postgres_advisory import PostgresAdvisoryDriver, postgres_advisory_driver
from holdfast.errors import InvalidArgumentError, StoreError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from support.advisory import Listener, claim_on, granted, is_free, ref_of, renewal_of, terminate_holder, until
from support.names import unique
from support.tcp_proxy import TcpProxy

OpenDriver = Callable[..., Awaitable[PostgresAdvisoryDriver]]


ENGINES = ["asyncpg", "psycopg2"]
if find_spec("sqlalchemy.dialects.postgresql.psycopg") is not None:  # SQLAlchemy 2
    ENGINES += ["psycopg", "psycopg async"]


@pytest.fixture(params=ENGINES)
async def engine(request: Any, postgres_url: str, cleanup: AsyncExitStack) -> Any:
    client, _, _ = request.param.partition(" ")
    url = postgres_url.replace("postgres://", f"postgresql+{client}://")
    if request.param in ("asyncpg", "psycopg async"):
        made = create_async_engine(url, pool_size=1, max_overflow=0)
        cleanup.push_async_callback(made.dispose)
        return made
    sync_made = sqlalchemy.create_engine(url, pool_size=1, max_overflow=0)
    cleanup.callback(sync_made.dispose)
    return sync_made


async def test_a_driver_beside_an_engine_holds_waits_and_notices_a_loss(
    engine: Any, open_driver: OpenDriver, admin: asyncpg.Pool
) -> None:
    driver, other, listener = postgres_advisory_driver(engine), await open_driver(), Listener()
    await driver.listen(listener)
    name = unique("engine")
    claim, waiting = claim_on(name), claim_on(name, waiter_ttl_ms=10_000)
    held = await granted(other, claim)
    await driver.acquire([waiting])
    await other.release([ref_of(claim, held)])
    await until("the grant", lambda: waiting.claim_id in listener.grants)
    grant = await granted(driver, waiting)
    assert grant.fencing_token > held.fencing_token
    assert await driver.renew([renewal_of(waiting, grant)]) == ["held"]
    await terminate_holder(admin, name)
    await until("the loss", lambda: listener.lost_claims == [waiting.claim_id])
    await driver.close()


async def test_the_one_connection_of_the_engines_pool_is_left_to_the_application(engine: Any) -> None:
    driver = postgres_advisory_driver(engine)
    lock = DistributedLock(driver)
    async with lock.lock(unique("engine")):
        if hasattr(engine, "sync_engine"):
            async with AsyncSession(engine) as session:
                assert (await session.execute(sqlalchemy.text("SELECT 1"))).scalar() == 1
        else:
            with Session(engine) as session:
                assert session.execute(sqlalchemy.text("SELECT 1")).scalar() == 1
    await lock.close()
    await driver.close()


async def test_a_pool_that_the_application_has_emptied_is_not_waited_for(engine: Any) -> None:
    driver = postgres_advisory_driver(engine)
    sync_engine = getattr(engine, "sync_engine", None)
    lent = await engine.connect() if sync_engine is not None else engine.connect()
    await granted(driver, claim_on(unique("empty")))
    if sync_engine is not None:
        await lent.close()
    else:
        lent.close()
    await driver.close()


async def test_an_engine_whose_server_does_not_answer_is_an_error_in_time(
    proxied_url: str, proxy: TcpProxy, monkeypatch: Any
) -> None:
    engine = sqlalchemy.create_engine(proxied_url.replace("postgres://", "postgresql+psycopg2://"))
    driver = postgres_advisory_driver(engine)
    proxy.go_silent()
    monkeypatch.setattr(deadlines, "QUERY_SECONDS", 0.2)
    with pytest.raises(StoreError, match="in time"):
        await driver.acquire([claim_on(unique("silent"))])
    await driver.close()


async def test_a_session_and_another_database_are_refused_with_advice(postgres_url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="lock_in_transaction"):
        postgres_advisory_driver(Session())
    with pytest.raises(InvalidArgumentError, match="sqlite"):
        postgres_advisory_driver(sqlalchemy.create_engine("sqlite://"))


async def test_a_driver_that_was_opened_before_a_fork_is_refused_in_the_child_and_works_on_in_the_parent(
    open_driver: OpenDriver,
) -> None:
    driver, claim = await open_driver(), claim_on(unique("fork"))
    grant = await granted(driver, claim)
    child = os.fork()
    if child == 0:
        try:
            # No event loop may be entered here beside that of the parent: the coroutines are run by hand.
            outcomes = [_outcome(driver.renew([renewal_of(claim, grant)])), _outcome(driver.close())]
            os._exit(0 if outcomes == [StoreError, None] else 1)
        finally:
            os._exit(2)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert await driver.renew([renewal_of(claim, grant)]) == ["held"]
    assert len((await driver.inspect(InspectQuery(lock_name=claim.lock_name))).leases) == 1
    assert not await is_free(driver, claim.lock_name)


def _outcome(work: Any) -> Any:
    try:
        work.send(None)
    except StopIteration:
        return None
    except Exception as error:
        return type(error)
    return "it waits"


async def test_a_free_connection_of_another_event_loop_is_not_taken(postgres_url: str) -> None:
    engine = create_async_engine(postgres_url.replace("postgres://", "postgresql+asyncpg://"), pool_size=1)
    async with engine.connect() as connection:
        first = await connection.scalar(sqlalchemy.text("SELECT pg_backend_pid()"))
    lock = SyncDistributedLock(postgres_advisory_driver(engine))
    assert await asyncio.to_thread(lock.acquire, unique("engine"))
    await asyncio.to_thread(lock.close)
    async with engine.connect() as connection:
        assert await connection.scalar(sqlalchemy.text("SELECT pg_backend_pid()")) == first
    await engine.dispose()
