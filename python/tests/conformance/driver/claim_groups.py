"""Claims of one group are granted in one step, or none of them is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Iterable, List, Sequence

from holdfast.core.driver import Claim, Driver, Grant, InspectQuery

from ..context import Context
from ..driver_calls import (
    assert_untouched,
    lease_on,
    leases_on,
    must_grant,
    must_refuse,
    pages_of,
    ref_of,
    release_one,
    renewal_of,
)
from ..suite import Group
from ..timing import LONG_MS, SHORT_MS, outlast

claim_groups = Group("driver interface: groups", needs=["groups"])
case = claim_groups.case

MAX_LOCKS_AT_ONCE = 100


@case("a group of free names is granted, each with a higher token than before")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    before = await acquire_all(driver, group_of(ctx, "bac"))
    await driver.release([ref_of(each.claim, each.token) for each in before])
    tokens_before = {each.claim.lock_name: each.token for each in before}
    for each in await acquire_all(driver, group_of(ctx, "cab")):
        lease = await lease_on(driver, each.claim.lock_name)
        assert (lease.claim_id, lease.fencing_token) == (each.claim.claim_id, each.token)
        assert each.token > tokens_before[each.claim.lock_name]


@case("a group with one held name is refused, and the refusal says which")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    held = ctx.claim(lock_name=ctx.name("b"))
    await must_grant(a, held)
    before = await lease_on(a, held.lock_name)
    answers = await b.acquire(group_of(ctx, "abc"))
    assert outcomes(answers) == ["free", held.claim_id, "free"]
    for name in "ac":
        assert await leases_on(a, ctx.name(name)) == []
    await assert_untouched(a, before)


@case("while one name of a group is held, no other client ever finds the others taken")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    await must_grant(a, ctx.claim(lock_name=ctx.name("held")))
    is_over = False

    async def ask() -> None:
        nonlocal is_over
        try:
            for _ in range(25):
                assert not any(is_grant(answer) for answer in await b.acquire(group_of(ctx, ["a", "held", "z"])))
        finally:
            is_over = True

    async def watch(name: str) -> None:
        while not is_over:
            claim = ctx.claim(lock_name=ctx.name(name))
            token = (await must_grant(a, claim)).fencing_token
            assert await release_one(a, claim, token) is True
            await asyncio.sleep(0)  # a store in this process may answer without giving way

    await asyncio.gather(ask(), watch("a"), watch("z"))


@case("a name whose lease has expired is free, and one with readers is not", needs=["ttl", "shared"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim(lock_name=ctx.name("a"), ttl_ms=SHORT_MS))
    await must_grant(driver, ctx.claim(lock_name=ctx.name("b"), ttl_ms=SHORT_MS, mode="shared"))
    reader = ctx.claim(lock_name=ctx.name("c"), mode="shared")
    token = (await must_grant(driver, reader)).fencing_token
    await outlast(SHORT_MS)
    assert outcomes(await driver.acquire(group_of(ctx, "abc"))) == ["free", "free", reader.claim_id]
    assert await release_one(driver, reader, token) is True
    await acquire_all(driver, group_of(ctx, "abc"))


@case("a group does not overtake the waiters for one of its names", needs=["queue"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    name = ctx.name("waited for")
    holder, waiter = ctx.claim(lock_name=name), ctx.claim(lock_name=name, waiter_ttl_ms=LONG_MS)
    token = (await must_grant(a, holder)).fencing_token
    await must_refuse(a, waiter)
    await release_one(a, holder, token)
    answers = outcomes(await b.acquire(group_of(ctx, ["waited for", "free"])))
    # The store may have handed the lock over already.
    assert answers[0] in ("held", waiter.claim_id)
    assert answers[1] == "free"
    await must_grant(a, waiter)


@case("rule 5, failure 11: a group that asks again gets the same leases, with the same tokens")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    members = group_of(ctx, "abc")
    first = await acquire_all(a, members)
    again = await acquire_all(a, members)
    assert [each.token for each in again] == [each.token for each in first]
    assert not any(is_grant(answer) for answer in await b.acquire(group_of(ctx, "cd")))


@case("rule 5: a group that asks again gets a new lease for the one that has ended")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    members = group_of(ctx, "ab")
    one, two = await acquire_all(driver, members)
    assert await release_one(driver, one.claim, one.token) is True
    one_again, two_again = await acquire_all(driver, members)
    assert one_again.token > one.token
    assert two_again.token == two.token


@case("rule 5: a group that lost a name is refused when it asks again; the rest are errors")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    members = group_of(ctx, "abc")
    first, second, third = await acquire_all(a, members)
    for each in (first, third):
        assert await release_one(a, each.claim, each.token) is True
    rival = ctx.claim(lock_name=first.claim.lock_name)
    await must_grant(b, rival)
    before = await lease_on(b, rival.lock_name)
    assert outcomes(await a.acquire(members)) == [rival.claim_id, "error", "free"]
    await assert_untouched(b, before)
    assert await leases_on(b, third.claim.lock_name) == []
    for member in members:
        await release_one(a, member)
    assert await leases_on(b, second.claim.lock_name) == []
    await assert_untouched(b, before)


@case("rule 7: members are renewed and released one by one, like any lease", needs=["ttl"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    held = await acquire_all(a, group_of(ctx, "ab"))
    refs = [ref_of(each.claim, each.token) for each in held]
    renewals = [renewal_of(each.claim, each.token, LONG_MS) for each in held]
    assert list(await a.renew(renewals)) == ["renewed", "renewed"]
    assert list(await a.release(refs[:1])) == [True]
    await must_grant(b, ctx.claim(lock_name=ctx.name("a")))
    await must_refuse(b, ctx.claim(lock_name=ctx.name("b")))
    assert list(await a.release(refs)) == [False, True]


@case("groups and single claims of one list are taken in their order")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()

    def single(name: str) -> Claim:
        return ctx.claim(lock_name=ctx.name(name))

    answers = await driver.acquire(
        [
            single("x"),
            *group_of(ctx, "ab"),
            *group_of(ctx, "bc"),
            single("c"),
            single("a"),
            *group_of(ctx, "de"),
            *group_of(ctx, "fx"),
            single("f"),
        ]
    )
    assert "".join("1" if is_grant(answer) else "0" for answer in answers) == "1" "11" "00" "1" "0" "11" "00" "1"


@case("a list of many groups, one of which is refused, grants the others")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    await must_grant(a, ctx.claim(lock_name=ctx.name("3b")))
    claims = [claim for at in range(8) for claim in group_of(ctx, [f"{at}a", f"{at}b"])]
    answers = await b.acquire(claims)
    assert [is_grant(answer) for answer in answers] == [
        not claim.lock_name.startswith(ctx.name("3")) for claim in claims
    ]


@case(f"a group of {MAX_LOCKS_AT_ONCE} claims in a long list is not split")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    names = [f"member {at}" for at in range(MAX_LOCKS_AT_ONCE)]
    last = ctx.claim(lock_name=ctx.name(names[-1]))
    token = (await must_grant(a, last)).fencing_token

    def others(kind: str) -> List[Claim]:
        return [ctx.claim(lock_name=ctx.name(f"{kind} {at}")) for at in range(90)]

    async def grants(before: str, behind: str) -> int:
        claims = [*others(before), *group_of(ctx, names), *others(behind)]
        return sum(is_grant(answer) for answer in await b.acquire(claims))

    assert await grants("before", "behind") == 180
    pages = await pages_of(a, InspectQuery(prefix=ctx.name("member"), page_size=1_000))
    assert sum(len(page.leases) for page in pages) == 1
    await release_one(a, last, token)
    assert await grants("then before", "then behind") == 280


@case("of groups that race for the same names, at most one gets them all")
async def _(ctx: Context) -> None:
    drivers = [await ctx.driver() for _ in range(3)]
    orders = ["abc", "cba", "bc"]
    for round in range(8):
        groups = [group_of(ctx, orders[(at + round) % 3]) for at in range(3)]
        asked = await asyncio.gather(*(driver.acquire(members) for driver, members in zip(drivers, groups)))
        winners = [answers for answers in asked if any(is_grant(answer) for answer in answers)]
        for answers in winners:
            assert all(is_grant(answer) for answer in answers), "a part of a group was granted"
        assert len(winners) <= 1, f"{len(winners)} groups hold the same names"
        for driver, members in zip(drivers, groups):
            await driver.release([ref_of(member) for member in members])
    for name in "abc":
        await must_grant(drivers[0], ctx.claim(lock_name=ctx.name(name)))


@dataclass(frozen=True)
class Held:
    claim: Claim
    token: int


def group_of(ctx: Context, names: Iterable[str]) -> List[Claim]:
    """A new group, on these names."""
    claims = [ctx.claim(lock_name=ctx.name(name)) for name in names]
    return [replace(claim, group=f"group of {claims[0].claim_id}") for claim in claims]


async def acquire_all(driver: Driver, claims: Sequence[Claim]) -> List[Held]:
    answers = await driver.acquire(claims)
    assert outcomes(answers) == ["granted"] * len(claims)
    return [Held(claim, answer.fencing_token) for claim, answer in zip(claims, answers)]  # type: ignore[union-attr]


def is_grant(answer: object) -> bool:
    return isinstance(answer, Grant)


def outcomes(answers: Sequence[Any]) -> List[str]:
    """For each answer: `granted`, `free`, `error`, or the claim in the way."""
    return [_outcome(answer) for answer in answers]


def _outcome(answer: Any) -> str:
    if isinstance(answer, Exception):
        return "error"
    if isinstance(answer, Grant):
        return "granted"
    if answer.free:
        return "free"
    return answer.holder.claim_id if answer.holder is not None else "held"
