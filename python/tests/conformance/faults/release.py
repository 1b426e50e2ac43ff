"""What can go wrong while a lease is released."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import LeaseLostError, StoreError
from support.steered_clock import SteeredClock

from ..context import Context
from ..driver_calls import leases_on
from ..faulty_network import fails, hold_request, loses_reply
from ..suite import Group
from ..timing import BRIEF_SECONDS, KEPT_SECONDS, PATIENCE_SECONDS, until, within

release_faults = Group("faults: release")
case = release_faults.case


@case("rule 7, failure 14: a renewal in flight while releasing cannot resurrect the lease")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    lease = await a.lock.hold(ctx.lock_name)
    renewal = hold_request()
    a.network.once("renew", renewal.fault)
    extending = asyncio.ensure_future(lease.extend(60))
    await renewal.reached.wait()
    assert await lease.release() is True
    renewal.resume()
    assert list(await renewal.answer) == ["lost"]
    assert await extending is False
    assert await leases_on(a.real_driver, ctx.lock_name) == []
    assert await b.lock.acquire(ctx.lock_name, blocking=False)


@case("a release whose reply was lost is an error, and neither lock nor lease is held")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    lease = await a.lock.hold(ctx.lock_name)
    a.network.once("release", loses_reply)
    with pytest.raises(StoreError):
        await lease.release()
    assert lease.held is False
    assert await b.lock.acquire(ctx.lock_name, blocking=False)
    # The release that is sent again finds the successor's lease, and must leave it.
    await until("the release to be sent again", lambda: a.network.counts["release"].answered >= 2)
    assert len(await leases_on(b.real_driver, ctx.lock_name)) == 1


@case("a release that failed is sent again in the background")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    lease = await a.lock.hold(ctx.lock_name)
    a.network.once("release", fails)
    a.network.once("release", fails)
    with pytest.raises(StoreError):
        await lease.release()
    assert lease.held is False
    await until("the lock to be free", lambda: b.lock.acquire(ctx.lock_name, blocking=False))


@case("failure 26: a release on a store that hangs is an error in time")
async def _(ctx: Context) -> None:
    clock = SteeredClock()
    a = await ctx.lock(clock=clock)
    lease = await a.lock.hold(ctx.lock_name, timeout_seconds=KEPT_SECONDS)
    a.network.once("release", a.network.hangs)
    releasing = asyncio.ensure_future(lease.release())
    await until("the release", lambda: a.network.counts["release"].calls == 1)
    clock.advance(PATIENCE_SECONDS)
    with pytest.raises(StoreError):
        await within("an error", releasing)


@case("fault: a lease that ended during the job does not hide the job’s own error")
async def _(ctx: Context) -> None:
    clock = SteeredClock()
    a = await ctx.lock(clock=clock)
    error = RuntimeError("the job failed")
    lost = asyncio.Event()

    async def run() -> None:
        async with a.lock.lock(ctx.lock_name, timeout_seconds=KEPT_SECONDS) as lease:
            a.network.cut()
            clock.advance(KEPT_SECONDS)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                assert lease.lost.is_set()
                lost.set()
                raise error from None

    job = asyncio.ensure_future(run())
    await until("the loss", lambda: lost.is_set() or job.done())
    clock.advance(KEPT_SECONDS)  # for a call of the block's end
    with pytest.raises(RuntimeError) as raised:
        await within("the block to end", job)
    assert raised.value is error


@case("fault: a lease that ended during the job is reported as a loss, not as a failed release", needs=["ttl"])
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    with pytest.raises(LeaseLostError):
        async with a.lock.lock(ctx.lock_name, timeout_seconds=BRIEF_SECONDS, heartbeat=False):
            await asyncio.wait_for(asyncio.Event().wait(), 30)


@case("a lease that the job itself released is no loss")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    async with a.lock.lock(ctx.lock_name) as lease:
        assert await a.lock.release(ctx.lock_name) is True
        assert not lease.lost.is_set()
        await asyncio.sleep(0)


@case("fault: a release that fails hides neither the job’s result nor its error")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    a.network.once("release", fails)
    async with a.lock.lock(ctx.lock_name):
        result = "the result"
    assert result == "the result"
    error = RuntimeError("the job failed")
    a.network.once("release", fails)
    with pytest.raises(RuntimeError) as raised:
        async with a.lock.lock(ctx.lock_name):
            raise error
    assert raised.value is error


@case("await using does not hide the block’s own error when the release fails")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    error = RuntimeError("the block failed")
    with pytest.raises(RuntimeError) as raised:
        async with await a.lock.hold(ctx.lock_name) as lease:
            a.network.once("release", fails)
            assert lease.held is True
            raise error
    assert raised.value is error


@case("rule 13: close ends although the store hangs")
async def _(ctx: Context) -> None:
    a = await ctx.lock(call_timeout_seconds=0.05)
    await a.lock.hold(ctx.lock_name, timeout_seconds=BRIEF_SECONDS)
    a.network.cut()
    await within("close", a.lock.close())
