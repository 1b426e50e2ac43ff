"""Rule 8: tokens rise strictly for a lock name, atomically with the grant."""

from __future__ import annotations

import asyncio
from typing import List

from holdfast.core.driver import Driver

from ..context import Context
from ..driver_calls import lease_on, must_grant, release_one, renew_one, until_granted
from ..suite import Group
from ..timing import LONG_MS, SHORT_MS, outlast

tokens = Group("driver interface: fencing tokens", needs=["fencing"])
case = tokens.case

LARGEST_TOKEN = 2**53 - 1
"""Node clients keep tokens in a double."""


@case("rule 8: a token is a positive safe integer, the same in grant and inspect")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    token = (await must_grant(driver, ctx.claim())).fencing_token
    assert type(token) is int and 0 < token <= LARGEST_TOKEN
    assert (await lease_on(driver, ctx.lock_name)).fencing_token == token


@case("rule 8: tokens rise over releases, whichever process is granted")
async def _(ctx: Context) -> None:
    drivers = [await ctx.driver(), await ctx.driver()]
    last = 0
    for round in range(20):
        driver, claim = drivers[round % 2], ctx.claim()
        token = (await must_grant(driver, claim)).fencing_token
        assert token > last
        last = token
        await release_one(driver, claim, token)


@case("rule 8: a token is higher after the lease before it ended by itself")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    first = await must_grant(a, ctx.claim(ttl_ms=SHORT_MS))
    await ctx.lease_ends(a, SHORT_MS)
    second = await until_granted(b, ctx.claim())
    assert second.fencing_token > first.fencing_token


@case("rule 8: a token is higher after an unseen grant was withdrawn")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim = ctx.claim()
    unseen = await must_grant(a, claim)
    await release_one(a, claim)
    assert (await must_grant(b, ctx.claim())).fencing_token > unseen.fencing_token


@case("rule 8: a token is higher after a name was idle for a second")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim = ctx.claim()
    token = (await must_grant(a, claim)).fencing_token
    await release_one(a, claim, token)
    await outlast(1_100)  # so that a store has forgotten the idle name
    assert (await must_grant(b, ctx.claim())).fencing_token > token


@case("a renewal leaves the token as it is")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim = ctx.claim()
    token = (await must_grant(driver, claim)).fencing_token
    await renew_one(driver, claim, token, LONG_MS)
    assert (await lease_on(driver, ctx.lock_name)).fencing_token == token


@case("rule 8: shared leases of one name have rising tokens of their own", needs=["shared"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    first = await must_grant(a, ctx.claim(mode="shared"))
    second = await must_grant(b, ctx.claim(mode="shared"))
    assert second.fencing_token > first.fencing_token


@case("fault: processes that race for a lock hold it in the order of their tokens")
async def _(ctx: Context) -> None:
    drivers = [await ctx.driver() for _ in range(3)]
    seen: List[int] = []

    async def race(driver: Driver) -> None:
        for _ in range(10):
            claim = ctx.claim()
            token = (await until_granted(driver, claim)).fencing_token
            seen.append(token)  # while the lock is held, so in the order of holding
            await release_one(driver, claim, token)

    await asyncio.gather(*(race(driver) for driver in drivers))
    assert len(seen) == 30
    assert seen == sorted(set(seen))
