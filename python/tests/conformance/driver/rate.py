"""The rate-limiting step (GCRA) under one limit: a burst at once after a rest, then one unit per period ÷ limit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import List

from holdfast.core.driver import Driver, InspectQuery, RateAnswer, RateLimit, RateRequest

from ..context import Context
from ..driver_calls import consume_one, pages_of, unwrap_all
from ..rate_requests import HOUR_MS, hourly, is_just_below, request_on
from ..suite import Group
from ..timing import at_least, monotonic_ms, outlast, sleep_ms

rate = Group("driver interface: rate limits", needs=["rate"])
case = rate.case


@case("a burst is allowed at once, and anything above it is refused")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    request = request_on(ctx.lock_name, hourly(burst=3))
    answers = [await consume_one(driver, request) for driver in (a, b, a)]
    assert [(answer.allowed, answer.remaining, answer.retry_after_ms) for answer in answers] == [
        (True, remaining, 0) for remaining in (2, 1, 0)
    ]
    refused = await consume_one(b, request)
    assert (refused.allowed, refused.remaining) == (False, 0)


@case("names do not affect each other, and a rate limit does not affect a lock")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    allowed = [(await consume_one(driver, request_on(ctx.name(name), hourly(burst=1)))).allowed for name in "aba"]
    assert allowed == [True, True, False]
    pages = await pages_of(driver, InspectQuery(prefix=ctx.lock_name))
    assert [lease for page in pages for lease in page.leases] == []


@case("a cost of n counts as n units")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, hourly(burst=5), cost=3)
    assert (await consume_one(driver, request)).remaining == 2
    assert (await consume_one(driver, request)).allowed is False
    assert (await consume_one(driver, replace(request, cost=2))).remaining == 0


@case("a refused request is not charged")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, hourly(burst=2), cost=3)
    for _ in range(5):
        assert (await consume_one(driver, request)).allowed is False
    allowed = await consume_one(driver, replace(request, cost=2))
    assert (allowed.allowed, allowed.remaining) == (True, 0)


@case("a caller that waits for retryAfter is allowed then, and not earlier")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, RateLimit(limit=4, period_ms=1_000, burst=1))
    started_ms = monotonic_ms()
    assert (await consume_one(driver, request)).allowed is True
    refused = await until_refused(driver, request)
    assert 0 < refused.retry_after_ms <= 250
    await outlast(refused.retry_after_ms)
    assert (await consume_one(driver, request)).allowed is True
    assert monotonic_ms() - started_ms >= at_least(250)


@case("resetAfter says when the whole burst is available again")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, RateLimit(limit=10, period_ms=1_000, burst=3))
    assert 0 < (await consume_one(driver, request)).reset_after_ms <= 101
    second = await consume_one(driver, request)
    assert second.reset_after_ms <= 201
    await outlast(second.reset_after_ms)
    assert (await consume_one(driver, request)).remaining == 2


@case("retryAfter and resetAfter are exact for a long period")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, hourly(burst=2))
    assert is_just_below((await consume_one(driver, request)).reset_after_ms, HOUR_MS)
    assert is_just_below((await consume_one(driver, request)).reset_after_ms, 2 * HOUR_MS)
    refused = await consume_one(driver, request)
    assert is_just_below(refused.retry_after_ms, HOUR_MS)
    assert is_just_below(refused.reset_after_ms, 2 * HOUR_MS)


@case("fault: a period below one second ends")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, RateLimit(limit=2, period_ms=100, burst=2))
    for _ in range(3):
        assert (await consume_one(driver, request)).remaining == 1, "a full burst after a rest"
        await outlast(100)


@case("fault: no more pass at the edge of a window than burst and elapsed time allow")
async def _(ctx: Context) -> None:
    drivers = [await ctx.driver(), await ctx.driver()]
    limit = RateLimit(limit=10, period_ms=200, burst=5)
    request = request_on(ctx.lock_name, limit)
    started_ms = monotonic_ms()
    allowed = 0
    while monotonic_ms() - started_ms < 600:
        for driver in drivers:
            allowed += (await consume_one(driver, request)).allowed
        await sleep_ms(2)  # lets other cases run; the calls are still far above the limit
    elapsed_ms = (monotonic_ms() - started_ms) * 1.01 + 2
    # Rounded up: a unit may be given back at each edge.
    assert allowed <= limit.burst + elapsed_ms * limit.limit / limit.period_ms + 1


@case("requests on one name in one list are taken in their order")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    requests = [request_on(ctx.lock_name, hourly(burst=3), cost=cost) for cost in (2, 2, 1)]
    assert [answer.allowed for answer in unwrap_all(await driver.consume(requests))] == [True, False, True]


@case("equal requests on one name in one list are answered as if they came one by one")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, hourly(burst=3))
    answers = unwrap_all(await driver.consume([request] * 5))
    assert [answer.allowed for answer in answers] == [True, True, True, False, False]
    assert [answer.remaining for answer in answers] == [2, 1, 0, 0, 0]
    for index, answer in enumerate(answers):
        assert is_just_below(answer.reset_after_ms, min(index + 1, 3) * HOUR_MS)
        assert (answer.retry_after_ms > 0) is not answer.allowed
    assert (await consume_one(driver, request)).allowed is False


@case("a list may have many names, with any characters, each with its own answer")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    names = [ctx.name(name) for name in ["b", "a", "\U0001f600", "\uffee", '"{}', "a,b", "it's \\"]]
    requests = [request_on(name, hourly(burst=1), cost=int(index != 1)) for index, name in enumerate(names)]
    first = unwrap_all(await driver.consume(requests))
    assert [(answer.allowed, answer.remaining) for answer in first] == [
        (True, int(index == 1)) for index in range(len(names))
    ]
    second = unwrap_all(await driver.consume(requests))
    assert [answer.allowed for answer in second] == [index == 1 for index in range(len(names))]


@case("a cost of 0 takes nothing")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    take = request_on(ctx.lock_name, hourly(burst=2))
    look = replace(take, cost=0)
    first = await consume_one(driver, look)
    assert (first.allowed, first.remaining, first.retry_after_ms, first.reset_after_ms) == (True, 2, 0, 0)
    await consume_one(driver, take)
    for _ in range(3):
        assert (await consume_one(driver, look)).remaining == 1
    await consume_one(driver, take)
    assert (await consume_one(driver, look)).remaining == 0


@case("a burst can be used to its last unit, also if period ÷ limit is no finite decimal")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    for limit in (3, 7, 13):
        request = request_on(ctx.name(limit), RateLimit(limit=limit, period_ms=20 * HOUR_MS, burst=limit))
        seen = [(await consume_one(driver, request)).allowed for _ in range(limit + 1)]
        assert seen == [True] * limit + [False]


def is_exactly_that_many(burst: int) -> None:
    @case(f"a burst of {burst} is exactly that many units, one by one and all at once")
    async def _(ctx: Context) -> None:
        driver = await ctx.driver()
        one = request_on(ctx.lock_name, hourly(burst=burst))
        answers: List[RateAnswer] = unwrap_all(await driver.consume([one] * (burst + 1)))
        assert sum(answer.allowed for answer in answers) == burst
        at_once = request_on(ctx.name("at once"), hourly(burst=burst), cost=burst)
        assert (await consume_one(driver, at_once)).allowed is True
        assert (await consume_one(driver, replace(at_once, cost=1))).allowed is False


is_exactly_that_many(150)
is_exactly_that_many(999)


@case("processes that consume at the same time get exactly the burst")
async def _(ctx: Context) -> None:
    drivers = [await ctx.driver() for _ in range(3)]
    request = request_on(ctx.lock_name, hourly(burst=10))
    answers = await asyncio.gather(*(consume_one(driver, request) for driver in drivers for _ in range(8)))
    assert sum(answer.allowed for answer in answers) == 10


async def until_refused(driver: Driver, request: RateRequest) -> RateAnswer:
    while True:
        answer = await consume_one(driver, request)
        if not answer.allowed:
            return answer
