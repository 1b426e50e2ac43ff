"""Rule 10: waiters are woken. A hint is for one claim or for every claim on a name, or it is the grant itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Awaitable, Callable, List

from holdfast.core.driver import Claim, Driver, Mode

from ..context import Context
from ..driver_calls import must_grant, must_refuse, release_one, renew_one
from ..heard import listen_on
from ..suite import Group
from ..timing import LONG_MS, SHORT_MS, until

wake_ups = Group("driver interface: wake-ups", needs=["wake"])
case = wake_ups.case


@case("rule 10: a waiter is notified of a release by another process")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder, waiter = ctx.claim(), ctx.claim(waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    heard = await listen_on(b)
    await must_refuse(b, waiter)
    await release_one(a, holder, token)
    await until("a wake-up", lambda: heard.tells_of(waiter))
    await must_grant(b, waiter)


@case("a waiter is notified of a release by its own process")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    holder, waiter = ctx.claim(), ctx.claim(waiter_ttl_ms=LONG_MS)
    token = (await must_grant(driver, holder)).fencing_token
    heard = await listen_on(driver)
    await must_refuse(driver, waiter)
    await release_one(driver, holder, token)
    await until("a wake-up", lambda: heard.tells_of(waiter))


@case("failure 30: nothing that is released after listen has resolved is missed")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    for round in range(5):
        name = ctx.name(round)
        holder, waiter = ctx.claim(lock_name=name), ctx.claim(lock_name=name, waiter_ttl_ms=LONG_MS)
        token = (await must_grant(a, holder)).fencing_token
        await must_refuse(b, waiter)
        heard = await listen_on(b)
        await release_one(a, holder, token)
        await until("a wake-up", lambda: heard.tells_of(waiter))
        await heard.stop()


@case("the next waiter is notified when the first one gives up", needs=["queue"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder = ctx.claim()
    quitter, next = ctx.claim(waiter_ttl_ms=LONG_MS), ctx.claim(waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    await must_refuse(a, quitter)
    await must_refuse(b, next)
    await release_one(a, holder, token)
    heard = await listen_on(b)
    await release_one(a, quitter)
    await until("a wake-up", lambda: heard.tells_of(next))
    await must_grant(b, next)


@case("every reader that can be admitted is notified", needs=["queue", "shared"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    writer = ctx.claim()
    readers = [ctx.claim(mode="shared", waiter_ttl_ms=LONG_MS) for _ in range(3)]
    token = (await must_grant(a, writer)).fencing_token
    heard = await listen_on(b)
    for reader in readers:
        await must_refuse(b, reader)
    await release_one(a, writer, token)
    # A store may notify the next reader only after the one before it was granted.
    for reader in readers:
        await until("a wake-up", lambda: heard.tells_of(reader))
        await must_grant(b, reader)


@case("a grant in a notification is the one that asking again returns", needs=["queue"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder, waiter = ctx.claim(), ctx.claim(waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    heard = await listen_on(b)
    await must_refuse(b, waiter)
    await release_one(a, holder, token)
    await until("a wake-up", lambda: heard.tells_of(waiter))
    asked = await must_grant(b, waiter)
    told = heard.grants.get(waiter.claim_id)
    if told is not None:
        assert told.fencing_token == asked.fencing_token


@case("a listener that has stopped gets nothing more")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder, waiter = ctx.claim(), ctx.claim(waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    stopped = await listen_on(b)
    await stopped.stop()
    witness = await listen_on(b)
    await must_refuse(b, waiter)
    await release_one(a, holder, token)
    await until("a wake-up of the one that still listens", lambda: witness.tells_of(waiter))
    assert not stopped.tells_of(waiter)


Shorten = Callable[[Driver, Claim, int], Awaitable[None]]


def is_woken(mode: Mode, how: str, shorten: Shorten) -> None:
    @case(
        f"rule 10: the first waiter is woken when {how} lets the {mode} lease that it waits for end sooner",
        needs=["queue", "shared", "ttl"],
    )
    async def _(ctx: Context) -> None:
        a, b = await ctx.driver(), await ctx.driver()
        holder, waiter = ctx.claim(mode=mode), ctx.claim(waiter_ttl_ms=LONG_MS)
        token = (await must_grant(a, holder)).fencing_token
        heard = await listen_on(b)
        before = await must_refuse(b, waiter)
        await shorten(a, holder, token)
        await until("a wake-up", lambda: heard.tells_of(waiter))
        after = await must_refuse(b, waiter)
        assert before.ask_again_ms is not None and after.ask_again_ms is not None
        assert after.ask_again_ms < before.ask_again_ms


async def a_renewal(driver: Driver, claim: Claim, token: int) -> None:
    assert await renew_one(driver, claim, token, LONG_MS / 2) == "renewed"


async def asking_again(driver: Driver, claim: Claim, token: int) -> None:
    await must_grant(driver, replace(claim, ttl_ms=LONG_MS / 2))


modes: List[Mode] = ["exclusive", "shared"]
for each_mode in modes:
    is_woken(each_mode, "a renewal", a_renewal)
    is_woken(each_mode, "asking again", asking_again)


@case("rule 12: the end of a session is reported at once, for each of its leases", needs=["session"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claims = [ctx.claim(), ctx.claim(lock_name=ctx.name("other"))]
    heard = await listen_on(a)
    for claim in claims:
        await must_grant(a, claim)
    await ctx.lease_ends(a, SHORT_MS)
    for claim in claims:
        await until("the loss to be told", lambda: claim.claim_id in heard.losses)
    for claim in claims:
        await must_grant(b, ctx.claim(lock_name=claim.lock_name))
