"""At most one holder, among processes and among the tasks of one process."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import List

from ..context import Context, MutexProcess
from ..driver_calls import lease_on
from ..suite import Group
from .subject import MutexSubject
from .taking import AT_ONCE, WAITING, must_take, must_wait


def mutex_exclusion(subject: MutexSubject) -> Group:
    group = Group(f"mutex by {subject.name}: exclusion", needs=subject.needs)
    case = group.case

    @case("tasks of three processes never hold it together, all get a turn, and tokens rise")
    async def _(ctx: Context) -> None:
        processes = [await ctx.mutex(subject) for _ in range(3)]
        inside = 0
        tokens: List[int] = []

        async def work(process: MutexProcess) -> None:
            nonlocal inside
            for _ in range(5):
                handle = await must_take(process, ctx.lock_name, **WAITING)
                inside += 1
                assert inside == 1, "another task was inside"
                tokens.append(handle.fencing_token)
                await asyncio.sleep(0)  # lets another holder run, if there is one
                inside -= 1
                assert await handle.release() is True

        await asyncio.gather(*(work(process) for process in processes * 2))
        assert len(tokens) == 30
        if ctx.capabilities.fencing:
            assert tokens == sorted(set(tokens))

    @case("contention is a value that names the holder")
    async def _(ctx: Context) -> None:
        a, b = await ctx.mutex(subject), await ctx.mutex(subject)
        handle = await must_take(a, ctx.lock_name)
        holder = (await must_wait(b, ctx.lock_name)).holder
        assert holder is not None
        assert holder.lock_name == ctx.lock_name
        assert holder.holder_id == a.holder_id
        assert holder.fencing_token == handle.fencing_token
        assert isinstance(holder.acquired_at, datetime) and isinstance(holder.expires_at, datetime)

    @case("a holder sees that it holds, with the store’s own token")
    async def _(ctx: Context) -> None:
        process = await ctx.mutex(subject)
        handle = await must_take(process, ctx.lock_name)
        assert handle.held is True
        assert handle.loss is None
        assert handle.fencing_token == (await lease_on(process.real_driver, ctx.lock_name)).fencing_token

    @case("two tasks of one process exclude each other")
    async def _(ctx: Context) -> None:
        process = await ctx.mutex(subject)
        first = await must_take(process, ctx.lock_name)
        holder = (await must_wait(process, ctx.lock_name)).holder
        assert holder is not None and holder.holder_id == process.holder_id
        second = asyncio.ensure_future(must_take(process, ctx.lock_name, **WAITING))
        await asyncio.sleep(0)
        assert await first.release() is True
        assert (await second).held is True

    @case("a released lock can be acquired at once by another process")
    async def _(ctx: Context) -> None:
        a, b = await ctx.mutex(subject), await ctx.mutex(subject)
        handle = await must_take(a, ctx.lock_name)
        assert await handle.release() is True
        assert handle.held is False
        assert (await must_take(b, ctx.lock_name, **AT_ONCE)).held is True

    @case("rule 7: a second release answers no and leaves the successor’s lease")
    async def _(ctx: Context) -> None:
        a, b = await ctx.mutex(subject), await ctx.mutex(subject)
        first = await must_take(a, ctx.lock_name)
        await first.release()
        second = await must_take(b, ctx.lock_name, **AT_ONCE)
        assert await first.release() is False
        assert second.held is True
        holder = (await must_wait(a, ctx.lock_name)).holder
        assert holder is not None and holder.holder_id == b.holder_id

    @case("a release by the holder is no loss, and does not abort the signal")
    async def _(ctx: Context) -> None:
        process = await ctx.mutex(subject)
        handle = await must_take(process, ctx.lock_name)
        await handle.release()
        assert handle.loss is None

    @case("closing an instance releases what it holds")
    async def _(ctx: Context) -> None:
        a, b = await ctx.mutex(subject), await ctx.mutex(subject)
        handle = await must_take(a, ctx.lock_name)
        await a.close()
        assert handle.held is False
        assert (await must_take(b, ctx.lock_name, **AT_ONCE)).held is True

    return group
