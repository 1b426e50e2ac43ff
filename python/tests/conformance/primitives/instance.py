"""What `DistributedLock` itself adds: release by name, the outcome of a block, `release_all`, `close`."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import ClosedError, LeaseLostError, NotAcquiredError
from support.steered_clock import SteeredClock

from ..context import Context
from ..driver_calls import lease_on, leases_on, must_grant
from ..heartbeats import UNHURRIED
from ..suite import Group
from ..timing import BRIEF_SECONDS, VAIN_SECONDS, timers_run, until, within

instance = Group("DistributedLock: an instance and its leases")
case = instance.case


@case("release by name ends the lease, and answers no for a name that is not held")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    assert await a.lock.release(ctx.lock_name) is False
    await a.lock.acquire(ctx.lock_name, blocking=False)
    assert await b.lock.release(ctx.lock_name) is False, "another instance’s lease"
    assert await a.lock.release(ctx.lock_name) is True
    assert await a.lock.release(ctx.lock_name) is False
    assert await b.lock.acquire(ctx.lock_name, blocking=False)


@case("rule 7: a stale instance cannot release or extend by name what its successor holds")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    first = await a.lock.acquire(ctx.lock_name, timeout_seconds=BRIEF_SECONDS)
    assert first
    await ctx.cut_off(a)
    second = await b.lock.hold(ctx.lock_name)
    await until("the first to know of its loss", lambda: not first.lease.held)
    a.network.heal()
    assert await a.lock.extend(ctx.lock_name, 30) is False
    assert await a.lock.release(ctx.lock_name) is False
    assert await first.lease.extend(30) is False
    assert second.held is True
    assert (await lease_on(b.real_driver, ctx.lock_name)).fencing_token == second.fencing_token


@case("a refusal shows the holder’s metadata, times and token", needs=["metadata"])
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(holder_id="worker ü"), await ctx.lock()
    metadata = {"job": "daily-report", "attempt": 3}
    lease = await a.lock.hold(ctx.lock_name, metadata=metadata)
    result = await b.lock.acquire(ctx.lock_name, blocking=False)
    assert not result
    assert result.holder is not None
    assert result.holder.holder_id == "worker ü"
    assert result.holder.metadata == metadata
    assert result.holder.acquired_at == lease.acquired_at
    assert result.holder.fencing_token == lease.fencing_token
    assert "worker ü" in result.error


@case("hold throws on contention, with the holder")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    await a.lock.hold(ctx.lock_name)
    with pytest.raises(NotAcquiredError) as refused:
        await b.lock.hold(ctx.lock_name, blocking=False)
    assert refused.value.holder is not None and refused.value.holder.holder_id == a.lock.holder_id


@case("await using releases the lock at the end of the block")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    async with await a.lock.hold(ctx.lock_name) as lease:
        assert lease.held is True
        assert not await b.lock.acquire(ctx.lock_name, blocking=False)
    assert await b.lock.acquire(ctx.lock_name, blocking=False)


@case("withLock passes the lease to the job, returns its result, and releases the lock")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    async with a.lock.lock(ctx.lock_name) as lease:
        assert lease.held is True
        assert lease.lock_name == ctx.lock_name
    assert await b.lock.acquire(ctx.lock_name, blocking=False)


@case("withLock passes on the job’s own error, and releases the lock")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    error = RuntimeError("the job failed")
    with pytest.raises(RuntimeError) as raised:
        async with a.lock.lock(ctx.lock_name):
            raise error
    assert raised.value is error
    assert await b.lock.acquire(ctx.lock_name, blocking=False)


@case("withLock rejects if the lease was lost before the job ended, even if the job succeeded")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    with pytest.raises(LeaseLostError):
        async with a.lock.lock(ctx.lock_name, timeout_seconds=BRIEF_SECONDS):
            a.network.cut()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                a.network.heal()  # and the job ends as if it had succeeded


@case("withLock does not run the job without the lock")
async def _(ctx: Context) -> None:
    clock = SteeredClock()
    a, b = await ctx.lock(), await ctx.lock(clock=clock, **UNHURRIED)
    await a.lock.hold(ctx.lock_name)

    async def run() -> None:
        async with b.lock.lock(ctx.lock_name, blocking_timeout_seconds=VAIN_SECONDS):
            raise AssertionError("it ran")

    job = asyncio.ensure_future(run())
    await until("the first answer", lambda: b.network.counts["acquire"].answered > 0)
    await timers_run()
    clock.advance(VAIN_SECONDS)
    with pytest.raises(NotAcquiredError):
        await within("the end of the wait", job)


@case("releaseAll releases all leases of the instance and none of another")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    names = [ctx.name(suffix) for suffix in "xyz"]
    for name in names:
        await a.lock.hold(name)
    foreign = await b.lock.hold(ctx.lock_name)
    await a.lock.release_all()
    for name in names:
        assert await b.lock.acquire(name, blocking=False)
    assert foreign.held is True
    assert not await a.lock.acquire(ctx.lock_name, blocking=False)


@case("all requests of one turn of the event loop go to each part of the store in one list")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    names = [ctx.name(index) for index in range(50)]
    leases = await asyncio.gather(*(a.lock.hold(name) for name in names))
    acquires, releases = a.network.counts["acquire"], a.network.counts["release"]
    assert (acquires.calls, acquires.requests) == (1, 50)
    await asyncio.gather(*(lease.release() for lease in leases))
    assert (releases.calls, releases.requests) == (1, 50)


@case("a closed instance throws, and leaves nothing in the store")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    await a.lock.hold(ctx.lock_name)
    await a.lock.close()
    with pytest.raises(ClosedError):
        await a.lock.acquire(ctx.lock_name)
    with pytest.raises(ClosedError):
        await a.lock.extend(ctx.lock_name, 1)
    assert await leases_on(a.real_driver, ctx.lock_name) == []


@case("a driver that was passed in stays open when the instance is closed")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    await a.lock.close()
    await must_grant(a.real_driver, ctx.claim())


@case("reacquire: extend gives the same instance the same lease again, and no other instance")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(reacquire="extend"), await ctx.lock(reacquire="extend")
    first = await a.lock.acquire(ctx.lock_name, timeout_seconds=30)
    second = await a.lock.acquire(ctx.lock_name, timeout_seconds=300, blocking=False)
    assert first and second
    assert second.lease.fencing_token == first.lease.fencing_token
    assert not await b.lock.acquire(ctx.lock_name, blocking=False)
    assert await a.lock.release(ctx.lock_name) is True
    assert await b.lock.acquire(ctx.lock_name, blocking=False)


@case("reacquire: extend never returns a lease that its last user has just released")
async def _(ctx: Context) -> None:
    a = await ctx.lock(reacquire="extend")
    # The release happens after each number of turns of the second call.
    for turns in range(8):
        first = await a.lock.hold(ctx.lock_name, timeout_seconds=60)
        again = asyncio.ensure_future(a.lock.hold(ctx.lock_name, timeout_seconds=10))
        for _ in range(turns):
            await asyncio.sleep(0)
        released = asyncio.ensure_future(first.release())
        lease = await again
        assert lease.held is True, f"released after {turns} turns"
        assert await released is True
        assert lease.held is True, f"released after {turns} turns"
        assert await lease.release() is True


@case("rule 6: an abort of the job does not abort the release")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    entered = asyncio.Event()

    async def run() -> None:
        async with a.lock.lock(ctx.lock_name):
            entered.set()
            await asyncio.Event().wait()

    job = asyncio.ensure_future(run())
    await entered.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert await b.lock.acquire(ctx.lock_name, blocking=False)
