"""A lease that ends before its holder releases it."""

from __future__ import annotations

from holdfast.core.driver import Driver
from support.steered_clock import SteeredClock

from ..context import Context, MutexProcess
from ..driver_calls import lease_on, release_one
from ..heartbeats import UNHURRIED, beats
from ..suite import Group
from ..timing import BRIEF_SECONDS, KEPT_SECONDS, LONG_MS, timers_run, until, within
from .subject import MutexSubject
from .taking import begin_to_wait, must_take, must_wait


def mutex_loss(subject: MutexSubject) -> Group:
    group = Group(f"mutex by {subject.name}: loss", needs=subject.needs)
    case = group.case

    @case("rule 3: a holder that is cut off is notified of the loss before its successor begins")
    async def _(ctx: Context) -> None:
        a, b = await ctx.mutex(subject), await ctx.mutex(subject)
        stale = await must_take(a, ctx.lock_name, timeout_seconds=BRIEF_SECONDS, heartbeat=True)
        taking = await begin_to_wait(b, ctx.lock_name)
        await ctx.cut_off(a)
        successor = (await within("the successor", taking)).handle
        await timers_run()
        if ctx.capabilities.expiry == "ttl":
            assert stale.loss is not None, "the holder was not notified in time"
        await until("the loss", lambda: stale.loss)
        assert successor is not None
        if ctx.capabilities.fencing:
            assert successor.fencing_token > stale.fencing_token

    @case("rule 7: a stale holder that comes back cannot release its successor’s lease")
    async def _(ctx: Context) -> None:
        a, b = await ctx.mutex(subject), await ctx.mutex(subject)
        stale = await must_take(a, ctx.lock_name, timeout_seconds=BRIEF_SECONDS, heartbeat=True)
        taking = await begin_to_wait(b, ctx.lock_name)
        await ctx.cut_off(a)
        successor = (await within("the successor", taking)).handle
        if ctx.capabilities.expiry == "ttl":
            assert stale.held is False, "two held it at once"
        await until("the holder to know of its loss", lambda: not stale.held)
        a.network.heal()
        assert await stale.release() is False
        # When it is closed, what the stale holder sent in the background has arrived.
        await a.close()
        assert successor is not None and successor.held
        assert (await lease_on(b.real_driver, ctx.lock_name)).holder_id == b.holder_id

    @case("a lease without heartbeat ends with its TTL: held is false and the signal aborts")
    async def _(ctx: Context) -> None:
        process = await ctx.mutex(subject)
        handle = await must_take(process, ctx.lock_name, timeout_seconds=BRIEF_SECONDS, heartbeat=False)
        # A session does not end by time. There the heartbeat always runs, and only a silent store ends the lease.
        if ctx.capabilities.expiry == "session":
            process.network.cut()
        await until("the loss", lambda: handle.loss)
        assert handle.held is False
        process.network.heal()
        assert await handle.release() is False

    @case("the heartbeat keeps a lease beyond its TTL")
    async def _(ctx: Context) -> None:
        clock = SteeredClock()
        a, b = await ctx.mutex(subject, clock=clock, **UNHURRIED), await ctx.mutex(subject)
        handle = await must_take(a, ctx.lock_name, timeout_seconds=KEPT_SECONDS, heartbeat=True)
        before = await lease_on(b.real_driver, ctx.lock_name)
        await beats(a, clock, 3)
        assert handle.held is True
        after = await lease_on(b.real_driver, ctx.lock_name)
        assert before.expires_at_ms is None or (after.expires_at_ms or 0) > before.expires_at_ms
        holder = (await must_wait(b, ctx.lock_name)).holder
        assert holder is not None and holder.fencing_token == handle.fencing_token
        assert await handle.release() is True

    @case("fault: a holder learns from the next heartbeat that the store has lost its lease")
    async def _(ctx: Context) -> None:
        clock = SteeredClock()
        process = await ctx.mutex(subject, clock=clock, **UNHURRIED)
        other = await ctx.driver()
        handle = await must_take(process, ctx.lock_name, timeout_seconds=KEPT_SECONDS, heartbeat=True)
        await take_away(ctx, process, other)
        clock.advance(0.4 * KEPT_SECONDS)
        await until("the loss", lambda: handle.loss)
        assert handle.held is False
        assert await handle.release() is False

    @case("fault: the release of a lease that the store ended between two heartbeats is a loss")
    async def _(ctx: Context) -> None:
        process = await ctx.mutex(subject)
        other = await ctx.driver()
        handle = await must_take(process, ctx.lock_name, timeout_seconds=LONG_MS / 1_000, heartbeat=True)
        await take_away(ctx, process, other)
        assert await handle.release() is False, "the release says that it was still held"

    return group


async def take_away(ctx: Context, process: MutexProcess, other: Driver) -> None:
    """The store loses the lease without a message: a forced release, lost data, a session that was ended."""
    if ctx.capabilities.expiry == "session":
        await ctx.lease_ends(process.real_driver, 0)
        return
    lease = await lease_on(other, ctx.lock_name)
    assert await release_one(other, ctx.claim(claim_id=lease.claim_id)) is True
