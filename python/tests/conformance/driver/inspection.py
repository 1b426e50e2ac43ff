"""What `inspect` shows of leases and waiters, and how it is asked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, List

import pytest

from holdfast.core.driver import Driver, InspectPage, InspectQuery, LeaseRecord
from holdfast.errors import InvalidArgumentError

from ..context import Context
from ..driver_calls import granted, lease_on, must_grant, must_refuse, pages_of, waiters_on
from ..suite import Group
from ..timing import LONG_MS

inspection = Group("driver interface: inspect")
case = inspection.case


@case("a lease is shown to another process as it was claimed")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    claim = ctx.claim()
    grant = await must_grant(a, claim)
    shown = await lease_on(b, ctx.lock_name)
    assert replace(shown, expires_at_ms=None, session=None) == LeaseRecord(
        lock_name=claim.lock_name,
        claim_id=claim.claim_id,
        holder_id=claim.holder_id,
        mode=claim.mode,
        permits=claim.permits,
        fencing_token=grant.fencing_token,
        acquired_at_ms=grant.acquired_at_ms,
    )
    assert (shown.session is not None) == (ctx.capabilities.expiry == "session")
    if ctx.capabilities.expiry == "session":
        assert shown.expires_at_ms is None
    else:
        assert shown.expires_at_ms is not None and math.isfinite(shown.expires_at_ms)


@case("a shared lease is shown with its limit and permits", needs=["limit"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim(mode="shared", limit=5, permits=2))
    lease = await lease_on(driver, ctx.lock_name)
    assert (lease.mode, lease.limit, lease.permits) == ("shared", 5, 2)


@case("a name that is not held shows nothing")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    page = await driver.inspect(InspectQuery(lock_name=ctx.lock_name))
    assert (list(page.leases), list(page.waiters), page.next) == ([], [], None)


@case("waiters are shown in the order in which they will be served", needs=["queue"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    await must_grant(a, ctx.claim())
    claims = [ctx.claim(waiter_ttl_ms=LONG_MS) for _ in range(3)]
    for driver, claim in zip((a, b, a), claims):
        await must_refuse(driver, claim)
    waiters = await waiters_on(b, ctx.lock_name)

    def parts(of: Any) -> Any:
        return of.lock_name, of.claim_id, of.holder_id, of.mode, of.permits

    assert [parts(waiter) for waiter in waiters] == [parts(claim) for claim in claims]
    since = [waiter.waiting_since_ms for waiter in waiters]
    assert since == sorted(since)


@case("every one of 150 waiters is shown, in order", needs=["queue"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    await must_grant(a, ctx.claim())
    claims = [ctx.claim(waiter_ttl_ms=LONG_MS) for _ in range(150)]
    assert granted(await a.acquire(claims)) == [False] * 150
    pages = await pages_of(b, InspectQuery(lock_name=ctx.lock_name))
    assert waiting_in(pages) == [claim.claim_id for claim in claims]


@case("a long queue is shown completely and in order, over several pages", needs=["queue"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    await must_grant(a, ctx.claim())
    claims = [ctx.claim(waiter_ttl_ms=LONG_MS) for _ in range(600)]
    await a.acquire(claims)
    for query in (InspectQuery(lock_name=ctx.lock_name), InspectQuery(prefix=ctx.lock_name)):
        pages = await pages_of(b, query)
        assert sum(len(page.leases) for page in pages) == 1
        assert waiting_in(pages) == [claim.claim_id for claim in claims]
    pages = await pages_of(b, InspectQuery(lock_name=ctx.lock_name))
    assert len(pages[0].leases) == 1, "the holder is on the first page"


@case("a query for a lock name shows that name alone, not those that begin with it")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim())
    await must_grant(driver, ctx.claim(lock_name=ctx.name("longer")))
    page = await driver.inspect(InspectQuery(lock_name=ctx.lock_name))
    assert [lease.lock_name for lease in page.leases] == [ctx.lock_name]


@case("a query for a prefix shows the names that begin with it")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    inside, outside = ctx.name("in:"), ctx.name("out:")
    names = [inside, f"{inside}1", f"{inside}2"]
    for name in [*names, f"{outside}1"]:
        await must_grant(driver, ctx.claim(lock_name=name))
    assert await names_in(driver, InspectQuery(prefix=inside)) == names


@case("a prefix is taken literally, including wildcards of the store’s own language")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim(lock_name=ctx.name("a!")))
    for wild in ["%", "_", "*", "?", "[a-z]", "\\", ".", "'"]:
        prefix = ctx.name(wild)
        await must_grant(driver, ctx.claim(lock_name=f"{prefix}!"))
        assert await names_in(driver, InspectQuery(prefix=prefix)) == [f"{prefix}!"]


@case("no page holds more names than asked for, and all pages hold every name once")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    names = [ctx.name(index) for index in range(7)]
    for name in names:
        await must_grant(driver, ctx.claim(lock_name=name))
    pages = await pages_of(driver, InspectQuery(prefix=ctx.lock_name, page_size=3))
    assert all(len(page.leases) <= 3 for page in pages)
    assert sorted(lease.lock_name for page in pages for lease in page.leases) == names


@case("a page size that is not a whole number from 1 to 10000 is refused")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await must_grant(driver, ctx.claim())
    sizes: List[Any] = [0, -1, 1.5, 10_001, math.nan, math.inf, "10", None]
    for page_size in sizes:
        await is_refused(driver, InspectQuery(prefix=ctx.lock_name, page_size=page_size), "page_size")
    assert await names_in(driver, InspectQuery(prefix=ctx.lock_name, page_size=10_000)) == [ctx.lock_name]
    assert await names_in(driver, InspectQuery(prefix=ctx.lock_name, page_size=1)) == [ctx.lock_name]


def bad_text_is_refused(title: str, argument: str) -> None:
    @case(f"a query whose {title} has a lone surrogate or NUL is refused")
    async def _(ctx: Context) -> None:
        driver = await ctx.driver()
        await must_grant(driver, ctx.claim())
        texts: List[Any] = ["\ud800", f"{ctx.lock_name}\udc00", "nul\0", 7, b"bytes"]
        if argument != "after":
            texts.append("x" * 256)
        if argument != "prefix":
            texts.append("")
        for text in texts:
            await is_refused(driver, InspectQuery(**{argument: text}), argument)


bad_text_is_refused("lockName", "lock_name")
bad_text_is_refused("prefix", "prefix")
bad_text_is_refused("after", "after")


@case("leases and waiters of one name are on one page", needs=["queue"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    for suffix in "abc":
        name = ctx.name(suffix)
        await must_grant(driver, ctx.claim(lock_name=name))
        await must_refuse(driver, ctx.claim(lock_name=name, waiter_ttl_ms=LONG_MS))
        await must_refuse(driver, ctx.claim(lock_name=name, waiter_ttl_ms=LONG_MS))
    pages = await pages_of(driver, InspectQuery(prefix=ctx.lock_name, page_size=1))
    shown = [(len(page.leases), len(page.waiters)) for page in pages if page.leases or page.waiters]
    assert shown == [(1, 2)] * 3


def waiting_in(pages: List[InspectPage]) -> List[str]:
    return [waiter.claim_id for page in pages for waiter in page.waiters]


async def names_in(driver: Driver, query: InspectQuery) -> List[str]:
    return sorted(lease.lock_name for page in await pages_of(driver, query) for lease in page.leases)


async def is_refused(driver: Driver, query: InspectQuery, argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        await driver.inspect(query)
    assert refused.value.argument == argument
