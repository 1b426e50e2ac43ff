"""`lease.serialize` and `lock.restore` move a lease from one process to another."""

from __future__ import annotations

import asyncio
from typing import List

import pytest

from holdfast import (
    DistributedLock,
    InvalidArgumentError,
    Lease,
    LeaseLostError,
    NotHeldError,
    StoreError,
    UnsupportedError,
)

from ..context import Context
from ..driver_calls import assert_untouched, lease_on, leases_on
from ..faulty_network import HeldCall, fails, hold_request, loses_reply
from ..suite import Group
from ..timing import BRIEF_SECONDS, LONG_MS, timers_run, until, within

hand_over = Group("DistributedLock: a lease that is handed over", needs=["ttl"])
case = hand_over.case


@case("a lease that is handed over continues in another process with the same token")
async def _(ctx: Context) -> None:
    a, b, c = await ctx.lock(), await ctx.lock(), await ctx.lock()
    told: List[str] = []
    a.lock.on("handed_over", lambda event: told.append(f"handed over {event.fencing_token}"))
    b.lock.on("restored", lambda event: told.append(f"restored {event.fencing_token}"))
    first = await a.lock.hold(ctx.lock_name, metadata={"step": 1})
    second = await b.lock.restore(await first.serialize())
    assert told == [f"handed over {first.fencing_token}", f"restored {first.fencing_token}"]
    for fact in ("fencing_token", "holder_id", "acquired_at", "metadata"):
        assert getattr(second, fact) == getattr(first, fact)
    assert second.held and second.expires_at > second.acquired_at
    assert not await c.lock.acquire(ctx.lock_name, blocking=False)
    assert await second.extend(45) is True
    assert await b.lock.extend(ctx.lock_name, 45) is True
    assert await second.release() is True
    next = await c.lock.acquire(ctx.lock_name, blocking=False)
    assert next.lease is not None and next.lease.fencing_token > first.fencing_token


@case("the first process loses it with the call; its release, dispose and close end nothing")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    first = await a.lock.hold(ctx.lock_name)
    text = asyncio.ensure_future(first.serialize())
    await asyncio.sleep(0)
    assert (first.held, first.remaining_seconds) == (False, 0)
    with pytest.raises(NotHeldError, match="it was handed over"):
        first.assert_held()
    second = await b.lock.restore(await text)
    before = await lease_on(b.real_driver, ctx.lock_name)
    assert [await first.release(), await first.extend(10), await a.lock.release(ctx.lock_name)] == [False] * 3
    async with first:
        pass
    await a.lock.release_all()
    with pytest.raises(NotHeldError):
        await first.serialize()
    await a.lock.close()
    await assert_untouched(b.real_driver, before)
    assert not first.lost.is_set()
    assert second.held
    assert await b.lock.release(ctx.lock_name) is True


@case("the first process stops renewing it, and the second one renews it if asked to")
async def _(ctx: Context) -> None:
    a, b, c = await ctx.lock(), await ctx.lock(), await ctx.lock()
    first = await a.lock.hold(ctx.lock_name, timeout_seconds=2)
    text = await first.serialize()
    renewals = a.network.counts["renew"].calls
    second = await b.lock.restore(text, heartbeat=True)
    await until("a heartbeat of the second", lambda: b.network.counts["renew"].answered >= 2)
    assert a.network.counts["renew"].calls == renewals
    assert not await c.lock.acquire(ctx.lock_name, blocking=False)
    await second.release()
    assert await leases_on(c.real_driver, ctx.lock_name) == []


@case("a serialized lease that is never restored ends with its TTL")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    text = None
    for ttl_seconds in (BRIEF_SECONDS, 2, 10):
        first = await a.lock.hold(ctx.lock_name, timeout_seconds=ttl_seconds)
        try:
            text = await first.serialize()
            break
        except LeaseLostError:
            pass  # The machine was too slow for this TTL.
    assert text is not None
    next = await b.lock.hold(ctx.lock_name, blocking_timeout_seconds=LONG_MS / 1_000)
    assert next.fencing_token > first.fencing_token
    with pytest.raises(LeaseLostError):
        await a.lock.restore(text)
    assert next.held
    assert (await lease_on(b.real_driver, ctx.lock_name)).fencing_token == next.fencing_token


@case("the text of a lease that was restored and released cannot be restored again")
async def _(ctx: Context) -> None:
    a, b, c = await ctx.lock(), await ctx.lock(), await ctx.lock()
    text = await (await a.lock.hold(ctx.lock_name)).serialize()
    await (await b.lock.restore(text)).release()
    with pytest.raises(LeaseLostError):
        await c.lock.restore(text)
    next = await c.lock.hold(ctx.lock_name)
    with pytest.raises(LeaseLostError):
        await b.lock.restore(text)
    assert next.held


@case("an instance restores a text once")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    text = await (await a.lock.hold(ctx.lock_name)).serialize()
    second = await b.lock.restore(text)
    with pytest.raises(InvalidArgumentError, match="^text must be restored only once"):
        await b.lock.restore(text)
    assert second.held
    assert await second.release() is True


@case("restoring a text that this instance holds or is restoring sends and changes nothing")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    text = await (await a.lock.hold(ctx.lock_name)).serialize()
    renewal = hold_request()
    b.network.once("renew", renewal.fault)
    restoring = asyncio.ensure_future(b.lock.restore(text, timeout_seconds=40))
    await renewal.reached.wait()
    with pytest.raises(InvalidArgumentError):
        await b.lock.restore(text, timeout_seconds=1)
    renewal.resume()
    second = await restoring
    before = await lease_on(b.real_driver, ctx.lock_name)
    with pytest.raises(InvalidArgumentError):
        await b.lock.restore(text, timeout_seconds=1)
    await assert_untouched(b.real_driver, before)
    assert b.network.counts["renew"].calls == 1
    assert second.remaining_seconds > 30


@case("an unanswered restore bounds what the same instance trusts after the next one")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    text = await (await a.lock.hold(ctx.lock_name)).serialize()
    renewal = hold_request()
    b.network.once("renew", renewal.fault)
    # It may arrive at any later moment, and then the lease ends after five seconds. All instances on a driver know.
    async with DistributedLock(b.network.driver, call_timeout_seconds=0.1) as hasty:
        with pytest.raises(StoreError):
            await hasty.restore(text, timeout_seconds=5)
    await bounded_by_five_seconds(await b.lock.restore(text, timeout_seconds=40), renewal)


@case("a restore whose answer is lost is an error, and the text can be restored again")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    text = await (await a.lock.hold(ctx.lock_name)).serialize()
    for fault in (loses_reply, fails):
        b.network.once("renew", fault)
        with pytest.raises(StoreError):
            await b.lock.restore(text)
    assert (await b.lock.restore(text)).held


@case("a hand-over waits for a renewal in flight, which could set an earlier end")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    first = await a.lock.hold(ctx.lock_name)
    renewal = hold_request()
    a.network.once("renew", renewal.fault)
    extending = asyncio.ensure_future(first.extend(10))
    await renewal.reached.wait()
    serializing = asyncio.ensure_future(first.serialize())
    await timers_run()
    assert not serializing.done()
    renewal.resume()
    second = await b.lock.restore(await serializing, timeout_seconds=40)
    assert await extending is False
    assert second.remaining_seconds > 30


@case("an unanswered renewal bounds what the next process trusts")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(call_timeout_seconds=0.1), await ctx.lock()
    first = await a.lock.hold(ctx.lock_name, blocking_timeout_seconds=LONG_MS / 1_000)
    renewal = hold_request()
    a.network.once("renew", renewal.fault)
    # It may arrive at any later moment, and then the lease ends after five seconds.
    with pytest.raises(StoreError):
        await first.extend(5)
    await bounded_by_five_seconds(await b.lock.restore(await first.serialize(), timeout_seconds=40), renewal)


async def bounded_by_five_seconds(lease: Lease, renewal: HeldCall) -> None:
    assert lease.remaining_seconds <= 5
    renewal.resume()
    await renewal.answer
    assert await lease.extend(40) is True
    assert lease.remaining_seconds <= 5


@case("the next process keeps the rest of minHoldSeconds")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    first = await a.lock.hold(ctx.lock_name, min_hold_seconds=60)
    second = await b.lock.restore(await first.serialize())
    assert await second.release() is True
    assert len(await leases_on(b.real_driver, ctx.lock_name)) == 1


@case("a lease inside withLock is not handed over, nor is a re-entered one")
async def _(ctx: Context) -> None:
    lock = (await ctx.lock()).lock
    async with lock.lock(ctx.lock_name) as lease:
        with pytest.raises(UnsupportedError, match="a block runs under it"):
            await lease.serialize()
        inner = await lock.hold(ctx.lock_name)
        with pytest.raises(UnsupportedError, match="several uses"):
            await inner.serialize()
        assert lease.held and inner.held


@case("a hand-over that waits for the store ends no later than the call’s deadline")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(call_timeout_seconds=0.1), await ctx.lock()
    first = await a.lock.hold(ctx.lock_name, blocking_timeout_seconds=LONG_MS / 1_000)
    a.network.always("renew", a.network.hangs)
    extending = asyncio.ensure_future(first.extend(30))
    await until("the extension", lambda: a.network.counts["renew"].calls > 0)
    text = await within("the text", first.serialize())
    with pytest.raises(StoreError):
        await extending
    assert (await b.lock.restore(text)).held


uses = Group("DistributedLock: several uses of a lease", needs=["ttl"])


@uses.case("failure 58: the release of a restored lease leaves the lock to a task that shares it")
async def _(ctx: Context) -> None:
    a, b, c = await ctx.lock(), await ctx.lock(reacquire="extend"), await ctx.lock()
    restored = await b.lock.restore(await (await a.lock.hold(ctx.lock_name)).serialize())
    async with b.lock.lock(ctx.lock_name) as lease:
        with pytest.raises(UnsupportedError, match="several uses"):
            await restored.serialize()
        assert await restored.release() is True
        assert not await c.lock.acquire(ctx.lock_name, blocking=False)
        assert lease.held
    assert await c.lock.acquire(ctx.lock_name, blocking=False)
