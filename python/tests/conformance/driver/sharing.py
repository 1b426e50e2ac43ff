"""Readers, writers and semaphores are one claim: exclusive or shared, with or without a limit."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from holdfast.core.driver import Grant, Refusal

from ..context import Context
from ..driver_calls import (
    acquire_one,
    lease_on,
    leases_on,
    must_grant,
    must_refuse,
    ref_of,
    release_one,
    until_granted,
)
from ..suite import Group
from ..timing import LONG_MS, SHORT_MS, outlast, until

sharing = Group("driver interface: shared claims and limits", needs=["shared"])
case = sharing.case


@case("shared leases coexist, across processes")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    await must_grant(a, ctx.claim(mode="shared"))
    await must_grant(a, ctx.claim(mode="shared"))
    await must_grant(b, ctx.claim(mode="shared"))
    assert len(await leases_on(b, ctx.lock_name)) == 3


@case("an exclusive claim is refused beside a shared lease, and a shared one beside an exclusive")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    reader, writer = ctx.claim(mode="shared"), ctx.claim()
    token = (await must_grant(a, reader)).fencing_token
    holder = (await must_refuse(b, writer)).holder
    assert holder is not None and holder.mode == "shared"
    await release_one(a, reader, token)
    await must_grant(b, writer)
    holder = (await must_refuse(a, reader)).holder
    assert holder is not None and holder.mode == "exclusive"


@case("a writer is admitted when the last reader has released, not before")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    first, second = ctx.claim(mode="shared"), ctx.claim(mode="shared")
    of_first, of_second = await must_grant(a, first), await must_grant(b, second)
    await release_one(a, first, of_first.fencing_token)
    await must_refuse(a, ctx.claim())
    await release_one(b, second, of_second.fencing_token)
    await must_grant(a, ctx.claim())


def are_counted_exactly(permits: int) -> None:
    @case(f"{permits} permits are counted exactly", needs=["limit"])
    async def _(ctx: Context) -> None:
        a, b = await ctx.driver(), await ctx.driver()
        limit = 3 * permits - 1
        first = ctx.claim(mode="shared", limit=limit, permits=permits)
        token = (await must_grant(a, first)).fencing_token
        await must_grant(b, ctx.claim(mode="shared", limit=limit, permits=permits))
        await must_refuse(a, ctx.claim(mode="shared", limit=limit, permits=permits))
        await must_refuse(a, ctx.claim(mode="shared", limit=2 * permits))
        await release_one(a, first, token)
        await must_grant(a, ctx.claim(mode="shared", limit=limit, permits=permits))


for each in (256, 65_536):
    are_counted_exactly(each)


@case("rule 7: releasing one shared lease leaves the others")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    first, second = ctx.claim(mode="shared"), ctx.claim(mode="shared")
    grant = await must_grant(driver, first)
    await must_grant(driver, second)
    assert await release_one(driver, second, grant.fencing_token) is False, "another lease’s token"
    assert await release_one(driver, first, grant.fencing_token) is True
    assert (await lease_on(driver, ctx.lock_name)).claim_id == second.claim_id


@case("rule 5: a shared claim that asks again in its turn has one lease, and its release ends it")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()

    async def is_free() -> bool:
        return await leases_on(a, ctx.lock_name) == []

    for _ in range(20):
        writer, reader = ctx.claim(), ctx.claim(mode="shared", waiter_ttl_ms=LONG_MS)
        token = (await until_granted(a, writer)).fencing_token
        assert isinstance(await acquire_one(b, reader), Refusal)
        # Both at once: the store decides which comes first.
        await asyncio.gather(release_one(a, writer, token), acquire_one(b, reader))
        grant = await until_granted(b, reader)
        assert await release_one(b, reader, grant.fencing_token) is True
        await until("the lock to be free", is_free)


@case("a shared lease expires alone, and the others remain", needs=["ttl"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    lasting = ctx.claim(mode="shared")
    await must_grant(a, lasting)
    await must_grant(b, ctx.claim(mode="shared", ttl_ms=SHORT_MS))
    await outlast(SHORT_MS)
    assert (await lease_on(b, ctx.lock_name)).claim_id == lasting.claim_id


@case("failure 64: permits that have expired and are asked for again count once", needs=["limit", "ttl"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    limit = 700
    claims = [ctx.claim(mode="shared", limit=limit) for _ in range(limit)]
    brief = [replace(claim, ttl_ms=SHORT_MS) for claim in claims]
    assert all(isinstance(answer, Grant) for answer in await driver.acquire(brief))
    await outlast(SHORT_MS)
    again = await driver.acquire(claims)
    assert sum(isinstance(answer, Grant) for answer in again) == limit
    await must_refuse(driver, ctx.claim(mode="shared", limit=limit))
    await driver.release([ref_of(claim) for claim in claims])
    await must_grant(driver, ctx.claim())


@case("a limit of n admits n and refuses the next, across processes", needs=["limit"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    first = ctx.claim(mode="shared", limit=3)
    token = (await must_grant(a, first)).fencing_token
    await must_grant(b, ctx.claim(mode="shared", limit=3))
    await must_grant(a, ctx.claim(mode="shared", limit=3))
    next = ctx.claim(mode="shared", limit=3)
    await must_refuse(b, next)
    await release_one(a, first, token)
    await must_grant(b, next)


@case("a permit that becomes free goes to one waiter, and the next one waits on", needs=["limit", "queue"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    first, second = ctx.claim(mode="shared", limit=2), ctx.claim(mode="shared", limit=2)
    of_first, of_second = await must_grant(a, first), await must_grant(a, second)
    early, late = (ctx.claim(mode="shared", limit=2, waiter_ttl_ms=LONG_MS) for _ in range(2))
    await must_refuse(b, early)
    await must_refuse(b, late)
    await release_one(a, first, of_first.fencing_token)
    await until_granted(b, early)
    await must_refuse(b, late)
    assert len(await leases_on(a, ctx.lock_name)) == 2
    await release_one(a, second, of_second.fencing_token)
    await until_granted(b, late)


@case("a claim takes as many permits as it asks for", needs=["limit"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim(mode="shared", limit=5, permits=3))
    await must_refuse(driver, ctx.claim(mode="shared", limit=5, permits=3))
    await must_grant(driver, ctx.claim(mode="shared", limit=5, permits=2))
    await must_refuse(driver, ctx.claim(mode="shared", limit=5, permits=1))


@case("rule 5: asking again takes no second permit", needs=["limit"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim = ctx.claim(mode="shared", limit=2)
    await must_grant(driver, claim)
    await must_grant(driver, claim)
    await must_grant(driver, ctx.claim(mode="shared", limit=2))


@case("a claim is judged by its own limit, not by the limits of others", needs=["limit"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    for _ in range(3):
        await must_grant(a, ctx.claim(mode="shared", limit=3))
    await must_refuse(b, ctx.claim(mode="shared", limit=2))
    await must_refuse(b, ctx.claim(mode="shared", limit=3))
    await must_grant(b, ctx.claim(mode="shared", limit=4))
    await must_grant(b, ctx.claim(mode="shared"))
    await must_refuse(b, ctx.claim(mode="shared", limit=5))


@case("fault: a semaphore’s permits are never ended by another caller’s time to live", needs=["limit"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    lasting = ctx.claim(mode="shared", limit=1)
    await must_grant(a, lasting)
    hasty = ctx.claim(mode="shared", limit=1, ttl_ms=50)
    await must_refuse(b, hasty)
    await outlast(50)
    await must_refuse(b, hasty)
    assert (await lease_on(b, ctx.lock_name)).claim_id == lasting.claim_id


@case("the permit of a dead holder becomes free again", needs=["limit"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    await must_grant(a, ctx.claim(mode="shared", limit=1, ttl_ms=SHORT_MS))
    await ctx.lease_ends(a, SHORT_MS)
    await must_grant(b, ctx.claim(mode="shared", limit=1))
