"""Which calls wait, how a lost lock is reported, and how an instance is closed."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable

import pytest

from holdfast import ClosedError, DistributedLock, LeaseLostError, NotAcquiredError

from ..context import Context
from ..driver_calls import leases_on
from ..suite import Group
from ..timing import until, within

ending = Group("DistributedLock: waiting, losing and closing")
case = ending.case

Job = Callable[[], Awaitable[None]]


@case("nothing waits unless asked to: of two instances one does the job, the other skips it")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(defaults={}), await ctx.lock(defaults={})
    first, second = await a.lock.acquire(ctx.lock_name), await b.lock.acquire(ctx.lock_name)
    assert (bool(first), bool(second)) == (True, False)
    assert await a.lock.release(ctx.lock_name) is True

    async with a.lock.lock(ctx.lock_name):
        assert len(await leases_on(a.real_driver, ctx.lock_name)) == 1
        with pytest.raises(NotAcquiredError):
            async with b.lock.lock(ctx.lock_name):
                raise AssertionError("it ran twice")
        with pytest.raises(NotAcquiredError):
            await b.lock.hold(ctx.lock_name)
        with pytest.raises(NotAcquiredError):
            async with b.lock.locks([ctx.lock_name, ctx.name("2")]):
                raise AssertionError("it ran twice")


async def a_payment(lock: DistributedLock, lock_name: str, job: Job, longest_seconds: float) -> bool:
    if not await lock.acquire(lock_name):
        return False
    try:
        await job()
        return True
    finally:
        await lock.release(lock_name)


async def a_daily_report(lock: DistributedLock, lock_name: str, job: Job, longest_seconds: float) -> bool:
    try:
        async with lock.lock(lock_name, timeout_seconds=min(300, longest_seconds)):
            await job()
            return True
    except NotAcquiredError:
        return False


async def a_long_job(lock: DistributedLock, lock_name: str, job: Job, longest_seconds: float) -> bool:
    result = await lock.acquire(lock_name, timeout_seconds=6)
    if not result:
        return False

    async def extend() -> None:
        while True:
            await asyncio.sleep(3)
            await lock.extend(lock_name, 6)

    extending = asyncio.ensure_future(extend())
    try:
        await job()
        return result.lease.held
    finally:
        extending.cancel()
        await lock.release(lock_name)


async def a_scheduled_task(lock: DistributedLock, lock_name: str, job: Job, longest_seconds: float) -> bool:
    result = await lock.acquire(lock_name, timeout_seconds=min(3_600, longest_seconds))
    if result:
        await job()
    return bool(result)


def one_does_the_job(what: str, use: Callable[[DistributedLock, str, Job, float], Awaitable[bool]]) -> None:
    """The most frequent uses of a distributed lock. Each returns whether it has done the job."""

    @case(f"of two instances one does the job, and the other is refused at once: {what}")
    async def _(ctx: Context) -> None:
        a, b = await ctx.lock(defaults={}), await ctx.lock(defaults={})
        longest_ms = a.real_driver.longest_ttl_ms
        longest_seconds = float("inf") if longest_ms is None else longest_ms / 1_000
        go_on = asyncio.Event()
        times = 0

        async def job() -> None:
            nonlocal times
            times += 1
            await go_on.wait()

        first = asyncio.ensure_future(use(a.lock, ctx.lock_name, job, longest_seconds))
        await until("the first to begin", lambda: times == 1)
        # A call that waited would not answer before the other instance is done.
        assert await use(b.lock, ctx.lock_name, job, longest_seconds) is False
        go_on.set()
        assert await first is True
        assert times == 1


one_does_the_job("a payment, with acquire and release", a_payment)
one_does_the_job("a daily report, with withLock", a_daily_report)
one_does_the_job("a long job that extends its lease every half lease", a_long_job)
one_does_the_job("a scheduled task, with a lease of an hour", a_scheduled_task)


@case("a blockingTimeoutSeconds above 0 implies blocking")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(defaults={}), await ctx.lock(defaults={})
    first = await a.lock.hold(ctx.lock_name)

    async def run(lock: DistributedLock, what: str, **options: Any) -> str:
        async with lock.lock(ctx.lock_name, **options):
            return what

    turns = asyncio.gather(
        run(b.lock, "second", blocking_timeout_seconds=30), run(a.lock, "third", blocking=True)
    )
    await asyncio.sleep(0)
    await first.release()
    assert await turns == ["second", "third"]


@case("a lease without heartbeat ends with its TTL, although its process lives")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    result = await a.lock.acquire(ctx.lock_name, timeout_seconds=1)
    assert result
    next = await b.lock.hold(ctx.lock_name, blocking_timeout_seconds=30)
    assert result.lease.held is False
    assert next.fencing_token > result.lease.fencing_token


def is_a_loss(what: str, end: Callable[[DistributedLock, str], Awaitable[Any]]) -> None:
    @case(f"failure 49: {what} by another task is a loss for the function that runs under the lock")
    async def _(ctx: Context) -> None:
        a, b = await ctx.lock(), await ctx.lock()
        taken = asyncio.Event()

        async def run() -> None:
            async with a.lock.lock(ctx.lock_name):
                taken.set()
                await asyncio.Event().wait()

        job = asyncio.ensure_future(run())
        await taken.wait()
        await end(a.lock, ctx.lock_name)
        with pytest.raises(LeaseLostError):
            await within("the block to end", job)
        assert await b.lock.acquire(ctx.lock_name, blocking=False)


is_a_loss("release(name)", lambda lock, lock_name: lock.release(lock_name))
is_a_loss("releaseAll()", lambda lock, lock_name: lock.release_all())
is_a_loss("close()", lambda lock, lock_name: lock.close())


@case("a function that releases its own lock has lost nothing")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    async with a.lock.lock(ctx.lock_name):
        assert await a.lock.release(ctx.lock_name) is True
    async with a.lock.lock(ctx.lock_name):
        await a.lock.release_all()


@case("close lets a function settle before it releases its lock")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    taken = asyncio.Event()

    async def run() -> None:
        async with a.lock.lock(ctx.lock_name) as lease:
            taken.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                assert not await b.lock.acquire(ctx.lock_name, blocking=False), "given back beside the block"
                assert lease.held is True
                raise

    job = asyncio.ensure_future(run())
    await taken.wait()
    await a.lock.close()
    with pytest.raises(LeaseLostError):
        await job
    assert await b.lock.acquire(ctx.lock_name, blocking=False)


@case("close with drainSeconds accepts nothing new, and lets running functions finish")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    taken, go_on = asyncio.Event(), asyncio.Event()

    async def run() -> str:
        async with a.lock.lock(ctx.lock_name) as lease:
            taken.set()
            await go_on.wait()
            async with a.lock.lock(ctx.name("inner")) as second:
                assert second.held is True
            assert not lease.lost.is_set()
            return "done"

    job = asyncio.ensure_future(run())
    await taken.wait()
    waiting = asyncio.ensure_future(a.lock.hold(ctx.lock_name, blocking=True))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(a.lock.close(drain_seconds=30))
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await a.lock.acquire(ctx.name("new"))
    go_on.set()
    assert await job == "done"
    await closing
    assert await b.lock.acquire(ctx.lock_name, blocking=False)


@case("close ends in time, even if the store and the functions hang")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    taken, never = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        async with a.lock.lock(ctx.lock_name):
            taken.set()
            try:
                await never.wait()
            except asyncio.CancelledError:
                await never.wait()  # it does not stop
                raise

    job = asyncio.ensure_future(run())
    await taken.wait()
    a.network.cut()
    await within("close to settle", a.lock.close(drain_seconds=0.1, deadline_seconds=0.5))
    a.network.heal()
    never.set()
    with pytest.raises(LeaseLostError):
        await job
