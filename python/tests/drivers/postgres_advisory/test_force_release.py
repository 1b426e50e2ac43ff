"""A forced release asks the holder of an advisory lock to let go, and ends its session only if that is wanted."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable

import asyncpg
import pytest

from holdfast import DistributedLock, LeaseLostError, StoreError
from holdfast.core.driver import InspectQuery, LeaseRef, Renewal
from holdfast.drivers._postgres_advisory import force_release as module
from holdfast.drivers.postgres_advisory import PostgresAdvisoryDriver, advisory_key, postgres_advisory_driver
from support.advisory import Listener, claim_on, granted, until
from support.names import unique

OpenDriver = Callable[..., Awaitable[PostgresAdvisoryDriver]]


async def test_a_holder_without_heartbeat_keeps_its_lock_until_its_session_is_ended(
    open_driver: OpenDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ASK_SECONDS", 0.2)
    name, other_name = unique("held"), unique("other")
    async with DistributedLock(await open_driver()) as holder, DistributedLock(await open_driver()) as operator:
        held = (await holder.acquire(name)).lease
        other = (await holder.acquire(other_name)).lease
        assert held is not None and other is not None
        with pytest.raises(StoreError, match="is still held by the session pid .* did not let go") as refused:
            await operator.force_release(name, by="ada")
        assert not refused.value.retryable
        assert held.held and other.held
        assert len(await operator.force_release(name, by="ada", end_session=True)) == 1
        assert isinstance(await held.lost, LeaseLostError)
        assert isinstance(await other.lost, LeaseLostError)


async def test_a_holder_lets_go_of_the_one_lease_when_it_renews_any_of_its_leases(open_driver: OpenDriver) -> None:
    holder, operator, heard = await open_driver(), await open_driver(), Listener()
    await holder.listen(heard)
    name, other_name = unique("held"), unique("other")
    await granted(holder, claim_on(name))
    other = claim_on(other_name)
    grant = await granted(holder, other)
    [lease] = (await operator.inspect(InspectQuery(lock_name=name))).leases
    ending = asyncio.ensure_future(operator.force_release([lease], by="ada", end_session=False))

    async def renewed() -> bool:
        renewal = Renewal(other_name, other.claim_id, grant.fencing_token, 60_000)
        assert list(await holder.renew([renewal])) == ["held"]
        return ending.done()

    await until("the holder to let go", renewed)
    assert list(await ending) == [True]
    assert list(await operator.force_release([lease], by="ada", end_session=False)) == [False]
    assert await holder.release([LeaseRef(other_name, other.claim_id, grant.fencing_token)]) == [True]


async def test_the_lock_of_a_client_that_is_not_holdfast_ends_only_with_its_session(
    postgres_url: str, open_driver: OpenDriver
) -> None:
    name = unique("foreign")
    client: Any = await asyncpg.connect(postgres_url)
    await client.fetch(f"SELECT pg_advisory_lock({advisory_key(name)})")
    async with DistributedLock(await open_driver()) as operator:
        [shown] = (await operator.inspect(name)).leases
        assert shown.holder_id == f"pid {client.get_server_pid()}" and shown.fencing_token == 0
        with pytest.raises(StoreError, match="cannot be asked to let go"):
            await operator.force_release(name, by="ada")
        assert len(await operator.force_release(name, by="ada", end_session=True)) == 1
        assert await operator.acquire(name)
    client.terminate()


async def test_nothing_is_asked_on_a_connection_of_the_caller_inside_a_transaction(
    postgres_url: str, open_driver: OpenDriver
) -> None:
    name = unique("held")
    await granted(await open_driver(), claim_on(name))
    connection: Any = await asyncpg.connect(postgres_url)
    driver = postgres_advisory_driver(connection)
    [lease] = (await driver.inspect(InspectQuery(lock_name=name))).leases
    async with connection.transaction():
        with pytest.raises(StoreError, match="transaction"):
            await driver.force_release([lease], by="ada", end_session=False)
        assert await connection.fetchval("SELECT 1") == 1
    await driver.close()
    await connection.close()
