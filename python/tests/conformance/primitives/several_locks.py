"""`locks` acquires all of the names, or none."""

from __future__ import annotations

import asyncio
from typing import List, Set

import pytest

from holdfast import DistributedLock, LeaseLostError, NotAcquiredError, StoreError
from holdfast.core.driver import InspectQuery
from support.steered_clock import SteeredClock

from ..context import Context
from ..driver_calls import leases_on, pages_of
from ..faulty_network import loses_reply
from ..heartbeats import UNHURRIED, beats
from ..suite import Group
from ..timing import BRIEF_SECONDS, KEPT_SECONDS, LONG_MS, VAIN_SECONDS, timers_run, until, within

several_locks = Group("several locks at once")
case = several_locks.case

WAITING = {"blocking_timeout_seconds": LONG_MS / 1_000}
MAX_LOCKS_AT_ONCE = 100


@case("all are held while the function runs, and none after it")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    names = [ctx.name(suffix) for suffix in ("b", "ä", "a", "b")]

    async def tokens_on(name: str) -> List[int]:
        return [lease.fencing_token for lease in await leases_on(a.real_driver, name)]

    async with a.lock.locks(names) as leases:
        assert [lease.lock_name for lease in leases] == names
        assert leases[0] is leases[3], "a name that is given twice is taken once"
        for lease in leases:
            assert await tokens_on(lease.lock_name) == [lease.fencing_token]
    for name in names:
        assert await tokens_on(name) == []


@case("free locks are acquired in one call to each part of the store, and released in one")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    async with a.lock.locks([ctx.name(suffix) for suffix in "cab"]):
        pass
    assert a.network.counts["acquire"].calls == 1
    assert a.network.counts["release"].calls == 1


@case("the loss of a re-entered lease ends the wait for the others", needs=["ttl"])
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    other = ctx.name("other")
    await b.lock.hold(other)
    with pytest.raises(LeaseLostError) as lost:
        async with a.lock.lock(ctx.lock_name, heartbeat=False, timeout_seconds=BRIEF_SECONDS):
            async with a.lock.locks([ctx.lock_name, other], **WAITING):
                raise AssertionError("it ran")
    assert lost.value.lock_name == ctx.lock_name


@case("if one is held and the call does not wait, none is kept")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    first, second, third = (ctx.name(suffix) for suffix in "123")
    await a.lock.hold(second)
    with pytest.raises(NotAcquiredError) as refused:
        async with b.lock.locks([first, second, third], blocking=False):
            raise AssertionError("it ran")
    assert refused.value.lock_name == second

    async def is_free(name: str) -> bool:
        return await leases_on(b.real_driver, name) == []

    for name in (first, third):
        await until("what was granted to be released", lambda: is_free(name))


@case("if one is held, the others are neither granted nor released", needs=["groups"])
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    names = [ctx.name(suffix) for suffix in "123"]
    await a.lock.hold(names[1])
    with pytest.raises(NotAcquiredError) as refused:
        async with b.lock.locks(names, blocking=False):
            raise AssertionError("it ran")
    assert refused.value.lock_name == names[1]
    assert refused.value.holder is not None and refused.value.holder.holder_id == a.lock.holder_id
    await b.lock.close()
    assert b.network.counts["release"].requests == 0, "something was released"


@case("while one is held and the call does not wait, no client is ever refused the others", needs=["groups"])
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    names = [ctx.name(suffix) for suffix in "123"]
    await a.lock.hold(names[1])
    is_over = False

    async def ask() -> None:
        nonlocal is_over
        try:
            for _ in range(20):
                with pytest.raises(NotAcquiredError):
                    async with b.lock.locks(names, blocking=False):
                        raise AssertionError("it ran")
        finally:
            is_over = True

    async def watch(name: str) -> None:
        while not is_over:
            async with a.lock.lock(name, blocking=False):
                pass

    await asyncio.gather(ask(), watch(names[0]), watch(names[2]))


@case("the largest allowed group is not split beside other claims of the same turn", needs=["groups"])
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    names = [ctx.name(f"member {at}") for at in range(MAX_LOCKS_AT_ONCE)]
    await a.lock.hold(names[-1])

    async def take_all() -> None:
        async with b.lock.locks(names, blocking=False):
            raise AssertionError("it ran")

    others = [asyncio.ensure_future(b.lock.hold(ctx.name(f"other {at}"))) for at in range(150)]
    refused = asyncio.ensure_future(take_all())
    late = [asyncio.ensure_future(b.lock.hold(ctx.name(f"late {at}"))) for at in range(20)]
    with pytest.raises(NotAcquiredError) as error:
        await refused
    assert error.value.lock_name == names[-1]
    assert b.network.counts["release"].requests == 0, "something was released"
    pages = await pages_of(b.real_driver, InspectQuery(prefix=ctx.name("member"), page_size=1_000))
    assert sum(len(page.leases) for page in pages) == 1
    await asyncio.gather(*others, *late)


@case("failure 11: a lost reply leaves nothing behind, and the next call gets all of them")
async def _(ctx: Context) -> None:
    a, b = await ctx.lock(), await ctx.lock()
    names = [ctx.name(suffix) for suffix in "123"]
    a.network.once("acquire", loses_reply)
    with pytest.raises(StoreError):
        async with a.lock.locks(names, blocking=False):
            raise AssertionError("it ran")

    async def take_all() -> str:
        async with b.lock.locks(names, **WAITING):
            return "ran"

    assert await within("the names", take_all()) == "ran"


@case("a wait that times out names the lock in the way, and leaves nothing behind")
async def _(ctx: Context) -> None:
    clock = SteeredClock()
    a, b = await ctx.lock(), await ctx.lock(clock=clock, **UNHURRIED)
    first, second = ctx.name("1"), ctx.name("2")
    await a.lock.hold(second)

    async def run() -> None:
        async with b.lock.locks([second, first], timeout_seconds=KEPT_SECONDS, blocking_timeout_seconds=VAIN_SECONDS):
            raise AssertionError("it ran")

    job = asyncio.ensure_future(run())
    # It asks for all names at once, and then waits for one after the other.
    await until("the claim that waits", lambda: second in b.network.refused)
    await timers_run()
    clock.advance(VAIN_SECONDS)
    with pytest.raises(NotAcquiredError) as refused:
        await within("the end of the wait", job)
    assert refused.value.lock_name == second

    async def is_free() -> bool:
        return await leases_on(b.real_driver, first) == []

    # It is withdrawn in the background.
    await until("the first lock to be free", is_free)


@case("opposing orders do not deadlock: every call gets all of its locks, repeatedly")
async def _(ctx: Context) -> None:
    locks = [(await ctx.lock()).lock for _ in range(3)]
    names = [ctx.name(suffix) for suffix in "xyz"]
    inside: Set[str] = set()
    turns = 0

    async def work(index: int, lock: DistributedLock, backwards: bool) -> None:
        nonlocal turns
        for round in range(3):
            # Two of the three, in every order.
            wanted = [name for at, name in enumerate(names) if at != (index + round) % 3]
            async with lock.locks(wanted[::-1] if backwards else wanted, **WAITING):
                assert inside.isdisjoint(wanted), "another task holds one of them"
                inside.update(wanted)
                await asyncio.sleep(0)  # lets another holder run, if there is one
                inside.difference_update(wanted)
                turns += 1

    tasks = [work(index, lock, backwards) for index, lock in enumerate(locks) for backwards in (False, True)]
    await within("all to have their turns", asyncio.gather(*tasks))
    assert turns == 18


@case("leases that are held while the call waits for the rest are renewed")
async def _(ctx: Context) -> None:
    clock = SteeredClock()
    a, b = await ctx.lock(), await ctx.lock(clock=clock, **UNHURRIED)
    first, second = ctx.name("1"), ctx.name("2")
    in_the_way = await a.lock.hold(second)

    async def take_both() -> bool:
        async with b.lock.locks(
            [first, second], timeout_seconds=KEPT_SECONDS, blocking_timeout_seconds=10 * KEPT_SECONDS
        ) as leases:
            return all(lease.held for lease in leases)

    taking = asyncio.ensure_future(take_both())
    # It takes one after the other, so it holds the first.
    await until("the claim that waits", lambda: second in b.network.refused)
    await timers_run()
    await beats(b, clock, 3)
    assert not await a.lock.acquire(first, blocking=False)
    await in_the_way.release()
    assert await within("the rest", taking) is True


@case("names that the running function holds are re-entered")
async def _(ctx: Context) -> None:
    a = await ctx.lock()
    held, other = ctx.name("held"), ctx.name("other")
    async with a.lock.lock(held) as outer:
        async with a.lock.locks([other, held]) as leases:
            assert leases[1].fencing_token == outer.fencing_token
        assert outer.held is True
    async with a.lock.locks([held, other]):
        async with a.lock.lock(other) as inner:
            assert inner.held is True
