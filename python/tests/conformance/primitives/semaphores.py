"""What `Semaphore` makes of shared claims with a limit, across processes."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import DeadlockError, Semaphore

from ..context import Context, Process
from ..driver_calls import leases_on, waiters_on
from ..suite import Group
from ..timing import BRIEF_SECONDS, LONG_MS, until, within

semaphores = Group("semaphores", needs=["limit"])
case = semaphores.case

WAITING = {"blocking_timeout_seconds": LONG_MS / 1_000}


@case("no more permits are out than the limit, and every claim gets a turn")
async def _(ctx: Context) -> None:
    processes = [await open(ctx, 3) for _ in range(3)]
    out = 0

    async def work(process: Process[Semaphore], permits: int) -> None:
        nonlocal out
        for _ in range(4):
            async with process.primitive.permits(ctx.lock_name, permits=permits, **WAITING):
                out += permits
                assert out <= 3
                await asyncio.sleep(0)  # lets another holder run, if there is one
                out -= permits

    tasks = [work(process, permits) for process in processes for permits in (1, 2)]
    await within("all to have their turns", asyncio.gather(*tasks))
    assert await leases_on(processes[0].real_driver, ctx.lock_name) == []


@case("all permits can be out at once, and the next claim says who holds one")
async def _(ctx: Context) -> None:
    a, b = await open(ctx, 2), await open(ctx, 2)
    await asyncio.gather(*(each.primitive.hold(ctx.lock_name, blocking=False) for each in (a, b)))
    refused = await a.primitive.acquire(ctx.lock_name, blocking=False)
    assert not refused
    assert refused.holder is not None
    assert refused.holder.holder_id in (a.primitive.holder_id, b.primitive.holder_id)


@case("rule 10: claims for few permits do not overtake a claim for many", needs=["queue"])
async def _(ctx: Context) -> None:
    a, b = await open(ctx, 3), await open(ctx, 3)
    first, second = await a.primitive.hold(ctx.lock_name), await a.primitive.hold(ctx.lock_name)
    many = asyncio.ensure_future(b.primitive.hold(ctx.lock_name, permits=3, **WAITING))

    async def waits() -> bool:
        return len(await waiters_on(a.real_driver, ctx.lock_name)) == 1

    await until("it to wait", waits)
    assert not await a.primitive.acquire(ctx.lock_name, blocking=False), "one permit is free"
    await first.release()
    await second.release()
    lease = await within("its turn", many)
    assert not await a.primitive.acquire(ctx.lock_name, blocking=False)
    await lease.release()
    assert await a.primitive.acquire(ctx.lock_name, blocking=False)


@case("rule 7: permits are returned once, however often their lease is released")
async def _(ctx: Context) -> None:
    a, b = await open(ctx, 2), await open(ctx, 2)
    lease = await a.primitive.hold(ctx.lock_name)
    await b.primitive.hold(ctx.lock_name)
    assert await lease.release() is True
    assert await lease.release() is False
    await a.primitive.hold(ctx.lock_name, blocking=False)
    assert not await a.primitive.acquire(ctx.lock_name, blocking=False)


@case("the permits of a holder that was cut off are free again when its lease ends")
async def _(ctx: Context) -> None:
    a, b = await open(ctx, 2), await open(ctx, 2)
    stale = await a.primitive.hold(ctx.lock_name, permits=2, timeout_seconds=BRIEF_SECONDS)
    next = asyncio.ensure_future(b.primitive.hold(ctx.lock_name, permits=2, **WAITING))
    await ctx.cut_off(a)
    lease = await within("the permits to come back", next)
    assert lease.held and not stale.held


@case("inside its own callback more permits are counted, and refused above the limit")
async def _(ctx: Context) -> None:
    a = await open(ctx, 3)
    async with a.primitive.permits(ctx.lock_name):
        async with a.primitive.permits(ctx.lock_name, permits=2):
            with pytest.raises(DeadlockError):
                await a.primitive.hold(ctx.lock_name, **WAITING)
    assert a.network.counts["acquire"].requests == 2, "nothing was sent for the third"


async def open(ctx: Context, limit: int) -> Process[Semaphore]:
    return await ctx.open(lambda driver: Semaphore(driver, limit=limit, defaults={"blocking": True}))
