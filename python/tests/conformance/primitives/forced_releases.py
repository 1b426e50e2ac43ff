"""`force_release` ends the lock of another holder."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import InvalidArgumentError

from ..context import Context
from ..suite import Group
from ..timing import LONG_MS, until, within

forced_releases = Group("DistributedLock: released by force", needs=["force"])
case = forced_releases.case


@case("failure 5: a lease of hours is ended, and the next waiter is granted the lock")
async def _(ctx: Context) -> None:
    a, b, c = await ctx.lock(), await ctx.lock(), await ctx.lock()
    held = await a.lock.hold(ctx.lock_name, timeout_seconds=100_000)
    next = asyncio.ensure_future(b.lock.hold(ctx.lock_name, blocking_timeout_seconds=LONG_MS / 1_000))
    await until("the waiter", lambda: b.network.counts["acquire"].answered > 0)
    [ended] = await c.lock.force_release(ctx.lock_name, by="ada: the clock was wrong")
    assert ended.holder_id == a.lock.holder_id
    assert ended.fencing_token == held.fencing_token
    lease = await within("the waiter to have it", next)
    assert lease.fencing_token > held.fencing_token
    assert await held.extend(10) is False
    assert held.held is False
    assert held.lost.is_set()
    assert await held.release() is False
    assert lease.held is True


@case("forcing a free lock does nothing, and the caller must name itself")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    assert list(await a.lock.force_release(ctx.lock_name, by="ada")) == []
    before = a.network.counts["inspect"].calls
    with pytest.raises(InvalidArgumentError) as refused:
        await a.lock.force_release(ctx.lock_name, by="")
    assert refused.value.argument == "by"
    assert a.network.counts["inspect"].calls == before
