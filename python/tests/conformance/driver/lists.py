"""Every call takes a list and returns one of the same length and order."""

from __future__ import annotations

import asyncio
from typing import Any, List, Sequence

from holdfast.core.driver import Claim, Grant, Refusal

from ..context import Context
from ..driver_calls import granted, leases_on, must_grant, ref_of, renewal_of, unwrap, unwrap_all
from ..suite import Group
from ..timing import LONG_MS

lists = Group("driver interface: lists")
case = lists.case

MAX_LIST = 1_000
"""The most that the core sends in one list."""


@case("an empty list is answered by an empty list")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    assert list(await driver.acquire([])) == []
    assert list(await driver.renew([])) == []
    assert list(await driver.release([])) == []
    if ctx.capabilities.rate:
        assert list(await driver.consume([])) == []


@case("answers are in the order of their requests")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    names = [ctx.name(suffix) for suffix in "cadb"]
    for name in names[:2]:
        await must_grant(a, ctx.claim(lock_name=name))
    answers = await b.acquire([ctx.claim(lock_name=name) for name in names])
    assert granted(answers) == [False, False, True, True]


@case("several claims on one name in one list are taken in their order")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    assert granted(await driver.acquire([ctx.claim(), ctx.claim(), ctx.claim()])) == [True, False, False]


@case("several claims on one name in one list wait in their order", needs=["queue"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim())
    answers = unwrap_all(await driver.acquire([ctx.claim(waiter_ttl_ms=LONG_MS) for _ in range(3)]))
    assert [answer.ahead if isinstance(answer, Refusal) else None for answer in answers] == [0, 1, 2]


@case("one list may hold the same claim twice: both get the same lease")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claim = ctx.claim()
    first, second = unwrap_all(await driver.acquire([claim, claim]))
    assert isinstance(first, Grant) and isinstance(second, Grant)
    assert second.fencing_token == first.fencing_token


@case("a list of releases says for each whether it ended a lease")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    x, y, stranger = ctx.claim(lock_name=ctx.name("x")), ctx.claim(), ctx.claim()
    of_x, of_y = tokens_of(await driver.acquire([x, y]))
    refs = [ref_of(y, of_y), ref_of(stranger), ref_of(x, of_x), ref_of(y, of_y)]
    assert list(await driver.release(refs)) == [True, False, True, False]


@case("a list of renewals says for each whether it still had a lease")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    x, y, stranger = ctx.claim(lock_name=ctx.name("x")), ctx.claim(), ctx.claim()
    of_x, of_y = tokens_of(await driver.acquire([x, y]))
    renewals = [renewal_of(stranger, of_y, LONG_MS), renewal_of(x, of_x, LONG_MS), renewal_of(y, of_y, LONG_MS)]
    renewed = "held" if ctx.capabilities.expiry == "session" else "renewed"
    assert list(await driver.renew(renewals)) == ["lost", renewed, renewed]


@case("a list of 1,000 names, the most that the core sends, is granted, renewed and released")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    claims = [ctx.claim(lock_name=ctx.name(index)) for index in range(MAX_LIST)]
    tokens = tokens_of(await driver.acquire(claims))
    assert len(tokens) == MAX_LIST
    answers = await driver.renew([renewal_of(claim, token, LONG_MS) for claim, token in zip(claims, tokens)])
    assert len(answers) == MAX_LIST and set(answers) <= {"renewed", "held"}
    released = await driver.release([ref_of(claim, token) for claim, token in zip(claims, tokens)])
    assert list(released) == [True] * MAX_LIST


@case("lists over the same names in opposing orders neither deadlock nor grant a name twice")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    names = [ctx.name(index) for index in range(20)]
    for _ in range(10):
        forth = [ctx.claim(lock_name=name) for name in names]
        back = [ctx.claim(lock_name=name) for name in reversed(names)]
        of_a, of_b = await asyncio.gather(a.acquire(forth), b.acquire(back))
        won = granted_of(forth, of_a) + granted_of(back, of_b)
        assert len(set(won)) == len(won), "a name was granted to both"
        await asyncio.gather(a.release([ref_of(each) for each in forth]), b.release([ref_of(each) for each in back]))
    for name in names:
        assert await leases_on(a, name) == []


def tokens_of(answers: Sequence[Any]) -> List[int]:
    grants = unwrap_all(answers)
    assert all(isinstance(grant, Grant) for grant in grants), grants
    return [grant.fencing_token for grant in grants]


def granted_of(claims: Sequence[Claim], answers: Sequence[Any]) -> List[str]:
    """The names that were granted."""
    assert len(answers) == len(claims)
    return [claim.lock_name for claim, answer in zip(claims, answers) if isinstance(unwrap(answer), Grant)]
