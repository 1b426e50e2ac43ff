"""`inspect`, `is_locked` and `ping`."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, List, Tuple

import pytest

from holdfast import ClosedError, InvalidArgumentError, StoreError

from ..context import Context, LockProcess
from ..driver_calls import assert_untouched, lease_on, leases_on, must_grant
from ..faulty_network import fails, loses_reply
from ..suite import Group
from ..timing import until

inspect_and_ping = Group("DistributedLock: inspect, isLocked and ping")
case = inspect_and_ping.case


@case("inspect shows the holder to every process, and nothing that could end the lease")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    free = await b.lock.inspect(ctx.lock_name)
    assert (free.lock_name, list(free.leases), list(free.waiters), free.complete) == (ctx.lock_name, [], [], True)
    lease = await a.lock.hold(ctx.lock_name)
    inspection = await b.lock.inspect(ctx.lock_name)
    [shown] = inspection.leases
    assert (shown.holder_id, shown.fencing_token) == (lease.holder_id, lease.fencing_token)
    assert (shown.acquired_at, shown.mode, shown.permits) == (lease.acquired_at, "exclusive", 1)
    stored = await lease_on(a.real_driver, ctx.lock_name)
    assert stored.claim_id not in repr(inspection)
    assert (shown.expires_at is None) == (stored.expires_at_ms is None)
    await lease.release()
    assert list((await a.lock.inspect(ctx.lock_name)).leases) == []


@case("inspect shows metadata", needs=["metadata"])
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    await a.lock.hold(ctx.lock_name, metadata={"job": "report"})
    [shown] = (await b.lock.inspect(ctx.lock_name)).leases
    assert shown.metadata == {"job": "report"}


@case("inspect shows the waiters in the order in which they will be served", needs=["queue"])
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    await a.lock.hold(ctx.lock_name)
    waiting = []
    for holder_id in ("first", "second"):
        waiter = await ctx.lock(holder_id=holder_id)
        waiting.append(asyncio.ensure_future(waiter.lock.acquire(ctx.lock_name, blocking_timeout_seconds=60)))
        await until("its place in the queue", lambda: waiter.network.counts["acquire"].answered > 0)
    shown = (await a.lock.inspect(ctx.lock_name)).waiters
    assert [(each.holder_id, each.mode, each.permits) for each in shown] == [
        ("first", "exclusive", 1),
        ("second", "exclusive", 1),
    ]
    assert all(isinstance(each.waiting_since, datetime) for each in shown)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


@case("inspect shows a lease after another claim of its process has stopped waiting")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    wanted = ctx.name("wanted")
    # No heartbeat may repair what others see of it.
    lease = await a.lock.hold(ctx.lock_name, heartbeat=False)
    await b.lock.hold(wanted)
    waiting = asyncio.ensure_future(a.lock.acquire(wanted, blocking_timeout_seconds=60))
    await until("its place in the queue", lambda: a.network.counts["acquire"].answered > 1)
    waiting.cancel()
    await asyncio.wait([waiting])

    async def has_stopped() -> bool:
        return len((await b.lock.inspect(wanted)).waiters) == 0

    await until("the end of its wait", has_stopped)
    shown = (await b.lock.inspect(ctx.lock_name)).leases
    assert [each.fencing_token for each in shown] == [lease.fencing_token]


@case("isLocked is true for every holder, and false for a free lock")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()

    async def both() -> Tuple[bool, bool]:
        return await a.lock.is_locked(ctx.lock_name), await b.lock.is_locked(ctx.lock_name)

    assert await both() == (False, False)
    lease = await a.lock.hold(ctx.lock_name)
    assert await both() == (True, True)
    assert await b.lock.is_locked(ctx.name("another")) is False
    await lease.release()
    assert await both() == (False, False)


@case("isLocked is true for a shared lease too", needs=["shared"])
async def _(ctx: Context) -> None:
    a, driver = await ctx.lock(), await ctx.driver()
    await must_grant(driver, ctx.claim(mode="shared"))
    assert await a.lock.is_locked(ctx.lock_name) is True


@case("isLocked and inspect write nothing")
async def _(ctx: Context) -> None:
    a, driver = await ctx.lock(), await ctx.driver()
    await must_grant(driver, ctx.claim())
    before = await lease_on(driver, ctx.lock_name)
    await a.lock.is_locked(ctx.lock_name)
    await a.lock.inspect(ctx.lock_name)
    await assert_untouched(driver, before)
    assert [a.network.counts[method].calls for method in ("acquire", "renew", "release")] == [0, 0, 0]


@case('fault: isLocked and inspect of a store that is down are errors, never "free"')
async def _(ctx: Context) -> None:
    a = await ctx.lock(call_timeout_seconds=0.1)
    a.network.once("inspect", fails)
    with pytest.raises(StoreError):
        await a.lock.is_locked(ctx.lock_name)
    a.network.once("inspect", fails)
    with pytest.raises(StoreError):
        await a.lock.inspect(ctx.lock_name)
    a.network.once("inspect", a.network.hangs)
    with pytest.raises(StoreError):
        await a.lock.is_locked(ctx.lock_name)
    with pytest.raises(InvalidArgumentError) as refused:
        await a.lock.is_locked("")
    assert refused.value.argument == "lock_name"


@case("ping writes to the store, leaves nothing behind, and emits no event")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    names = names_asked_for(a)
    await a.lock.ping()
    await a.lock.ping()
    assert len(set(names)) == 2
    for name in names:
        assert await leases_on(a.real_driver, name) == []
    await a.lock.close()
    with pytest.raises(ClosedError):
        await a.lock.ping()


@case("a ping whose answer is lost is an error, and its lock is released")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    names = names_asked_for(a)
    a.network.once("acquire", loses_reply)
    with pytest.raises(StoreError):
        await a.lock.ping()
    await until("its lock to be free", lambda: is_free(a, names[0]))
    a.network.once("acquire", fails)
    with pytest.raises(StoreError):
        await a.lock.ping()
    await a.lock.ping()


@case("a ping whose release fails is an error, and its lock is released")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    names = names_asked_for(a)
    a.network.once("release", fails)
    with pytest.raises(StoreError):
        await a.lock.ping()
    await until("its lock to be free", lambda: is_free(a, names[0]))


@case("failure 26: a ping on a store that hangs is an error in time")
async def _(ctx: Context) -> None:
    a = await ctx.lock(call_timeout_seconds=0.1)
    a.network.once("acquire", a.network.hangs)
    with pytest.raises(StoreError):
        await a.lock.ping()


def names_asked_for(process: LockProcess) -> List[str]:
    """The lock names of all claims that the process sends from now on."""
    names: List[str] = []
    real = process.network.driver.acquire

    async def acquire(claims: Any) -> Any:
        names.extend(claim.lock_name for claim in claims)
        return await real(claims)

    process.network.driver.acquire = acquire  # type: ignore[method-assign]
    return names


async def is_free(process: LockProcess, name: str) -> bool:
    return await leases_on(process.real_driver, name) == []
