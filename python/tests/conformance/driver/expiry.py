"""The store ends a lease when its time to live is over by the store's own clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Awaitable, Callable, List

from holdfast.core.driver import Claim, Driver, Grant, Mode
from holdfast.errors import InvalidArgumentError

from ..client_clock import client_clock_ahead
from ..context import Context
from ..driver_calls import (
    acquire_one,
    assert_untouched,
    granted,
    lease_on,
    leases_on,
    must_grant,
    must_refuse,
    release_one,
    renew_one,
    until_granted,
)
from ..suite import Group
from ..timing import LONG_MS, SHORT_MS, at_least, before_it_ends, monotonic_ms, outlast, sleep_ms

expiry = Group("driver interface: expiry", needs=["ttl"])
case = expiry.case

LONG_TTLS = [("an hour", 3_600_000), ("40 days", 40 * 86_400_000)]
"""Above a minute, and above what a timer of 2^31 ms or a 32-bit number of milliseconds can hold."""

STALLED_MS = 60_000
"""How long a case may stall between two steps."""


@case("fault: a lease ends when its time to live is over, with no tolerance before or after")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    rival = ctx.claim()
    sent_ms = monotonic_ms()
    await must_grant(a, ctx.claim(ttl_ms=SHORT_MS))
    answered_ms = monotonic_ms()
    while True:
        asked_ms = monotonic_ms()
        if isinstance(await acquire_one(b, rival), Grant):
            break
        # The TTL began before the answer came. A request that is sent later than this must not be refused.
        assert asked_ms - answered_ms <= SHORT_MS * 1.01 + 5, "the lease outlived its time to live"
        await sleep_ms(2)
    assert monotonic_ms() - sent_ms >= at_least(SHORT_MS), "the lease ended before its time"


@case("rule 1: the end of a lease is its beginning plus its time to live, on one clock")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim())
    lease = await lease_on(driver, ctx.lock_name)
    assert lease.expires_at_ms is not None
    assert abs(lease.expires_at_ms - lease.acquired_at_ms - LONG_MS) <= 5


Longer = Callable[[Driver, Claim], Awaitable[None]]


def lasts_longer(mode: Mode, how: str, longer: Longer) -> None:
    title = f"{mode}: a lease that was {how} for longer lasts longer, also when rivals have asked"

    @case(title, needs=["shared"] if mode == "shared" else [])
    async def _(ctx: Context) -> None:
        a, b = await ctx.driver(), await ctx.driver()

        def rival(ttl_ms: float) -> Claim:
            return ctx.claim(lock_name=ctx.name(ttl_ms))

        async def steps(ttl_ms: float) -> None:
            claim = ctx.claim(lock_name=ctx.name(ttl_ms), mode=mode, ttl_ms=ttl_ms)
            await must_grant(a, claim)
            await must_refuse(b, rival(ttl_ms))
            await longer(a, claim)

        first_ms = await before_it_ends(steps)
        await must_refuse(b, rival(first_ms))
        await outlast(first_ms)
        await must_refuse(b, rival(first_ms))


async def renewed(driver: Driver, claim: Claim) -> None:
    token = (await lease_on(driver, claim.lock_name)).fencing_token
    assert await renew_one(driver, claim, token, LONG_MS) == "renewed"


async def asked_for_again(driver: Driver, claim: Claim) -> None:
    await must_grant(driver, replace(claim, ttl_ms=LONG_MS))


modes: List[Mode] = ["exclusive", "shared"]
for each_mode in modes:
    lasts_longer(each_mode, "renewed", renewed)
    lasts_longer(each_mode, "asked for again", asked_for_again)


def is_kept_for(what: str, ttl_ms: float) -> None:
    @case(f"a lease of {what} is kept for {what}, or refused by the driver's own bound")
    async def _(ctx: Context) -> None:
        a, b = await ctx.driver(), await ctx.driver()
        claim = ctx.claim(ttl_ms=ttl_ms)
        [answer] = await a.acquire([claim])
        if isinstance(answer, InvalidArgumentError):
            return
        token = (await must_grant(a, claim)).fencing_token
        await must_refuse(b, ctx.claim())

        async def ends_in_ms() -> float:
            lease = await lease_on(b, ctx.lock_name)
            return (lease.expires_at_ms or 0) - lease.acquired_at_ms

        assert ttl_ms - 5 <= await ends_in_ms() < ttl_ms + STALLED_MS
        assert await renew_one(a, claim, token, LONG_MS) == "renewed"
        assert await renew_one(a, claim, token, ttl_ms) == "renewed"
        await must_refuse(b, ctx.claim())
        assert ttl_ms - 5 <= await ends_in_ms() < ttl_ms + STALLED_MS


for each_what, each_ttl_ms in LONG_TTLS:
    is_kept_for(each_what, each_ttl_ms)


@case("rule 1, failure 6: a client whose clock is 11 s ahead ends no other lease", needs=["own_clock"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim = ctx.claim(ttl_ms=10_000)
    token = (await must_grant(a, claim)).fencing_token
    rivals = [ctx.claim()]
    if ctx.capabilities.shared:
        rivals.append(ctx.claim(mode="shared"))
    if ctx.capabilities.limit:
        rivals.append(ctx.claim(mode="shared", limit=1))
    with client_clock_ahead(11_000):
        for rival in rivals:
            await must_refuse(b, rival)
    assert await renew_one(a, claim, token, LONG_MS) == "renewed"


@case(
    "rule 1, failure 6: a lease taken by a client whose clock is 11 s behind does not end early", needs=["own_clock"]
)
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    with client_clock_ahead(-11_000):
        await must_grant(a, ctx.claim(ttl_ms=10_000))
    await must_refuse(b, ctx.claim())


@case("rule 5: asking again starts the time to live anew")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim = ctx.claim()
    await must_grant(driver, claim)
    before = await lease_on(driver, ctx.lock_name)
    await sleep_ms(50)  # so that the two ends differ visibly
    await must_grant(driver, claim)
    after = await lease_on(driver, ctx.lock_name)
    assert (after.expires_at_ms or 0) - (before.expires_at_ms or 0) >= at_least(40)
    assert after.acquired_at_ms == before.acquired_at_ms


@case("rule 5: asking again with a shorter time to live shortens the lease")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim = ctx.claim()
    first = await must_grant(a, claim)
    again = await must_grant(a, replace(claim, ttl_ms=SHORT_MS))
    assert again.fencing_token == first.fencing_token
    await outlast(SHORT_MS)
    await must_grant(b, ctx.claim())


@case("a renewal moves the end later")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim = ctx.claim(ttl_ms=10_000)
    token = (await must_grant(driver, claim)).fencing_token
    before = await lease_on(driver, ctx.lock_name)
    assert await renew_one(driver, claim, token, 30_000) == "renewed"
    after = await lease_on(driver, ctx.lock_name)
    # The renewal came after the grant, so it moved the end by at least the difference. A stalled case may add 10 s.
    moved_ms = (after.expires_at_ms or 0) - (before.expires_at_ms or 0)
    assert at_least(20_000) <= moved_ms < 30_000
    assert replace(after, expires_at_ms=None) == replace(before, expires_at_ms=None)


@case("a renewal moves the end sooner")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim = ctx.claim()
    token = (await must_grant(a, claim)).fencing_token
    assert await renew_one(a, claim, token, SHORT_MS) == "renewed"
    await outlast(SHORT_MS)
    await must_grant(b, ctx.claim())


@case("a renewed lease outlives the time to live that it was granted with")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim, token = ctx.claim(), 0

    async def steps(ttl_ms: float) -> None:
        nonlocal claim, token
        claim = ctx.claim(lock_name=ctx.name(ttl_ms), ttl_ms=ttl_ms)
        token = (await must_grant(a, claim)).fencing_token
        assert await renew_one(a, claim, token, LONG_MS) == "renewed"

    await outlast(await before_it_ends(steps))
    await must_refuse(b, ctx.claim(lock_name=claim.lock_name))
    assert await release_one(a, claim, token) is True


@case("fault: a rival’s shorter time to live does not end the lease that it asks for")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    await must_grant(a, ctx.claim())
    before = await lease_on(a, ctx.lock_name)
    rival = ctx.claim(ttl_ms=50)
    await must_refuse(b, rival)
    await outlast(50)
    await must_refuse(b, rival)
    await assert_untouched(a, before)


@case("a lease that has expired is no longer shown")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim(ttl_ms=SHORT_MS))
    await outlast(SHORT_MS)
    assert await leases_on(driver, ctx.lock_name) == []


@case("fault: of two processes that race for an expired lease, at most one gets it")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    for round in range(8):
        name = ctx.name(round)
        await must_grant(a, ctx.claim(lock_name=name, ttl_ms=50))
        await outlast(50)
        of_a, of_b = await asyncio.gather(
            a.acquire([ctx.claim(lock_name=name)]), b.acquire([ctx.claim(lock_name=name)])
        )
        assert sum(granted([*of_a, *of_b])) <= 1, "both got it"


@case("a claim that asks again after its own lease ran out gets a new one, with a new beginning")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim = ctx.claim(ttl_ms=SHORT_MS)
    first = await must_grant(driver, claim)
    await outlast(SHORT_MS)
    second = await until_granted(driver, claim)
    assert second.acquired_at_ms > first.acquired_at_ms
    if ctx.capabilities.fencing:
        assert second.fencing_token > first.fencing_token
