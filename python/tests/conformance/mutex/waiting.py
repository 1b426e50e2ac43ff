from __future__ import annotations

import asyncio
from typing import List

import pytest

from holdfast.errors import ClosedError
from support.steered_clock import SteeredClock

from ..context import Context, MutexProcess
from ..driver_calls import waiters_on
from ..heartbeats import UNHURRIED
from ..suite import Group
from ..timing import BRIEF_SECONDS, VAIN_SECONDS, timers_run, until, within
from .subject import Handle, MutexSubject, Taken
from .taking import AT_ONCE, WAITING, begin_to_wait, must_take, must_wait

LASTING = {"waiter_ttl_seconds": 60}
"""A place in the queue, and the slow poll behind the wake-ups (20 s), last longer than this suite waits. So what a case
sees was caused by a wake-up or a withdrawal."""


def mutex_waiting(subject: MutexSubject) -> Group:
    group = Group(f"mutex by {subject.name}: waiting", needs=subject.needs)
    case = group.case

    @case("a waiter gets the lock when it is released")
    async def _(ctx: Context) -> None:
        a, b = await ctx.mutex(subject), await ctx.mutex(subject)
        first = await must_take(a, ctx.lock_name)
        taking = await begin_to_wait(b, ctx.lock_name)
        await first.release()
        second = (await within("the waiter to get it", taking)).handle
        assert second is not None and second.held
        if ctx.capabilities.fencing:
            assert second.fencing_token > first.fencing_token

    @case("rule 10: a waiter is woken by the release, long before it would poll", needs=["wake"])
    async def _(ctx: Context) -> None:
        # The slow poll behind the wake-ups comes every 20 s, later than this case waits.
        a, b = await ctx.mutex(subject), await ctx.mutex(subject, **LASTING)
        first = await must_take(a, ctx.lock_name)
        taking = await begin_to_wait(b, ctx.lock_name)
        await until("the waiter to listen and look again", lambda: b.network.counts["acquire"].answered >= 2)
        await first.release()
        assert (await within("the waiter to be woken", taking)).acquired

    @case("rule 10: waiters of three processes are served in the order in which they came", needs=["queue"])
    async def _(ctx: Context) -> None:
        a, b, c = [await ctx.mutex(subject) for _ in range(3)]
        first = await must_take(a, ctx.lock_name)
        served: List[int] = []

        async def turn(index: int, taking: asyncio.Task[Taken]) -> None:
            handle = (await taking).handle
            assert handle is not None
            served.append(index)
            await handle.release()

        async def has_waiters(count: int) -> bool:
            return len(await waiters_on(a.real_driver, ctx.lock_name)) == count

        turns = []
        for index, process in enumerate([b, c, a, b, c]):
            taking = await begin_to_wait(process, ctx.lock_name)
            # The answer may have been for an earlier waiter of the same process that asked again.
            await until("its place", lambda: has_waiters(index + 1))
            turns.append(turn(index, taking))
        serving = asyncio.gather(*turns)
        await first.release()
        await within("all to be served", serving)
        assert served == [0, 1, 2, 3, 4]

    @case("waiting ends with a value when its time is up, not before, and leaves nothing behind")
    async def _(ctx: Context) -> None:
        clock = SteeredClock()
        a, b = await ctx.mutex(subject), await ctx.mutex(subject, clock=clock, **LASTING, **UNHURRIED)
        await must_take(a, ctx.lock_name)
        started = clock.monotonic()
        taking = await begin_to_wait(b, ctx.lock_name, blocking_timeout_seconds=VAIN_SECONDS)
        clock.advance(VAIN_SECONDS - 10)
        await timers_run()
        assert not taking.done() or clock.monotonic() - started >= VAIN_SECONDS, "before its time was up"
        clock.advance(10)
        taken = await within("the end of the wait", taking)
        assert not taken.acquired
        assert taken.holder is not None and taken.holder.holder_id == a.holder_id
        await until("the place in the queue to be given up", lambda: nobody_waits(ctx, a))

    @case("rule 6: an abort while waiting rejects at once, and leaves nothing behind")
    async def _(ctx: Context) -> None:
        a, b = await ctx.mutex(subject), await ctx.mutex(subject, **LASTING)
        first = await must_take(a, ctx.lock_name)
        taking = await begin_to_wait(b, ctx.lock_name)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within("the cancellation to be heard", taking)
        await until("the place in the queue to be given up", lambda: nobody_waits(ctx, a))
        await first.release()
        assert (await must_take(a, ctx.lock_name, **AT_ONCE)).held is True

    @case("with a signal that is already aborted nothing is sent")
    async def _(ctx: Context) -> None:
        process = await ctx.mutex(subject)
        taking = asyncio.ensure_future(process.take(ctx.lock_name, **WAITING))
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert process.network.counts["acquire"].calls == 0

    @case("an abort after the lock was acquired does not end the lease")
    async def _(ctx: Context) -> None:
        process = await ctx.mutex(subject)
        handles: List[Handle] = []

        async def take_and_go_on() -> None:
            handles.append(await must_take(process, ctx.lock_name, **AT_ONCE))
            await asyncio.Event().wait()

        task = asyncio.ensure_future(take_and_go_on())
        await until("the lock", lambda: handles)
        task.cancel()
        await asyncio.wait([task])
        assert handles[0].held is True
        assert await handles[0].release() is True

    @case("closing an instance ends its waiting with an error, and leaves nothing behind")
    async def _(ctx: Context) -> None:
        a, b = await ctx.mutex(subject), await ctx.mutex(subject)
        await must_take(a, ctx.lock_name)
        taking = await begin_to_wait(b, ctx.lock_name)
        await b.close()
        with pytest.raises(ClosedError):
            await taking
        assert await waiters_on(a.real_driver, ctx.lock_name) == []

    @case("a waiter gets the lock when the holder’s lease has expired")
    async def _(ctx: Context) -> None:
        a, b = await ctx.mutex(subject), await ctx.mutex(subject)
        await must_take(a, ctx.lock_name, timeout_seconds=BRIEF_SECONDS)
        taking = await begin_to_wait(b, ctx.lock_name)
        await ctx.cut_off(a)
        assert (await within("the waiter to take over", taking)).acquired

    return group


async def nobody_waits(ctx: Context, process: MutexProcess) -> bool:
    return await waiters_on(process.real_driver, ctx.lock_name) == []
