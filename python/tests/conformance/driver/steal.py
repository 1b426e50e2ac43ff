"""A claim with `steal` ends every lease on its name and is granted before all waiters, in one step."""

from __future__ import annotations

from typing import List

from holdfast.core.driver import Driver, Grant, Mode

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

steal = Group("driver interface: stealing", needs=["steal"])
case = steal.case


@case("a lock that is held is granted to the thief at once, with a higher token")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder, thief = ctx.claim(), ctx.claim(steal=True)
    held = await must_grant(a, holder)
    stolen = await must_grant(b, thief)
    if ctx.capabilities.fencing:
        assert stolen.fencing_token > held.fencing_token
    lease = await lease_on(a, ctx.lock_name)
    assert lease.claim_id == thief.claim_id
    assert lease.holder_id == thief.holder_id
    assert lease.fencing_token == stolen.fencing_token


@case("a thief with stealUpTo is refused if there is a newer lease", needs=["fencing"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    older, newer = ctx.claim(), ctx.claim()
    of_older = (await must_grant(a, older)).fencing_token
    await release_one(a, older, of_older)
    of_newer = (await must_grant(a, newer)).fencing_token
    await must_refuse(b, ctx.claim(steal=True, steal_up_to=of_older, wait_ms=LONG_MS))
    assert await renew_one(a, newer, of_newer, LONG_MS) == "renewed"
    if ctx.capabilities.queue:
        assert await waiting_on(b, ctx.lock_name) == []
    await must_grant(b, ctx.claim(steal=True, steal_up_to=of_newer))
    assert await renew_one(a, newer, of_newer, LONG_MS) == "lost"


@case("one newer shared lease protects all shared leases of the name", needs=["fencing", "shared"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    first = (await must_grant(a, ctx.claim(mode="shared"))).fencing_token
    second = (await must_grant(a, ctx.claim(mode="shared"))).fencing_token
    await must_refuse(b, ctx.claim(steal=True, steal_up_to=first))
    assert len(await leases_on(b, ctx.lock_name)) == 2
    stolen = await must_grant(b, ctx.claim(steal=True, steal_up_to=second))
    assert [lease.fencing_token for lease in await leases_on(b, ctx.lock_name)] == [stolen.fencing_token]


@case("a free lock is granted to a thief as to any claim")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    thief = ctx.claim(steal=True, wait_ms=LONG_MS)
    token = (await must_grant(driver, thief)).fencing_token
    assert await release_one(driver, thief, token) is True
    assert await leases_on(driver, ctx.lock_name) == []


@case("rule 7: the old holder’s renewal and release answer no, and leave the thief’s lease")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder, thief = ctx.claim(), ctx.claim(steal=True)
    held = await must_grant(a, holder)
    stolen = await must_grant(b, thief)
    assert await renew_one(a, holder, held.fencing_token, LONG_MS) == "lost"
    assert await release_one(a, holder, held.fencing_token) is False
    assert await release_one(a, holder) is False
    assert await renew_one(b, thief, stolen.fencing_token, LONG_MS) == "renewed"
    assert await release_one(b, thief, stolen.fencing_token) is True


@case("rule 10: waiters keep their places, and are served in turn after the thief", needs=["queue"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    thief = ctx.claim(steal=True, wait_ms=LONG_MS)
    line = [ctx.claim(wait_ms=LONG_MS), ctx.claim(wait_ms=LONG_MS)]
    await must_grant(a, ctx.claim())
    for waiter in line:
        await must_refuse(b, waiter)
    token = (await must_grant(a, thief)).fencing_token
    assert await waiting_on(a, ctx.lock_name) == [waiter.claim_id for waiter in line]
    for waiter in line:
        await must_refuse(b, waiter)
    last = a, thief
    for waiter in line:
        await release_one(*last, token)
        token = (await must_grant(b, waiter)).fencing_token
        last = b, waiter


@case("a lock that is free for its first waiter can be stolen before that waiter asks", needs=["queue"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder, waiter = ctx.claim(), ctx.claim(wait_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    await must_refuse(b, waiter)
    await release_one(a, holder, token)
    thief = ctx.claim(steal=True)
    await must_grant(a, thief)
    assert (await lease_on(a, ctx.lock_name)).claim_id == thief.claim_id


def is_woken(mode: Mode) -> None:
    @case(
        f"rule 10: the first waiter of {mode} leases is woken by a theft, because the thief’s lease may end sooner",
        needs=["queue", "wake", "shared", "ttl"],
    )
    async def _(ctx: Context) -> None:
        a, b = await ctx.driver(), await ctx.driver()
        waiter = ctx.claim(wait_ms=LONG_MS)
        await must_grant(a, ctx.claim(mode=mode))
        heard = await listen_on(b)
        before = await must_refuse(b, waiter)
        await must_grant(a, ctx.claim(steal=True, ttl_ms=LONG_MS / 2))
        await until("a wake-up", lambda: heard.tells_of(waiter))
        after = await must_refuse(b, waiter)
        assert before.ask_again_ms is not None and after.ask_again_ms is not None
        assert after.ask_again_ms < before.ask_again_ms


is_woken("exclusive")
is_woken("shared")


@case("a theft ends every shared lease", needs=["shared"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    readers = [ctx.claim(mode="shared"), ctx.claim(mode="shared")]
    tokens = [(await must_grant(a, reader)).fencing_token for reader in readers]
    thief = ctx.claim(steal=True)
    stolen = await must_grant(b, thief)
    assert (await lease_on(a, ctx.lock_name)).claim_id == thief.claim_id
    for reader, token in zip(readers, tokens):
        assert await renew_one(a, reader, token, LONG_MS) == "lost"
        assert await release_one(a, reader, token) is False
    await must_refuse(a, ctx.claim(mode="shared"))
    await release_one(b, thief, stolen.fencing_token)
    await must_grant(a, ctx.claim(mode="shared"))
    await must_grant(b, ctx.claim(mode="shared"))


@case("rule 5: a thief that asks again gets the same lease, and steals nothing a second time")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    thief = ctx.claim(steal=True)
    await must_grant(driver, ctx.claim())
    first = await must_grant(driver, thief)
    assert (await must_grant(driver, thief)).fencing_token == first.fencing_token
    assert await release_one(driver, thief) is True
    assert await leases_on(driver, ctx.lock_name) == []


@case("of two thieves the last one holds the lock")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    first, second = ctx.claim(steal=True), ctx.claim(steal=True)
    lost = await must_grant(a, first)
    won = await must_grant(b, second)
    if ctx.capabilities.fencing:
        assert won.fencing_token > lost.fencing_token
    assert await renew_one(a, first, lost.fencing_token, LONG_MS) == "lost"
    assert (await lease_on(a, ctx.lock_name)).claim_id == second.claim_id


@case("a list of a holder, a waiter and a thief is taken in its order")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    wait_ms = LONG_MS if ctx.capabilities.queue else 0
    holder, waiter = ctx.claim(wait_ms=wait_ms), ctx.claim(wait_ms=wait_ms)
    thief, other = ctx.claim(steal=True, wait_ms=wait_ms), ctx.claim(lock_name=ctx.name("other"))
    answers = await driver.acquire([holder, waiter, thief, other])
    assert granted(answers) == [True, False, True, True]
    held = answers[0]
    assert isinstance(held, Grant)
    assert await renew_one(driver, holder, held.fencing_token, LONG_MS) == "lost"
    assert (await lease_on(driver, ctx.lock_name)).claim_id == thief.claim_id
    if ctx.capabilities.queue:
        assert await waiting_on(driver, ctx.lock_name) == [waiter.claim_id]


@case("the thief’s metadata is stored", needs=["metadata"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim(metadata={"of": "the holder"}))
    await must_grant(driver, ctx.claim(steal=True, metadata={"by": "an operator"}))
    assert (await lease_on(driver, ctx.lock_name)).metadata == {"by": "an operator"}


async def waiting_on(driver: Driver, lock_name: str) -> List[str]:
    return [waiter.claim_id for waiter in await waiters_on(driver, lock_name)]
