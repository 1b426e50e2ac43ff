"""What `ReadWriteLock` makes of shared and exclusive claims, across processes."""

from __future__ import annotations

import asyncio
from typing import Any, List

import pytest

from holdfast import DeadlockError, Lease, ReadWriteLock

from ..context import Context, Process
from ..driver_calls import lease_on, waiters_on
from ..suite import Group
from ..timing import BRIEF_SECONDS, LONG_MS, timers_run, until, within

readers_and_writers = Group("readers and writers", needs=["shared"])
case = readers_and_writers.case

WAITING = {"blocking_timeout_seconds": LONG_MS / 1_000}


@case("a writer is always alone, and readers share the lock")
async def _(ctx: Context) -> None:
    processes = [await open(ctx) for _ in range(3)]
    readers = writers = 0

    async def write(process: Process[ReadWriteLock]) -> None:
        nonlocal writers
        for _ in range(3):
            async with process.primitive.write(ctx.lock_name, **WAITING):
                writers += 1
                await asyncio.sleep(0)  # lets another holder run, if there is one
                assert (writers, readers) == (1, 0)
                writers -= 1

    async def read(process: Process[ReadWriteLock]) -> None:
        nonlocal readers
        for _ in range(3):
            async with process.primitive.read(ctx.lock_name, **WAITING):
                readers += 1
                await asyncio.sleep(0)
                assert writers == 0
                readers -= 1

    work = [task(process) for process in processes for task in (write, read)]
    await within("all to have their turns", asyncio.gather(*work))
    # Explicitly, because the store chooses the order above.
    leases = [await process.primitive.hold_read(ctx.lock_name, **WAITING) for process in processes[:2]]
    assert all(lease.held for lease in leases)


@case("rule 10: readers that come later do not overtake a waiting writer", needs=["queue"])
async def _(ctx: Context) -> None:
    a, b = await open(ctx), await open(ctx)
    order: List[str] = []
    reader = await a.primitive.hold_read(ctx.lock_name)

    async def turn(what: str, taking: Any) -> None:
        lease: Lease = await taking
        order.append(what)
        await lease.release()

    async def waiters_are(count: int) -> bool:
        return len(await waiters_on(a.real_driver, ctx.lock_name)) == count

    writing = asyncio.ensure_future(turn("writer", b.primitive.hold_write(ctx.lock_name, **WAITING)))
    await until("one to wait", lambda: waiters_are(1))
    reading = asyncio.ensure_future(turn("late reader", a.primitive.hold_read(ctx.lock_name, **WAITING)))
    await until("two to wait", lambda: waiters_are(2))
    assert not await b.primitive.acquire_read(ctx.lock_name, blocking=False)
    await reader.release()
    await within("both to have their turns", asyncio.gather(writing, reading))
    assert order == ["writer", "late reader"]


@case("a reader that was cut off blocks a writer no longer than its lease")
async def _(ctx: Context) -> None:
    a, b = await open(ctx), await open(ctx)
    await a.primitive.acquire_read(ctx.lock_name, timeout_seconds=BRIEF_SECONDS)
    await ctx.cut_off(a)
    writer = await within("the writer", b.primitive.hold_write(ctx.lock_name, **WAITING))
    assert (await lease_on(b.real_driver, ctx.lock_name)).fencing_token == writer.fencing_token


@case("a DistributedLock is a writer: it and readers exclude each other")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await open(ctx)
    lease = await a.lock.hold(ctx.lock_name)
    assert not await b.primitive.acquire_read(ctx.lock_name, blocking=False)
    await lease.release()
    await b.primitive.hold_read(ctx.lock_name)
    assert not await a.lock.acquire(ctx.lock_name, blocking=False)


@case("inside its own callbacks a reader reads again, and a writer reads and writes again")
async def _(ctx: Context) -> None:
    a = await open(ctx)
    lock, name, counts = a.primitive, ctx.lock_name, a.network.counts["acquire"]
    async with lock.read(name) as outer:
        asked = counts.requests
        async with lock.read(name) as inner:
            assert inner.fencing_token == outer.fencing_token
        assert counts.requests == asked
    async with lock.write(name) as outer:
        asked = counts.requests
        async with lock.read(name) as inner:
            assert inner.fencing_token == outer.fencing_token
            async with lock.write(name) as innermost:
                assert innermost.fencing_token == outer.fencing_token
        async with lock.write(name) as inner:
            assert inner.fencing_token == outer.fencing_token
        assert counts.requests == asked


@case("an inner read or write keeps the lock from the moment of the call")
async def _(ctx: Context) -> None:
    a, b = (await open(ctx)).primitive, (await open(ctx)).primitive
    for outer, inner in ((a.write, a.write), (a.write, a.read), (a.read, a.read)):
        entered = asyncio.Event()

        async def run() -> bool:
            async with inner(ctx.lock_name):
                entered.set()
                await timers_run()
                return bool(await b.acquire_write(ctx.lock_name, blocking=False))

        async with outer(ctx.lock_name):
            running = asyncio.ensure_future(run())
            await entered.wait()
        assert await running is False, "a writer was let in beside the entry"
        next = await b.acquire_write(ctx.lock_name, blocking=False)
        assert next, "the outer block ended before it released the lock"
        await next.lease.release()


@case("a reader that asks to write is refused at once instead of waiting for itself")
async def _(ctx: Context) -> None:
    a = await open(ctx)
    async with a.primitive.read(ctx.lock_name) as reader:
        asked = a.network.counts["acquire"].requests
        with pytest.raises(DeadlockError):
            await a.primitive.hold_write(ctx.lock_name, **WAITING)
        assert a.network.counts["acquire"].requests == asked, "nothing was sent for the writer"
        assert reader.held is True


async def open(ctx: Context) -> Process[ReadWriteLock]:
    return await ctx.open(lambda driver: ReadWriteLock(driver, defaults={"blocking": True}))
