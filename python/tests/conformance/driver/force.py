"""A claim with `force_up_to` ends the leases on its name and is granted before all waiters, in one step."""

from __future__ import annotations

from typing import List

from holdfast.core.driver import ANY_TOKEN, Driver, Grant, Mode

from ..context import Context
from ..driver_calls import (
    granted,
    lease_on,
    leases_on,
    must_grant,
    must_refuse,
    release_one,
    renew_one,
    waiters_on,
)
from ..heard import listen_on
from ..suite import Group
from ..timing import LONG_MS, until

force = Group("driver interface: claims with force", needs=["force_up_to"])
case = force.case


@case("a lock that is held is granted at once to a claim with force, with a higher token")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder, taker = ctx.claim(), ctx.claim(force_up_to=ANY_TOKEN)
    held = await must_grant(a, holder)
    taken = await must_grant(b, taker)
    if ctx.capabilities.fencing:
        assert taken.fencing_token > held.fencing_token
    lease = await lease_on(a, ctx.lock_name)
    assert lease.claim_id == taker.claim_id
    assert lease.holder_id == taker.holder_id
    assert lease.fencing_token == taken.fencing_token


@case("a claim with forceUpTo is refused if there is a newer lease", needs=["fencing"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    older, newer = ctx.claim(), ctx.claim()
    of_older = (await must_grant(a, older)).fencing_token
    await release_one(a, older, of_older)
    of_newer = (await must_grant(a, newer)).fencing_token
    await must_refuse(b, ctx.claim(force_up_to=of_older, waiter_ttl_ms=LONG_MS))
    assert await renew_one(a, newer, of_newer, LONG_MS) == "renewed"
    if ctx.capabilities.queue:
        assert await waiting_on(b, ctx.lock_name) == []
    await must_grant(b, ctx.claim(force_up_to=of_newer))
    assert await renew_one(a, newer, of_newer, LONG_MS) == "lost"


@case("one newer shared lease protects all shared leases of the name", needs=["fencing", "shared"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    first = (await must_grant(a, ctx.claim(mode="shared"))).fencing_token
    second = (await must_grant(a, ctx.claim(mode="shared"))).fencing_token
    await must_refuse(b, ctx.claim(force_up_to=first))
    assert len(await leases_on(b, ctx.lock_name)) == 2
    taken = await must_grant(b, ctx.claim(force_up_to=second))
    assert [lease.fencing_token for lease in await leases_on(b, ctx.lock_name)] == [taken.fencing_token]


@case("a free lock is granted to a claim with force as to any claim")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    taker = ctx.claim(force_up_to=ANY_TOKEN, waiter_ttl_ms=LONG_MS)
    token = (await must_grant(driver, taker)).fencing_token
    assert await release_one(driver, taker, token) is True
    assert await leases_on(driver, ctx.lock_name) == []


@case("rule 7: the old holder’s renewal and release answer no, and leave the new holder’s lease")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder, taker = ctx.claim(), ctx.claim(force_up_to=ANY_TOKEN)
    held = await must_grant(a, holder)
    taken = await must_grant(b, taker)
    assert await renew_one(a, holder, held.fencing_token, LONG_MS) == "lost"
    assert await release_one(a, holder, held.fencing_token) is False
    assert await release_one(a, holder) is False
    assert await renew_one(b, taker, taken.fencing_token, LONG_MS) == "renewed"
    assert await release_one(b, taker, taken.fencing_token) is True


@case("rule 10: waiters keep their places, and are served in turn after the new holder", needs=["queue"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    taker = ctx.claim(force_up_to=ANY_TOKEN, waiter_ttl_ms=LONG_MS)
    line = [ctx.claim(waiter_ttl_ms=LONG_MS), ctx.claim(waiter_ttl_ms=LONG_MS)]
    await must_grant(a, ctx.claim())
    for waiter in line:
        await must_refuse(b, waiter)
    token = (await must_grant(a, taker)).fencing_token
    assert await waiting_on(a, ctx.lock_name) == [waiter.claim_id for waiter in line]
    for waiter in line:
        await must_refuse(b, waiter)
    last = a, taker
    for waiter in line:
        await release_one(*last, token)
        token = (await must_grant(b, waiter)).fencing_token
        last = b, waiter


@case("a lock that is free for its first waiter can be taken by force before that waiter asks", needs=["queue"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder, waiter = ctx.claim(), ctx.claim(waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    await must_refuse(b, waiter)
    await release_one(a, holder, token)
    taker = ctx.claim(force_up_to=ANY_TOKEN)
    await must_grant(a, taker)
    assert (await lease_on(a, ctx.lock_name)).claim_id == taker.claim_id


def is_woken(mode: Mode) -> None:
    @case(
        f"rule 10: the first waiter of {mode} leases is woken by a forced release, because the new lease may end "
        "sooner",
        needs=["queue", "wake", "shared", "ttl"],
    )
    async def _(ctx: Context) -> None:
        a, b = await ctx.driver(), await ctx.driver()
        waiter = ctx.claim(waiter_ttl_ms=LONG_MS)
        await must_grant(a, ctx.claim(mode=mode))
        heard = await listen_on(b)
        before = await must_refuse(b, waiter)
        await must_grant(a, ctx.claim(force_up_to=ANY_TOKEN, ttl_ms=LONG_MS / 2))
        await until("a wake-up", lambda: heard.tells_of(waiter))
        after = await must_refuse(b, waiter)
        assert before.ask_again_ms is not None and after.ask_again_ms is not None
        assert after.ask_again_ms < before.ask_again_ms


is_woken("exclusive")
is_woken("shared")


@case("a forced release ends every shared lease", needs=["shared"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    readers = [ctx.claim(mode="shared"), ctx.claim(mode="shared")]
    tokens = [(await must_grant(a, reader)).fencing_token for reader in readers]
    taker = ctx.claim(force_up_to=ANY_TOKEN)
    taken = await must_grant(b, taker)
    assert (await lease_on(a, ctx.lock_name)).claim_id == taker.claim_id
    for reader, token in zip(readers, tokens):
        assert await renew_one(a, reader, token, LONG_MS) == "lost"
        assert await release_one(a, reader, token) is False
    await must_refuse(a, ctx.claim(mode="shared"))
    await release_one(b, taker, taken.fencing_token)
    await must_grant(a, ctx.claim(mode="shared"))
    await must_grant(b, ctx.claim(mode="shared"))


@case("rule 5: a claim with force that asks again gets the same lease, and ends no other")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    taker = ctx.claim(force_up_to=ANY_TOKEN)
    await must_grant(driver, ctx.claim())
    first = await must_grant(driver, taker)
    assert (await must_grant(driver, taker)).fencing_token == first.fencing_token
    assert await release_one(driver, taker) is True
    assert await leases_on(driver, ctx.lock_name) == []


@case("of two claims with force the last one holds the lock")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    first, second = ctx.claim(force_up_to=ANY_TOKEN), ctx.claim(force_up_to=ANY_TOKEN)
    lost = await must_grant(a, first)
    won = await must_grant(b, second)
    if ctx.capabilities.fencing:
        assert won.fencing_token > lost.fencing_token
    assert await renew_one(a, first, lost.fencing_token, LONG_MS) == "lost"
    assert (await lease_on(a, ctx.lock_name)).claim_id == second.claim_id


@case("a list of a holder, a waiter and a claim with force is taken in its order")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    wait_ms = LONG_MS if ctx.capabilities.queue else 0
    holder, waiter = ctx.claim(waiter_ttl_ms=wait_ms), ctx.claim(waiter_ttl_ms=wait_ms)
    taker, other = ctx.claim(force_up_to=ANY_TOKEN, waiter_ttl_ms=wait_ms), ctx.claim(lock_name=ctx.name("other"))
    answers = await driver.acquire([holder, waiter, taker, other])
    assert granted(answers) == [True, False, True, True]
    held = answers[0]
    assert isinstance(held, Grant)
    assert await renew_one(driver, holder, held.fencing_token, LONG_MS) == "lost"
    assert (await lease_on(driver, ctx.lock_name)).claim_id == taker.claim_id
    if ctx.capabilities.queue:
        assert await waiting_on(driver, ctx.lock_name) == [waiter.claim_id]


@case("the metadata of a claim with force is stored", needs=["metadata"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim(metadata={"of": "the holder"}))
    await must_grant(driver, ctx.claim(force_up_to=ANY_TOKEN, metadata={"by": "an operator"}))
    assert (await lease_on(driver, ctx.lock_name)).metadata == {"by": "an operator"}


async def waiting_on(driver: Driver, lock_name: str) -> List[str]:
    return [waiter.claim_id for waiter in await waiters_on(driver, lock_name)]
