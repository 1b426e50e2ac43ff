"""Claims that wait for each other."""

from __future__ import annotations

import asyncio
from typing import List

import pytest

from holdfast import DeadlockError

from ..context import Context, LockProcess
from ..driver_calls import waiters_on
from ..suite import Group
from ..timing import LONG_MS, until, within

deadlocks = Group("deadlocks", needs=["queue"])
case = deadlocks.case

LONG_SECONDS = LONG_MS / 1_000


async def waiters_are(process: LockProcess, lock_name: str, count: int) -> None:
    async def look() -> bool:
        return len(await waiters_on(process.real_driver, lock_name)) == count

    await until(f"{count} to wait for it", look)


@case("of two claims in a deadlock the younger fails, with the names, and the older goes on")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(holder_id="a"), await ctx.lock(holder_id="b")
    x, y = ctx.name("x"), ctx.name("y")
    both_hold = asyncio.Event()
    done: List[str] = []

    async def older() -> None:
        async with a.lock.lock(x):
            await both_hold.wait()
            async with a.lock.lock(y, blocking_timeout_seconds=LONG_SECONDS):
                done.append("a")

    async def younger() -> None:
        async with b.lock.lock(y):
            both_hold.set()
            await waiters_are(a, y, 1)
            async with b.lock.lock(x, blocking_timeout_seconds=LONG_SECONDS):
                done.append("b")

    going_on = asyncio.ensure_future(older())
    with pytest.raises(DeadlockError) as found:
        await within("the deadlock to be noticed", younger())
    assert found.value.lock_name == x
    assert list(found.value.cycle) == [("b", x, "a"), ("a", y, "b")]
    await within("the other to go on", going_on)
    assert done == ["a"]


@case("failure 50: tasks of two instances that wait without a cycle are left alone")
async def _(ctx: Context) -> None:
    # Instance a holds x and waits for y, and instance b holds y and waits for x. But the tasks that wait are not the
    # tasks that hold.
    a, b = await ctx.lock(deadlock_after_seconds=0.2), await ctx.lock(deadlock_after_seconds=0.2)
    x, y = ctx.name("x"), ctx.name("y")
    holders = [await a.lock.hold(x), await b.lock.hold(y)]

    async def wait(process: LockProcess, own: str, name: str) -> None:
        async with process.lock.lock(ctx.name(own)):
            async with process.lock.lock(name, blocking_timeout_seconds=LONG_SECONDS):
                pass

    waiting = asyncio.gather(wait(a, "own a", y), wait(b, "own b", x))
    await waiters_are(a, x, 1)
    await waiters_are(a, y, 1)
    looks = [each.network.counts["inspect"] for each in (a, b)]
    await until("both to have looked, twice", lambda: all(each.answered >= 2 for each in looks))
    for lease in holders:
        await lease.release()
    await within("both to go on", waiting)
