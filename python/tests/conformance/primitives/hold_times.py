"""`extend`, `min_hold_seconds`, `max_hold_seconds`."""

from __future__ import annotations

from typing import Any

from ..context import Context
from ..driver_calls import lease_on
from ..suite import Group
from ..timing import BRIEF_SECONDS, LONG_MS, at_least, before_it_ends, monotonic_ms, outlast, sleep_ms, until, within

hold_times = Group("DistributedLock: how long a lock is held")
case = hold_times.case


@case("extend sets a new end, later than before", needs=["ttl"])
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    result = await a.lock.acquire(ctx.lock_name, timeout_seconds=10)
    assert result
    before, told = await lease_on(a.real_driver, ctx.lock_name), result.lease.expires_at.timestamp()
    assert await a.lock.extend(ctx.lock_name, 60) is True
    after = await lease_on(a.real_driver, ctx.lock_name)
    assert (after.expires_at_ms or 0) - (before.expires_at_ms or 0) >= at_least(50_000)
    now_told = result.lease.expires_at.timestamp()
    assert (now_told - told) * 1_000 >= at_least(50_000), "the lease itself has the new end"
    assert now_told * 1_000 <= (after.expires_at_ms or 0) + 2, "and never hopes for more than the store has"


@case("extend sets a new end, sooner than before", needs=["ttl"])
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()

    async def steps(ttl_ms: float) -> None:
        nonlocal lease
        result = await a.lock.acquire(ctx.name(ttl_ms), timeout_seconds=60)
        assert result
        lease = result.lease
        assert await lease.extend(ttl_ms / 1_000) is True

    lease: Any = None
    await outlast(await before_it_ends(steps))
    assert lease.held is False
    assert await b.lock.acquire(lease.lock_name, blocking=False)


@case("a lease that is extended repeatedly outlives its first TTL", needs=["ttl"])
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()

    async def steps(ttl_ms: float) -> None:
        name = ctx.name(ttl_ms)
        result = await a.lock.acquire(name, timeout_seconds=ttl_ms / 1_000)
        assert result
        for _ in range(3):
            await sleep_ms(ttl_ms / 4)
            assert await a.lock.extend(name, ttl_ms / 1_000) is True
        assert await a.lock.extend(name, LONG_MS / 1_000) is True
        await sleep_ms(ttl_ms / 4)
        assert result.lease.held is True
        assert not await b.lock.acquire(name, blocking=False)

    await before_it_ends(steps)


@case("failure 13: extend after the lease has ended answers no, and acquires nothing")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    result = await a.lock.acquire(ctx.lock_name, timeout_seconds=BRIEF_SECONDS)
    assert result
    await ctx.lease_ends(a.real_driver, BRIEF_SECONDS * 1_000)
    await until("the holder to know", lambda: not result.lease.held)
    assert await a.lock.extend(ctx.lock_name, LONG_MS / 1_000) is False
    assert await result.lease.extend(LONG_MS / 1_000) is False
    # Not at once: a grant that came late is renewed to its full TTL, and that may have reached the store afterwards.
    await until("the lock to be free", lambda: b.lock.acquire(ctx.lock_name, blocking=False))


@case("minHoldSeconds keeps others out after an early release, until it is over")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    started_ms = monotonic_ms()
    lease = await a.lock.hold(ctx.lock_name, min_hold_seconds=0.4)
    assert await lease.release() is True
    assert lease.held is False, "the holder itself has released it"
    next = await within("the next holder", b.lock.hold(ctx.lock_name, blocking_timeout_seconds=30))
    assert monotonic_ms() - started_ms >= at_least(400), "it was let in too early"
    assert next.held


@case("minHoldSeconds does not lengthen a hold that has lasted that long")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    lease = await a.lock.hold(ctx.lock_name, min_hold_seconds=0.05)
    await outlast(50)
    assert await lease.release() is True
    assert await b.lock.acquire(ctx.lock_name, blocking=False)


@case("failure 34: after maxHoldSeconds the heartbeat stops, and a rival gets the lock", needs=["ttl"])
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    lease = await a.lock.hold(ctx.lock_name, timeout_seconds=BRIEF_SECONDS, max_hold_seconds=0.5)
    next = await within("the rival", b.lock.hold(ctx.lock_name, blocking_timeout_seconds=30))
    assert lease.held is False
    assert lease.lost.is_set()
    assert next.fencing_token != lease.fencing_token
