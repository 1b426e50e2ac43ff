"""What can go wrong while a lease is renewed."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, Dict, List, Optional

import pytest

from holdfast import Clock
from holdfast.errors import HoldfastError, LeaseLostError
from support.steered_clock import SteeredClock

from ..context import Context
from ..faulty_network import fails, hold_reply, loses_reply
from ..heartbeats import RETRY, UNHURRIED, beats, send_heartbeat
from ..suite import Group
from ..timing import BRIEF_SECONDS, KEPT_SECONDS, monotonic_ms, sleep_ms, timers_run, until, within

renewal_faults = Group("faults: renewal")
case = renewal_faults.case


def loss_comes_in_time(how: str) -> None:
    @case(f"rule 3: when the store {how}, the signal comes no later than the lease ends", needs=["ttl"])
    async def _(ctx: Context) -> None:
        a, b = await ctx.lock(), await ctx.lock()
        lease = await a.lock.hold(ctx.lock_name, timeout_seconds=BRIEF_SECONDS)
        losses: List[LeaseLostError] = []
        lease.add_loss_callback(losses.append)
        for method in ("acquire", "renew", "release"):
            a.network.always(method, a.network.hangs if how == "hangs" else fails)
        await within("the rival to take over", b.lock.hold(ctx.lock_name, blocking_timeout_seconds=30))
        await timers_run()
        assert losses, "a rival had the lock before the holder was notified"
        with pytest.raises(LeaseLostError):
            lease.assert_held()


loss_comes_in_time("hangs")
loss_comes_in_time("is down")


@case("fault: a job under withLock is notified when the store hangs, and withLock rejects")
async def _(ctx: Context) -> None:
    clock = SteeredClock()
    a = await ctx.lock(clock=clock)
    cancelled = False

    async def run() -> None:
        nonlocal cancelled
        async with a.lock.lock(ctx.lock_name, timeout_seconds=KEPT_SECONDS):
            a.network.cut()
            clock.advance(KEPT_SECONDS)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise

    job = asyncio.ensure_future(run())
    await until("the loss", lambda: cancelled or job.done())
    clock.advance(KEPT_SECONDS)  # for a call of the block's end
    with pytest.raises(LeaseLostError):
        await within("the block to end", job)
    assert cancelled


@case("fault: one renewal that fails does not end a healthy lease")
async def _(ctx: Context) -> None:
    clock = SteeredClock()
    a = await ctx.lock(clock=clock, **UNHURRIED)
    a.network.once("renew", fails)
    lease = await a.lock.hold(ctx.lock_name, timeout_seconds=KEPT_SECONDS)
    await send_heartbeat(a, clock)
    await send_heartbeat(a, clock, RETRY)
    await until("the answer to the second", lambda: a.network.counts["renew"].answered >= 1)
    await beats(a, clock, 2)
    assert lease.held is True
    assert not lease.lost.is_set()
    assert await lease.release() is True


@case("one renewal whose reply is lost does not end a healthy lease")
async def _(ctx: Context) -> None:
    clock = SteeredClock()
    a = await ctx.lock(clock=clock, **UNHURRIED)
    a.network.once("renew", loses_reply)
    lease = await a.lock.hold(ctx.lock_name, timeout_seconds=KEPT_SECONDS)
    await beats(a, clock, 1)
    await send_heartbeat(a, clock, RETRY)
    await until("the answer to the second", lambda: a.network.counts["renew"].answered >= 2)
    await beats(a, clock, 2)
    assert lease.held is True
    assert await lease.release() is True


@case("rule 3: a renewal that hangs does not use up the lease: the next one is sent beside it")
async def _(ctx: Context) -> None:
    clock = SteeredClock()
    # A call may take longer than the lease lasts.
    a = await ctx.lock(clock=clock, **UNHURRIED)
    a.network.once("renew", a.network.hangs)
    lease = await a.lock.hold(ctx.lock_name, timeout_seconds=KEPT_SECONDS)
    await send_heartbeat(a, clock)
    await send_heartbeat(a, clock, RETRY)
    await until("the answer to the second", lambda: a.network.counts["renew"].answered >= 1)
    await timers_run()
    await beats(a, clock, 2)
    assert lease.held is True
    assert await lease.release() is True


@case("rule 3: an unanswered extension to a short TTL does not end a lease with a heartbeat")
async def _(ctx: Context) -> None:
    clock = SteeredClock()
    a = await ctx.lock(clock=clock, **UNHURRIED)
    lease = await a.lock.hold(ctx.lock_name, timeout_seconds=10 * KEPT_SECONDS)
    a.network.once("renew", a.network.hangs)
    extending = asyncio.ensure_future(lease.extend(KEPT_SECONDS))
    await until("the extension to be sent", lambda: a.network.counts["renew"].calls > 0)
    await beats(a, clock, 1)
    assert lease.held is True
    # The extension may still arrive and set the end of the lease.
    assert lease.remaining_seconds <= KEPT_SECONDS
    a.network.heal()
    await asyncio.wait([extending])
    assert extending.exception() is None or isinstance(extending.exception(), HoldfastError)
    assert await lease.release() is True


@case("rule 2: a renewal that is answered after the deadline does not revive the lease")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    result = await a.lock.acquire(ctx.lock_name, timeout_seconds=BRIEF_SECONDS)
    assert result
    reply = hold_reply()
    a.network.always("renew", reply.fault)
    extending = asyncio.ensure_future(result.lease.extend(60))
    await until("the deadline", lambda: not result.lease.held)
    reply.resume()
    assert await extending is False
    assert result.lease.held is False
    await until(
        "the store to be rid of what the renewal left there", lambda: b.lock.acquire(ctx.lock_name, blocking=False)
    )


@case("rule 2: a renewal answered after a stall does not revive the lease before timers run")
async def _(ctx: Context) -> None:
    clock = ShiftedClock(monotonic=True, wall=True)
    a = await ctx.lock(clock=clock)
    lease = await a.lock.hold(ctx.lock_name, timeout_seconds=30)
    reply = hold_reply()
    a.network.once("renew", reply.fault)
    extending = asyncio.ensure_future(lease.extend(60))
    await reply.reached.wait()
    clock.shift_seconds += 30
    reply.resume()
    assert await extending is False
    assert lease.held is False
    assert isinstance(lease.lost.error, LeaseLostError)


def is_seen_at_once(what: str, *, monotonic: bool, wall: bool) -> None:
    @case(f"rule 2: held is false in the first statement after {what} for a time to live")
    async def _(ctx: Context) -> None:
        clock = ShiftedClock(monotonic=monotonic, wall=wall)
        a = await ctx.lock(clock=clock)
        lease = await a.lock.hold(ctx.lock_name, timeout_seconds=30)
        assert lease.held is True
        clock.shift_seconds += 30
        assert lease.held is False
        assert lease.lost.is_set()
        assert await lease.extend(30) is False
        assert a.network.counts["renew"].calls == 0, "a lease past its deadline must not be renewed"


is_seen_at_once("the process stood still", monotonic=True, wall=True)
is_seen_at_once("the machine was suspended and only the wall clock went on", monotonic=False, wall=True)
is_seen_at_once("the wall clock was set back", monotonic=True, wall=False)


@case("fault: a renewal that times out causes no unhandled rejection")
async def _(ctx: Context) -> None:
    loop = asyncio.get_running_loop()
    unhandled: List[Dict[str, Any]] = []
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    try:
        a = await ctx.lock(call_timeout_seconds=0.05)
        lease = await a.lock.hold(ctx.lock_name, timeout_seconds=BRIEF_SECONDS)
        a.network.cut()
        await until("the loss", lease.lost.is_set)
        await sleep_ms(100)  # until the calls in flight have timed out, too
        gc.collect()  # an error that nothing has read is reported when its future is collected
        assert [context for context in unhandled if "holdfast" in repr(context)] == []
    finally:
        loop.set_exception_handler(before)


@case("fault: a short TTL does not make the heartbeat a hot loop")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    ttl_ms = 60
    started_ms = monotonic_ms()

    # A machine under load may lose so short a lease. The case is about how often the store was asked.
    async def hold() -> Optional[Any]:
        try:
            return await a.lock.hold(ctx.lock_name, timeout_seconds=ttl_ms / 1_000)
        except HoldfastError:
            return None

    lease = await until("a lease", hold)
    await until("half a second or the loss", lambda: monotonic_ms() - started_ms > 500 or not lease.held)
    assert a.network.counts["renew"].calls <= 2 + (monotonic_ms() - started_ms) / (ttl_ms / 10)


@case("fault: renewals that fail are not repeated in a hot loop")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    a.network.always("renew", fails)
    lease = await a.lock.hold(ctx.lock_name, timeout_seconds=BRIEF_SECONDS)
    await until("the loss", lease.lost.is_set)
    assert a.network.counts["renew"].calls <= 10


class ShiftedClock(Clock):
    """The system clock until it is shifted. Its timers do not notice, as after a stall in which no timer could run."""

    def __init__(self, *, monotonic: bool, wall: bool) -> None:
        self.shift_seconds = 0.0
        self._shifts_monotonic = monotonic
        self._shifts_wall = wall

    def monotonic(self) -> float:
        return super().monotonic() + (self.shift_seconds if self._shifts_monotonic else 0)

    def wall(self) -> float:
        return super().wall() + (self.shift_seconds if self._shifts_wall else 0)
