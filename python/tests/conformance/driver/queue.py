"""Rule 10: first come, first served, across all processes.

When the lock is released, a store may grant it to the first waiter, or leave it free until that waiter asks. In both
cases the first waiter is granted the lock, and no other.
"""

from __future__ import annotations

from dataclasses import replace

from ..context import Context
from ..driver_calls import must_grant, must_refuse, release_one, until_granted, waiters_on
from ..suite import Group
from ..timing import LONG_MS, SHORT_MS, before_it_ends, outlast

queue = Group("driver interface: the queue", needs=["queue"])
case = queue.case


@case("rule 10: waiters are served in the order in which they came, across processes")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    line = [(driver, ctx.claim(waiter_ttl_ms=LONG_MS)) for driver in (b, a, b)]
    last = a, ctx.claim()
    token = (await must_grant(*last)).fencing_token
    for driver, claim in line:
        await must_refuse(driver, claim)
    for index, (driver, claim) in enumerate(line):
        await release_one(*last, token)
        for later in reversed(line[index + 1 :]):
            await must_refuse(*later)
        token = (await must_grant(driver, claim)).fencing_token
        last = driver, claim


@case("a waiter learns how many are ahead of it, and asking again keeps its place")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    await must_grant(a, ctx.claim())
    first, second = ctx.claim(waiter_ttl_ms=LONG_MS), ctx.claim(waiter_ttl_ms=LONG_MS)
    for _ in range(2):
        assert (await must_refuse(a, first)).ahead == 0
        assert (await must_refuse(b, second)).ahead == 1


@case("a claim that does not wait takes no place in the queue")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim())
    assert (await must_refuse(driver, ctx.claim())).ahead is None
    assert await waiters_on(driver, ctx.lock_name) == []


@case("rule 10: a newcomer does not overtake a waiter, even while the lock is free")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder, waiter = ctx.claim(), ctx.claim(waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    await must_refuse(b, waiter)
    await release_one(a, holder, token)
    await must_refuse(a, ctx.claim())
    await must_grant(b, waiter)


@case("rule 10: a claim is judged by the queue of its own name alone")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    lock_name = f"{ctx.lock_name} other"
    other, holder = ctx.claim(lock_name=lock_name), ctx.claim()
    line = [ctx.claim(lock_name=lock_name, mode=mode, waiter_ttl_ms=LONG_MS) for mode in ("shared", "exclusive")]
    waiter = ctx.claim(waiter_ttl_ms=LONG_MS)
    tokens = [(await must_grant(a, claim)).fencing_token for claim in (holder, other)]
    for claim in (*line, waiter):
        await must_refuse(a, claim)
    for claim, token in zip((holder, other), tokens):
        await release_one(a, claim, token)
    # The last queue that the driver reads is long, and then another process empties it.
    await must_refuse(a, line[1])
    for claim in line:
        await release_one(b, claim)
    await must_refuse(a, ctx.claim())
    await must_grant(a, waiter)
    assert await waiters_on(a, ctx.lock_name) == []


@case("rule 6: a release without a token takes a waiter out of the queue")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder = ctx.claim()
    quitter, next = ctx.claim(waiter_ttl_ms=LONG_MS), ctx.claim(waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    await must_refuse(b, quitter)
    await must_refuse(b, next)
    assert await release_one(b, quitter) is False, "it had no lease to end"
    assert [waiter.claim_id for waiter in await waiters_on(a, ctx.lock_name)] == [next.claim_id]
    await release_one(a, holder, token)
    await must_grant(b, next)


@case("failure 31: a waiter that died is passed over when its time is up")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder = ctx.claim()
    dead, alive = ctx.claim(waiter_ttl_ms=SHORT_MS), ctx.claim(waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    await must_refuse(b, dead)
    await must_refuse(a, alive)
    await release_one(a, holder, token)
    await until_granted(a, alive)


@case("failure 31: a waiter whose time was up before the release is passed over at once")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder = ctx.claim()
    dead, alive = ctx.claim(waiter_ttl_ms=SHORT_MS), ctx.claim(waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    await must_refuse(b, dead)
    await must_refuse(a, alive)
    await outlast(SHORT_MS)
    assert await release_one(a, holder, token) is True
    await must_grant(a, alive)


@case("a waiter that died is no longer shown when its time is up")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim())
    await must_refuse(driver, ctx.claim(waiter_ttl_ms=SHORT_MS))
    await outlast(SHORT_MS)
    assert await waiters_on(driver, ctx.lock_name) == []


@case("asking again keeps a place for longer")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder = first = second = ctx.claim()
    token = 0

    async def steps(wait_ms: float) -> None:
        nonlocal holder, first, second, token
        name = ctx.name(wait_ms)
        holder = ctx.claim(lock_name=name)
        first, second = (ctx.claim(lock_name=name, waiter_ttl_ms=ms) for ms in (wait_ms, LONG_MS))
        token = (await must_grant(a, holder)).fencing_token
        await must_refuse(b, first)
        await must_refuse(a, second)
        await must_refuse(b, replace(first, waiter_ttl_ms=LONG_MS))
        # It came after the second if its first place was over by then.
        waiters = [waiter.claim_id for waiter in await waiters_on(a, name)]
        assert waiters == [first.claim_id, second.claim_id]

    await outlast(await before_it_ends(steps))
    await release_one(a, holder, token)
    await must_refuse(a, second)
    await must_grant(b, first)


@case("the first waiter is asked to come back no later than when the lease in its way expires", needs=["ttl"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim(ttl_ms=10_000))
    ask_again_ms = (await must_refuse(driver, ctx.claim(waiter_ttl_ms=LONG_MS))).ask_again_ms
    assert ask_again_ms is not None and 0 <= ask_again_ms <= 10_001


@case("rule 10: readers that keep coming do not starve a writer", needs=["shared"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    reader, writer = ctx.claim(mode="shared"), ctx.claim(waiter_ttl_ms=LONG_MS)
    late = ctx.claim(mode="shared", waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, reader)).fencing_token
    await must_refuse(b, writer)
    await must_refuse(a, ctx.claim(mode="shared"))
    await must_refuse(a, late)
    await release_one(a, reader, token)
    await must_refuse(a, late)
    written = await must_grant(b, writer)
    await must_refuse(a, late)
    await release_one(b, writer, written.fencing_token)
    await must_grant(a, late)


@case("readers that wait behind a writer are admitted together", needs=["shared"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    writer = ctx.claim()
    readers = [ctx.claim(mode="shared", waiter_ttl_ms=LONG_MS) for _ in range(3)]
    token = (await must_grant(a, writer)).fencing_token
    for reader in readers:
        await must_refuse(b, reader)
    await release_one(a, writer, token)
    for reader in readers:
        await must_grant(b, reader)


@case("readers behind a writer that gives up are admitted beside the current reader", needs=["shared"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    writer, reader = ctx.claim(waiter_ttl_ms=LONG_MS), ctx.claim(mode="shared", waiter_ttl_ms=LONG_MS)
    await must_grant(a, ctx.claim(mode="shared"))
    await must_refuse(b, writer)
    await must_refuse(a, reader)
    await release_one(b, writer)
    await must_grant(a, reader)


@case("a claim for few permits does not overtake one for many", needs=["limit"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    holder = ctx.claim(mode="shared", limit=3, permits=2)
    many = ctx.claim(mode="shared", limit=3, permits=2, waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    await must_refuse(b, many)
    await must_refuse(a, ctx.claim(mode="shared", limit=3, permits=1))
    await release_one(a, holder, token)
    await must_grant(b, many)
    await must_grant(a, ctx.claim(mode="shared", limit=3, permits=1))
