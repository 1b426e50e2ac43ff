"""What can go wrong while a claim waits."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.driver import ANY_TOKEN
from holdfast.errors import StoreError
from support.steered_clock import SteeredClock

from ..context import Context, LockProcess
from ..driver_calls import must_grant, waiters_on
from ..faulty_network import fails, hold_request
from ..heartbeats import UNHURRIED
from ..suite import Group
from ..timing import SHORT_MS, VAIN_SECONDS, monotonic_ms, sleep_ms, timers_run, until, within

waiting_faults = Group("faults: waiting")
case = waiting_faults.case

WOKEN_OR_NOTHING = {"waiter_ttl_seconds": 60}
"""The slow poll behind the wake-ups comes every 20 s: a waiter that is served sooner was woken."""

PATIENT = {"blocking_timeout_seconds": 60, "timeout_seconds": 60}


@case("rule 10: when wake-ups are lost, the slow poll still finds the lock free")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock(waiter_ttl_seconds=0.6)
    lease = await a.lock.hold(ctx.lock_name, **PATIENT)
    b.network.mute()
    next = asyncio.ensure_future(b.lock.hold(ctx.lock_name, **PATIENT))
    await until_asked(b, 1)
    await lease.release()
    await within("the poll", next)


@case("failure 29: after a broken subscription, a missed release is found when listening again", needs=["wake"])
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock(**WOKEN_OR_NOTHING)
    lease = await a.lock.hold(ctx.lock_name, **PATIENT)
    next = asyncio.ensure_future(b.lock.hold(ctx.lock_name, **PATIENT))
    await until_asked(b, 2)
    b.network.break_subscription()
    await lease.release()
    await within("the waiter to listen again and look", next)


@case("failure 30: a release between the refusal and the subscription is not missed", needs=["wake"])
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock(**WOKEN_OR_NOTHING)
    lease = await a.lock.hold(ctx.lock_name, **PATIENT)
    subscribing = hold_request()
    b.network.once("listen", subscribing.fault)
    next = asyncio.ensure_future(b.lock.hold(ctx.lock_name, **PATIENT))
    await subscribing.reached.wait()
    await lease.release()
    subscribing.resume()
    await within("the waiter to look again", next)


@case("a store without a working subscription is polled")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    lease = await a.lock.hold(ctx.lock_name, **PATIENT)
    b.network.always("listen", fails)
    next = asyncio.ensure_future(b.lock.hold(ctx.lock_name, **PATIENT))
    await until_asked(b, 1)
    await lease.release()
    await within("the poll", next)


@case("while the subscription hangs, the store is polled")
async def _(ctx: Context) -> None:
    # The deadline of a call is later than the end of the case, so only a poll can find the lock free.
    a, b = await ctx.lock(), await ctx.lock(call_timeout_seconds=60)
    lease = await a.lock.hold(ctx.lock_name, **PATIENT)
    b.network.always("listen", b.network.hangs)
    next = asyncio.ensure_future(b.lock.hold(ctx.lock_name, **PATIENT))
    await until_asked(b, 1)
    await lease.release()
    await within("the poll", next)


@case("an outage is never reported as contention, not even behind another local waiter")
async def _(ctx: Context) -> None:
    a = await ctx.lock(call_timeout_seconds=60)
    a.network.always("acquire", a.network.hangs)
    longer = asyncio.ensure_future(a.lock.acquire(ctx.lock_name, **PATIENT))
    await asyncio.sleep(0)
    with pytest.raises(StoreError):
        await a.lock.acquire(ctx.lock_name, blocking_timeout_seconds=0.1)
    longer.cancel()
    await asyncio.wait([longer])
    a.network.heal()


@case("a waiter behind another one of its process also learns who holds the lock")
async def _(ctx: Context) -> None:
    clock = SteeredClock()
    a, b = await ctx.lock(), await ctx.lock(clock=clock, **UNHURRIED)
    lease = await a.lock.hold(ctx.lock_name, **PATIENT)
    longer = asyncio.ensure_future(b.lock.acquire(ctx.lock_name, **PATIENT))
    await until_asked(b, 1)
    waiting = asyncio.ensure_future(b.lock.acquire(ctx.lock_name, blocking_timeout_seconds=VAIN_SECONDS))
    # Where the store has no queue, only the first waiter of a process asks.
    asking = 2 if ctx.capabilities.queue else 1
    await until("its answer", lambda: len(b.network.refused.get(ctx.lock_name, ())) == asking)
    await timers_run()
    clock.advance(VAIN_SECONDS)
    shorter = await within("the end of the wait", waiting)
    assert not shorter
    assert shorter.holder is not None and shorter.holder.holder_id == lease.holder_id
    await lease.release()
    assert await longer


@case("a waiter outlives an outage of the store")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock(waiter_ttl_seconds=0.6)
    lease = await a.lock.hold(ctx.lock_name, **PATIENT)
    next = asyncio.ensure_future(b.lock.hold(ctx.lock_name, **PATIENT))
    await until_asked(b, 1)
    b.network.always("acquire", fails)
    b.network.mute()
    counts = b.network.counts["acquire"]
    await until("a question that failed", lambda: counts.calls > counts.answered)
    await lease.release()
    b.network.heal()
    await within("the waiter to ask again", next)


@case("a waiter whose process has died delays the others no longer than its place lasts", needs=["queue"])
async def _(ctx: Context) -> None:
    a, dying, b = await ctx.lock(), await ctx.lock(waiter_ttl_seconds=0.3), await ctx.lock()
    lease = await a.lock.hold(ctx.lock_name, **PATIENT)
    never = asyncio.ensure_future(dying.lock.hold(ctx.lock_name, **PATIENT))
    await until_asked(dying, 1)
    await ctx.cut_off(dying)
    next = asyncio.ensure_future(b.lock.hold(ctx.lock_name, **PATIENT))
    await until_asked(b, 1)
    await lease.release()
    await within("the one behind the dead waiter", next)
    never.cancel()
    await asyncio.wait([never])


@case(
    "a waiter is notified when a lease taken by force ends sooner than the one it waited for",
    needs=["queue", "wake", "force_up_to"],
)
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock(**WOKEN_OR_NOTHING)
    await a.lock.hold(ctx.lock_name, **PATIENT)
    next = asyncio.ensure_future(b.lock.hold(ctx.lock_name, **PATIENT))
    await until_asked(b, 2)
    # It is not released, so the waiter can rely on its end only.
    await must_grant(a.real_driver, ctx.claim(force_up_to=ANY_TOKEN, ttl_ms=SHORT_MS))
    await within("the waiter to ask at the end of that lease", next)


@case("fault: waiting does not become a hot loop")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    await a.lock.hold(ctx.lock_name, **PATIENT)
    started_ms = monotonic_ms()
    waiting = asyncio.ensure_future(b.lock.acquire(ctx.lock_name, **PATIENT))
    await until_asked(b, 1)
    await sleep_ms(1_000)
    assert b.network.counts["acquire"].calls <= 4 + (monotonic_ms() - started_ms) / 10
    waiting.cancel()
    await asyncio.wait([waiting])


@case("rule 10, failure 35: the cost of a hand-off does not grow with the number of waiters", needs=["queue", "wake"])
async def _(ctx: Context) -> None:
    # No slow poll comes, however long a busy machine takes for all of them.
    a, b = await ctx.lock(), await ctx.lock(waiter_ttl_seconds=3_600)
    lease = await a.lock.hold(ctx.lock_name, timeout_seconds=3_600)
    waiters = 40

    async def turn() -> None:
        async with b.lock.lock(ctx.lock_name, timeout_seconds=3_600, blocking_timeout_seconds=3_600):
            pass

    async def all_wait() -> bool:
        return len(await waiters_on(a.real_driver, ctx.lock_name)) == waiters

    turns = asyncio.gather(*(turn() for _ in range(waiters)))
    await until("all to be in the queue", all_wait)
    await lease.release()
    await within("all to be served", turns)
    # Each waiter asks once to join the queue, once after it has subscribed, and then a fixed number of times. If every
    # release woke all of them, it would be 800 requests or more.
    assert b.network.counts["acquire"].requests <= waiters * 10


async def until_asked(process: LockProcess, answers: int) -> None:
    """The store has answered this many requests: the claim is in the queue, or subscribed."""
    counts = process.network.counts["acquire"]
    await until("the claim to be answered", lambda: counts.answered >= answers)
