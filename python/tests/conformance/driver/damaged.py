"""A store that lost its data, or whose clock was set. Each case has a store of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Sequence, Tuple

from holdfast.core.driver import ANY_TOKEN, Mode, RateAnswer, RateLimit, RateRequest

from ..context import Context
from ..driver_calls import (
    consume_one,
    lease_on,
    must_grant,
    must_refuse,
    release_one,
    renew_one,
    until_granted,
    waiters_on,
)
from ..rate_requests import HOUR_MS, request_on
from ..suite import Group
from ..timing import LONG_MS, SHORT_MS, monotonic_ms, outlast

damaged = Group("driver interface: a damaged store", own_store=True)
case = damaged.case


@case("rule 8, failure 18: the next token is higher after the store lost its data", needs=["fencing"])
async def _(ctx: Context) -> None:
    before = await must_grant(await ctx.driver(), ctx.claim())
    await ctx.lose_data()
    after = await until_granted(await ctx.driver(), ctx.claim())
    assert after.fencing_token > before.fencing_token


@case("a lease that the store has forgotten is lost, and cannot touch its successor", needs=["ttl"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim, rival = ctx.claim(), ctx.claim()
    token = (await must_grant(a, claim)).fencing_token
    await ctx.lose_data()
    assert await renew_one(a, claim, token, LONG_MS) == "lost"
    await until_granted(b, rival)
    assert await release_one(a, claim, token) is False
    assert (await lease_on(b, ctx.lock_name)).claim_id == rival.claim_id


@case(
    "rule 8, failure 5: tokens rise from waiter to waiter although the store’s clock steps back",
    needs=["fencing", "queue"],
)
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    last = ctx.claim()
    waiters = [ctx.claim(waiter_ttl_ms=LONG_MS) for _ in range(3)]
    token = (await must_grant(driver, last)).fencing_token
    for waiter in waiters:
        await must_refuse(driver, waiter)
    await ctx.step_clock(-HOUR_MS)
    for waiter in waiters:
        await release_one(driver, last, token)
        next = await until_granted(driver, waiter)
        assert next.fencing_token > token
        last, token = waiter, next.fencing_token


def tokens_rise(what: str, terms: Dict[str, Any], needs: Sequence[str]) -> None:
    @case(f"rule 8, failure 5: tokens{what} rise although the store’s clock steps back", needs=["fencing", *needs])
    async def _(ctx: Context) -> None:
        driver = await ctx.driver()
        last = 0
        for _ in range(3):
            claim = ctx.claim(**terms)
            token = (await must_grant(driver, claim)).fencing_token
            assert token > last
            last = token
            await release_one(driver, claim, token)
            await ctx.step_clock(-HOUR_MS)


# A store may have a fast path for a lock that is not shared, waited for or taken by force.
tokens_rise("", {}, [])
tokens_rise(" of shared leases", {"mode": "shared"}, ["shared"])
tokens_rise(" of claims with force", {"force_up_to": ANY_TOKEN}, ["force_up_to"])


@case("failure 4: when the store’s clock jumps forward, the next holder fences the first one off", needs=["ttl"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim, rival = ctx.claim(), ctx.claim()
    first = await must_grant(a, claim)
    await ctx.step_clock(HOUR_MS)
    second = await until_granted(b, rival)
    if ctx.capabilities.fencing:
        assert second.fencing_token > first.fencing_token
    assert await renew_one(a, claim, first.fencing_token, LONG_MS) == "lost"
    assert await release_one(a, claim, first.fencing_token) is False
    assert (await lease_on(b, ctx.lock_name)).claim_id == rival.claim_id


@case(
    "failure 43: a waiter that died while the store’s clock was ahead is passed over when its own time is up",
    needs=["queue"],
)
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder, alive = ctx.claim(), ctx.claim(waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    await must_refuse(b, ctx.claim(waiter_ttl_ms=SHORT_MS))
    await must_refuse(a, alive)
    await ctx.step_clock(-HOUR_MS)
    await release_one(a, holder, token)
    await until_granted(a, alive)


@case(
    "failure 43: a lease whose holder died while the store’s clock was ahead ends when its own time is up",
    needs=["ttl"],
)
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    await must_grant(a, ctx.claim(ttl_ms=SHORT_MS))
    await ctx.step_clock(-HOUR_MS)
    await until_granted(b, ctx.claim())


@case(
    "failure 43: a reader that died while the store’s clock was ahead blocks a writer no longer than its TTL",
    needs=["shared", "ttl"],
)
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    for _ in range(2):
        await must_grant(a, ctx.claim(mode="shared", ttl_ms=SHORT_MS))
    await ctx.step_clock(-HOUR_MS)
    await until_granted(b, ctx.claim())


# The place may have been taken before the clock was ahead.
@case(
    "failure 43: a waiter that died after asking again while the store’s clock was ahead is passed over in time",
    needs=["queue"],
)
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder, dead = ctx.claim(ttl_ms=2 * HOUR_MS), ctx.claim(waiter_ttl_ms=2 * HOUR_MS)
    token = (await must_grant(a, holder)).fencing_token
    await must_refuse(b, dead)
    await ctx.step_clock(HOUR_MS)
    await must_refuse(b, replace(dead, waiter_ttl_ms=SHORT_MS))
    await ctx.step_clock(-HOUR_MS)
    alive = ctx.claim(waiter_ttl_ms=LONG_MS)
    await must_refuse(a, alive)
    await release_one(a, holder, token)
    await until_granted(a, alive)


def renewed_ahead(kind: str, mode: Mode) -> None:
    @case(
        f"failure 43: {kind} lease that was renewed while the store’s clock was ahead ends when its TTL is over",
        needs=["ttl", "shared"] if mode == "shared" else ["ttl"],
    )
    async def _(ctx: Context) -> None:
        a, b = await ctx.driver(), await ctx.driver()
        holder = ctx.claim(mode=mode, ttl_ms=2 * HOUR_MS)
        token = (await must_grant(a, holder)).fencing_token
        await ctx.step_clock(HOUR_MS)
        assert await renew_one(a, holder, token, SHORT_MS) == "renewed"
        await ctx.step_clock(-HOUR_MS)
        await until_granted(b, ctx.claim())


renewed_ahead("an exclusive", "exclusive")
renewed_ahead("a shared", "shared")


@case(
    "failure 43: waiters that died while the store’s clock was ahead end together, not one after the other",
    needs=["queue"],
)
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder = ctx.claim()
    token = (await must_grant(a, holder)).fencing_token
    for _ in range(3):
        await must_refuse(b, ctx.claim(waiter_ttl_ms=SHORT_MS))
    await ctx.step_clock(-HOUR_MS)
    await release_one(a, holder, token)
    await must_refuse(a, ctx.claim())
    await outlast(SHORT_MS)
    # The first of them may have been granted the lock, for as long as its place lasted.
    await outlast(SHORT_MS)
    await must_grant(a, ctx.claim())


@case(
    "failure 43: a forced release is enough to end a waiter that died while the store’s clock was ahead",
    needs=["queue", "force_up_to"],
)
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim())
    await must_refuse(driver, ctx.claim(waiter_ttl_ms=SHORT_MS))
    await ctx.step_clock(-HOUR_MS)
    forced = ctx.claim(force_up_to=ANY_TOKEN)
    token = (await must_grant(driver, forced)).fencing_token
    await release_one(driver, forced, token)
    await outlast(SHORT_MS)
    assert await waiters_on(driver, ctx.lock_name) == []


@case("failure 43: a lease that is held while the store’s clock steps back is not ended early", needs=["ttl"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim = ctx.claim()
    token = (await must_grant(a, claim)).fencing_token
    await ctx.step_clock(-HOUR_MS)
    await must_refuse(b, ctx.claim())
    assert await renew_one(a, claim, token, LONG_MS) == "renewed"
    await must_refuse(b, ctx.claim())


@case("failure 5: a rate limit is not blocked for as long as the store’s clock stepped back", needs=["rate"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, RateLimit(limit=1, period_ms=60_000, burst=2))
    assert (await consume_one(driver, request)).allowed is True
    await ctx.step_clock(-HOUR_MS)
    answer = await consume_one(driver, request)
    assert answer.allowed is False, "a step back gives nothing back"
    assert answer.retry_after_ms <= 60_001
    assert answer.reset_after_ms <= 120_001


@case(
    "failure 5: after the store’s clock stepped back, a refused call succeeds when retryAfter has passed",
    needs=["rate"],
)
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    narrow = RateLimit(limit=10, period_ms=1_000, burst=2)
    # After the step its moment is still no further ahead than the burst reaches, so it must not be moved.
    wide = RateLimit(limit=1, period_ms=HOUR_MS, burst=100)

    async def refused_after_step(limits: List[RateLimit]) -> Tuple[RateRequest, RateAnswer]:
        """Repeats a round in which the machine was so slow that a unit may have been given back."""
        for attempt in range(20):
            name = ctx.name(f"{len(limits)} {limits.index(narrow)} {attempt}")
            request = request_on(name, *limits)
            started_ms = monotonic_ms()
            first = await consume_one(driver, replace(request, cost=2))
            await ctx.step_clock(-HOUR_MS)
            looked = await consume_one(driver, replace(request, cost=0))
            refused = await consume_one(driver, request)
            if monotonic_ms() - started_ms <= 90:
                break
        assert (first.remaining, looked.remaining) == (0, 0)
        assert refused.allowed is False, "a step back gives nothing back"
        return request, refused

    for limits in ([narrow], [narrow, wide], [wide, narrow]):
        request, refused = await refused_after_step(limits)
        assert refused.retry_after_ms <= 101
        await outlast(refused.retry_after_ms)
        assert (await consume_one(driver, request)).allowed is True
        await outlast(200)
        assert (await consume_one(driver, request)).remaining == 1, "a full burst after a rest"
