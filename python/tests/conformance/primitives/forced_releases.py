"""`force_release` ends the lock of another holder."""

from __future__ import annotations

import asyncio
import time
from typing import Any, List, cast

import pytest

from holdfast import InvalidArgumentError, LeaseLostError
from holdfast.core.driver import ForcingDriver, Refusal

from ..context import Context, LockProcess
from ..driver_calls import lease_on, leases_on, must_grant, only
from ..suite import Group
from ..timing import LONG_MS, until, within

forced_releases = Group("DistributedLock: released by force", needs=["force"])
case = forced_releases.case

LONG_SECONDS = LONG_MS / 1_000


@case("failure 5: a lease of hours is ended, and the next waiter is granted the lock")
async def _(ctx: Context) -> None:
    a, b, c = await ctx.lock(), await ctx.lock(), await ctx.lock()
    longest_seconds = (a.real_driver.longest_ttl_ms or 100_000_000) / 1_000
    held = await a.lock.hold(ctx.lock_name, timeout_seconds=min(100_000, longest_seconds))
    next = asyncio.ensure_future(b.lock.hold(ctx.lock_name, blocking_timeout_seconds=LONG_SECONDS))
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


@case("an event says who forced the release, and nothing is left behind")
async def _(ctx: Context) -> None:
    process = await ctx.lock()
    told: List[Any] = []
    process.lock.on("force_released", lambda event: told.append((event.lock_name, event.metadata["forcedBy"])))
    held = await process.lock.hold(ctx.lock_name)
    lost = asyncio.ensure_future(held.lost.wait())
    assert len(await process.lock.force_release(ctx.lock_name, by="ada")) == 1
    await within("this process's own holder to be told", lost)
    assert told == [(ctx.lock_name, "ada")]
    assert await leases_on(process.real_driver, ctx.lock_name) == []


@case("rule 17: a forced release reaches a holder with a long lease with its next heartbeat")
async def _(ctx: Context) -> None:
    holder, operator = await ctx.lock(), await ctx.lock()
    held = await holder.lock.hold(ctx.lock_name, timeout_seconds=LONG_SECONDS)
    assert holder.network.counts["listen"].calls == 0 or ctx.capabilities.expiry == "session"
    started = time.monotonic()
    assert len(await operator.lock.force_release(ctx.lock_name, by="ada")) == 1
    error = await within("the holder to be told", held.lost.wait())
    assert time.monotonic() - started < 15, "it was told with a renewal after a third of its time to live"
    assert isinstance(error, LeaseLostError)
    assert held.held is False


@case("a forced release of one lock leaves the other locks of its holder")
async def _(ctx: Context) -> None:
    holder, operator = await ctx.lock(), await ctx.lock()
    other = await holder.lock.hold(ctx.name("other"))
    held = await holder.lock.hold(ctx.lock_name)
    lost = asyncio.ensure_future(held.lost.wait())
    await operator.lock.force_release(ctx.lock_name, by="ada")
    await within("the holder to be told", lost)
    assert other.held is True
    assert await other.extend(10) is True
    assert await other.release() is True


@case("rule 15: false, doubled and late hints of a forced release end nothing", needs=["ttl"])
async def _(ctx: Context) -> None:
    process = await ctx.lock()
    lock, network = process.lock, process.network
    held = await lock.hold(ctx.lock_name, timeout_seconds=LONG_SECONDS, heartbeat=False)
    waiting = await listening(ctx, process)
    claim_id = (await lease_on(network.driver, ctx.lock_name)).claim_id
    renewals = network.counts["renew"]
    before = renewals.answered

    def send(about: str = claim_id) -> None:
        network.deliver(lambda listener: listener.lost(about, RuntimeError("it was force-released")))

    send()
    send()
    await until("the store to be asked", lambda: renewals.answered > before)
    send("of no claim")
    assert held.held is True
    assert await held.release() is True
    next = await lock.hold(ctx.lock_name)
    # About the lease before, which has ended.
    send()
    assert await next.extend(10) is True
    assert next.held is True
    assert renewals.answered == before + 2
    waiting.cancel()


@case("a newer lease of the same holder is left alone by a forced release of the one before")
async def _(ctx: Context) -> None:
    holder, operator = await ctx.lock(), await ctx.lock()
    first = await holder.lock.hold(ctx.lock_name)
    driver = operator.real_driver
    seen = await lease_on(driver, ctx.lock_name)
    await first.release()
    second = await holder.lock.hold(ctx.lock_name)
    if ctx.capabilities.force == "call":
        answers = await cast(ForcingDriver, driver).force_release([seen], by="ada", end_session=False)
        assert list(answers) == [False]
    else:
        taker = ctx.claim(force_up_to=seen.fencing_token)
        assert isinstance(only(await driver.acquire([taker])), Refusal)
    assert second.held is True
    assert await second.extend(10) is True


@case("forcing a free lock does nothing, and the caller must name itself")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    assert list(await a.lock.force_release(ctx.lock_name, by="ada")) == []
    before = a.network.counts["inspect"].calls
    with pytest.raises(InvalidArgumentError) as refused:
        await a.lock.force_release(ctx.lock_name, by="")
    assert refused.value.argument == "by"
    assert a.network.counts["inspect"].calls == before


async def listening(ctx: Context, process: LockProcess) -> asyncio.Future[Any]:
    """Lets a process wait for another lock, so that it has a subscription."""
    other = ctx.name("other")
    await must_grant(await ctx.driver(), ctx.claim(lock_name=other))
    waiting = asyncio.ensure_future(process.lock.acquire(other, blocking_timeout_seconds=LONG_SECONDS))
    await until("the subscription", lambda: process.network.counts["listen"].answered > 0)
    return waiting
