"""What can go wrong between a claim and its answer."""

from __future__ import annotations

import asyncio
from typing import Any, List

import pytest

from holdfast.errors import ClosedError, StoreError

from ..context import Context, LockProcess
from ..driver_calls import lease_on, leases_on
from ..faulty_network import Forward, fails, hold_reply, hold_request, loses_reply
from ..suite import Group
from ..timing import SHORT_MS, outlast, until, within

acquire_faults = Group("faults: acquire")
case = acquire_faults.case


@case("rule 5, failure 11: a lost reply does not lock the client out of its own lock")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    a.network.once("acquire", loses_reply)
    with pytest.raises(StoreError):
        await a.lock.acquire(ctx.lock_name, blocking=False)
    assert await within("the client itself to get it", a.lock.acquire(ctx.lock_name))


@case("rule 5, failure 11: a waiter whose reply was lost gets its lease when it asks again")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    tokens: List[int] = []

    async def loses_reply_but_looks(forward: Forward) -> Any:
        await forward()
        tokens.append((await lease_on(a.real_driver, ctx.lock_name)).fencing_token)
        raise ConnectionError("the connection broke before the reply came")

    a.network.once("acquire", loses_reply_but_looks)
    result = await within("the answer to the second question", a.lock.acquire(ctx.lock_name))
    assert result and result.lease.held
    assert [result.lease.fencing_token] == tokens
    assert not await b.lock.acquire(ctx.lock_name, blocking=False)


@case("fault: a grant whose reply arrives after its lease has ended is not acquired")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    reply = hold_reply()
    a.network.once("acquire", reply.fault)
    answer = asyncio.ensure_future(a.lock.acquire(ctx.lock_name, timeout_seconds=SHORT_MS / 1_000, blocking=False))
    await reply.reached.wait()
    await outlast(SHORT_MS)
    reply.resume()
    with pytest.raises(StoreError):
        await answer
    await until_free(b, ctx.lock_name)


@case("failure 15: a waiter whose grant came too late asks again, and gets a lease of full length", needs=["ttl"])
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    reply = hold_reply()
    a.network.once("acquire", reply.fault)
    answer = asyncio.ensure_future(a.lock.acquire(ctx.lock_name, timeout_seconds=1))
    await reply.reached.wait()
    [grant] = await reply.answer
    await outlast(1_000)
    reply.resume()
    result = await within("the answer to the second question", answer)
    assert result
    assert result.lease.acquired_at.timestamp() * 1_000 >= grant.acquired_at_ms + 999


@case("rule 6, failure 10: an aborted acquire that is granted late is released")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    request = hold_request()
    a.network.once("acquire", request.fault)
    answer = asyncio.ensure_future(a.lock.acquire(ctx.lock_name))
    await request.reached.wait()
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within("the cancellation to be heard", answer)
    request.resume()
    await request.answer
    await until_free(b, ctx.lock_name)


@case("rule 6, failure 10: an acquire that timed out and is granted late is released")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(call_timeout_seconds=0.1), await ctx.lock()
    request = hold_request()
    a.network.once("acquire", request.fault)
    with pytest.raises(StoreError):
        await a.lock.acquire(ctx.lock_name, blocking=False)
    # The claim is withdrawn before the late request reaches the store.
    await until("the claim to be withdrawn", lambda: a.network.counts["release"].answered > 0)
    request.resume()
    await request.answer
    await until_free(b, ctx.lock_name)


@case("rule 6: an acquire whose wait ended while its answer was in flight is released")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    reply = hold_reply()
    a.network.once("acquire", reply.fault)
    # No answer came at all, so it is not known who holds the lock.
    with pytest.raises(StoreError):
        await within("the waiting to end", a.lock.acquire(ctx.lock_name, blocking_timeout_seconds=0.1))
    reply.resume()
    await until_free(b, ctx.lock_name)


@case("rule 6: an acquire that is in flight while the instance closes is released")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    reply = hold_reply()
    a.network.once("acquire", reply.fault)
    answer = asyncio.ensure_future(a.lock.acquire(ctx.lock_name))
    await reply.reached.wait()
    closing = asyncio.ensure_future(a.lock.close())
    with pytest.raises(ClosedError):
        await answer
    reply.resume()
    await closing
    await until_free(b, ctx.lock_name)


@case("rule 6: a withdrawal that fails is sent again")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    a.network.once("acquire", loses_reply)
    a.network.once("release", fails)
    a.network.once("release", fails)
    with pytest.raises(StoreError):
        await a.lock.acquire(ctx.lock_name, blocking=False)
    await until_free(b, ctx.lock_name)
    assert a.network.counts["release"].calls >= 3


@case("fault: a store that is down is an error, never contention and never a lock")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    a.network.always("acquire", fails)
    with pytest.raises(StoreError):
        await a.lock.acquire(ctx.lock_name, blocking=False)
    with pytest.raises(StoreError):
        await a.lock.acquire(ctx.lock_name, blocking_timeout_seconds=0.1)
    with pytest.raises(StoreError):
        await a.lock.hold(ctx.lock_name, blocking=False)
    with pytest.raises(StoreError):
        async with a.lock.lock(ctx.lock_name, blocking=False):
            raise AssertionError("the job ran without the lock")


@case("failure 26: a store that hangs is an error in time, waiting or not")
async def _(ctx: Context) -> None:
    a = await ctx.lock(call_timeout_seconds=0.1)
    a.network.always("acquire", a.network.hangs)
    answers = [
        asyncio.ensure_future(a.lock.acquire(ctx.lock_name, blocking=False)),
        asyncio.ensure_future(a.lock.acquire(ctx.lock_name, blocking_timeout_seconds=0.3)),
    ]
    for answer in answers:
        with pytest.raises(StoreError):
            await within("an error", answer)


@case("fault: blockingTimeoutSeconds: 0 never says acquired without the lock")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    first = await a.lock.acquire(ctx.lock_name, blocking_timeout_seconds=0)
    assert first
    assert (await lease_on(b.real_driver, ctx.lock_name)).fencing_token == first.lease.fencing_token
    assert not await b.lock.acquire(ctx.lock_name, blocking_timeout_seconds=0)
    b.network.always("acquire", fails)
    with pytest.raises(StoreError):
        await b.lock.acquire(ctx.lock_name, blocking_timeout_seconds=0)


@case("an error in one entry fails that claim alone, and the claim is withdrawn")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()

    async def first_entry_unknown(forward: Forward) -> Any:
        return [ConnectionError("this entry alone is not known"), *(await forward())[1:]]

    # Opened before: both claims are made in one turn of the event loop.
    await a.lock.release_all()
    a.network.once("acquire", first_entry_unknown)
    other = ctx.name("other")
    unknown, known = await asyncio.gather(
        a.lock.acquire(ctx.lock_name, blocking=False), a.lock.acquire(other, blocking=False), return_exceptions=True
    )
    assert isinstance(unknown, StoreError)
    assert known and not isinstance(known, BaseException)
    await until_free(b, ctx.lock_name)
    assert len(await leases_on(b.real_driver, other)) == 1


async def until_free(process: LockProcess, lock_name: str) -> None:
    """A rival that asks at once gets the lock, long before any lease here would expire."""
    await until("the lock to be free", lambda: process.lock.acquire(lock_name, blocking=False))
