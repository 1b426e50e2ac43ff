"""acquire, renew and release of one exclusive lease."""

from __future__ import annotations

import math

import pytest

from holdfast.core.driver import InspectQuery

from ..context import Context
from ..driver_calls import (
    acquire_one,
    assert_untouched,
    lease_on,
    leases_on,
    must_grant,
    must_refuse,
    ref_of,
    release_one,
    renew_one,
    renewal_of,
)
from ..suite import Group
from ..timing import LONG_MS, SHORT_MS

leases = Group("driver interface: leases")
case = leases.case


@case("a free lock is granted, for the time that was asked for")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    grant = await must_grant(driver, ctx.claim())
    assert grant.ttl_ms == LONG_MS
    assert math.isfinite(grant.acquired_at_ms)


@case("a held lock is refused to another process, and the refusal says who holds it")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim = ctx.claim()
    grant = await must_grant(a, claim)
    holder = (await must_refuse(b, ctx.claim())).holder
    assert holder is not None
    assert holder.lock_name == claim.lock_name
    assert holder.claim_id == claim.claim_id
    assert holder.holder_id == claim.holder_id
    assert holder.mode == "exclusive"
    assert holder.fencing_token == grant.fencing_token


@case("two claims of one driver exclude each other, even of one holder")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim(holder_id="one and the same"))
    await must_refuse(driver, ctx.claim(holder_id="one and the same"))


@case("a lock that was released is granted to the next")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim = ctx.claim()
    grant = await must_grant(a, claim)
    assert await release_one(a, claim, grant.fencing_token) is True
    await must_grant(b, ctx.claim())


@case("different lock names do not affect each other")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim())
    await must_grant(driver, ctx.claim(lock_name=ctx.name("other")))


@case("rule 5: asking again with the same claim returns the same lease and token")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim = ctx.claim()
    first = await must_grant(driver, claim)
    second = await must_grant(driver, claim)
    assert second.fencing_token == first.fencing_token
    assert second.acquired_at_ms == first.acquired_at_ms
    assert len(await leases_on(driver, claim.lock_name)) == 1


@case("rule 5: asking again over another connection is also granted, and leaves one lease", needs=["ttl"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim = ctx.claim()
    first = await must_grant(a, claim)
    second = await must_grant(b, claim)
    assert (await lease_on(b, claim.lock_name)).fencing_token == second.fencing_token
    if second.fencing_token == first.fencing_token:
        assert second.acquired_at_ms == first.acquired_at_ms
        return
    # A driver that cannot know whether the first lease is being released may replace it. Then the first lease has
    # ended, and the second has a higher token.
    assert second.fencing_token > first.fencing_token
    assert await renew_one(a, claim, first.fencing_token, LONG_MS) == "lost"


@case("rule 7: a release with a smaller or larger token answers no and leaves the lease", needs=["fencing"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim = ctx.claim()
    token = (await must_grant(driver, claim)).fencing_token
    assert await release_one(driver, claim, token - 1) is False
    assert await release_one(driver, claim, token + 1) is False
    assert (await lease_on(driver, claim.lock_name)).claim_id == claim.claim_id


@case("rule 7: a release by another claim answers no and leaves the lease, token or not")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim, rival = ctx.claim(), ctx.claim()
    token = (await must_grant(a, claim)).fencing_token
    for driver in (a, b):
        assert await release_one(driver, rival, token) is False
        assert await release_one(driver, rival) is False
    assert (await lease_on(b, claim.lock_name)).claim_id == claim.claim_id


@case("rule 7: a renewal with the wrong token or claim answers lost and moves nothing")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim, rival = ctx.claim(), ctx.claim()
    token = (await must_grant(driver, claim)).fencing_token
    before = await lease_on(driver, claim.lock_name)
    if ctx.capabilities.fencing:
        assert await renew_one(driver, claim, token + 1, SHORT_MS) == "lost"
    assert await renew_one(driver, rival, token, SHORT_MS) == "lost"
    await assert_untouched(driver, before)


@case("a lease that was released is neither released nor renewed again")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim = ctx.claim()
    token = (await must_grant(driver, claim)).fencing_token
    assert await release_one(driver, claim, token) is True
    assert await release_one(driver, claim, token) is False
    assert await renew_one(driver, claim, token, LONG_MS) == "lost"
    assert await leases_on(driver, claim.lock_name) == []


@case("a lease that is held is renewed")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim = ctx.claim()
    token = (await must_grant(driver, claim)).fencing_token
    renewed = "held" if ctx.capabilities.expiry == "session" else "renewed"
    assert await renew_one(driver, claim, token, LONG_MS) == renewed
    await must_refuse(await ctx.driver(), ctx.claim())


@case("rule 7, failure 12: releasing an ended lease answers no and leaves a rival’s lease")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    stale, rival = ctx.claim(ttl_ms=SHORT_MS), ctx.claim()
    token = (await must_grant(a, stale)).fencing_token
    await ctx.lease_ends(a, SHORT_MS)
    assert await release_one(a, stale, token) is False, "no client released it, and it had ended"
    await must_grant(b, rival)
    before = await lease_on(b, rival.lock_name)
    assert await release_one(a, stale, token) is False
    assert await release_one(a, stale) is False
    await assert_untouched(b, before)


@case("rule 7, failure 13: renewing an ended lease answers lost and re-creates nothing")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    stale, rival = ctx.claim(ttl_ms=SHORT_MS), ctx.claim()
    token = (await must_grant(a, stale)).fencing_token
    await ctx.lease_ends(a, SHORT_MS)
    assert await renew_one(a, stale, token, LONG_MS) == "lost"
    assert await leases_on(b, stale.lock_name) == []
    await must_grant(b, rival)
    before = await lease_on(b, rival.lock_name)
    assert await renew_one(a, stale, token, LONG_MS) == "lost"
    await assert_untouched(b, before)


@case("fault: after an expiry takeover the new holder can release, and the stale one cannot")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    stale, rival = ctx.claim(ttl_ms=SHORT_MS), ctx.claim()
    old = await must_grant(a, stale)
    await ctx.lease_ends(a, SHORT_MS)
    token = (await must_grant(b, rival)).fencing_token
    assert await release_one(a, stale, old.fencing_token) is False
    assert await release_one(b, rival, token) is True


@case("rule 6: a release without a token withdraws a grant whose answer was never seen")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim = ctx.claim()
    await acquire_one(a, claim)
    assert await release_one(a, claim) is True
    assert await release_one(a, claim) is False
    await must_grant(b, ctx.claim())


@case("a claim that was withdrawn may be made again, and is a new lease")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim = ctx.claim()
    first = await must_grant(driver, claim)
    await release_one(driver, claim)
    second = await must_grant(driver, claim)
    if ctx.capabilities.fencing:
        assert second.fencing_token > first.fencing_token
    assert len(await leases_on(driver, claim.lock_name)) == 1


@case("rule 1: grant, refusal and inspect report the same time of acquisition")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    acquired_at_ms = (await must_grant(a, ctx.claim())).acquired_at_ms
    holder = (await must_refuse(b, ctx.claim())).holder
    assert holder is not None and holder.acquired_at_ms == acquired_at_ms
    assert (await lease_on(b, ctx.lock_name)).acquired_at_ms == acquired_at_ms


@case("after close every call rejects")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim = ctx.claim()
    token = (await must_grant(driver, claim)).fencing_token
    await driver.close()
    with pytest.raises(Exception):
        await driver.acquire([ctx.claim()])
    with pytest.raises(Exception):
        await driver.renew([renewal_of(claim, token, LONG_MS)])
    with pytest.raises(Exception):
        await driver.release([ref_of(claim, token)])
    with pytest.raises(Exception):
        await driver.inspect(InspectQuery(lock_name=claim.lock_name))


@case("closing a driver leaves its leases as they are", needs=["ttl"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim = ctx.claim()
    await must_grant(a, claim)
    await a.close()
    holder = (await must_refuse(b, ctx.claim())).holder
    assert holder is not None and holder.claim_id == claim.claim_id
