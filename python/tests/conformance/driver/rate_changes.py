"""A reset of a rate limit, and a block."""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.driver import RateAnswer

from ..context import Context
from ..driver_calls import consume_one, unwrap_all
from ..rate_requests import HOUR_MS, TEN_AN_HOUR, TWENTY_A_DAY, block_of, hourly, is_just_below, request_on, reset_of
from ..suite import Group
from ..timing import outlast

rate_changes = Group("driver interface: rate limits that are reset or blocked", needs=["rate"])
case = rate_changes.case


@case("a reset forgets what was taken, for every process")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    for limits in ([hourly(burst=2)], [hourly(burst=2), TWENTY_A_DAY]):
        request = request_on(ctx.name(len(limits)), *limits, cost=2)
        assert (await consume_one(a, request)).allowed is True
        assert (await consume_one(b, request)).allowed is False
        answer = await consume_one(b, reset_of(request))
        assert (answer.remaining, answer.reset_after_ms, answer.blocked_ms) == (2, 0, None)
        assert list(answer.used_ms) == [0] * len(limits)
        assert (await consume_one(a, request)).allowed is True
        assert (await consume_one(b, request)).allowed is False
    untouched = request_on(ctx.name("never used"), TEN_AN_HOUR)
    assert (await consume_one(a, reset_of(untouched))).remaining == 10


@case("a block refuses every request until it ends, and the answers say when that is")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    for limits in ([TEN_AN_HOUR], [TEN_AN_HOUR, TWENTY_A_DAY]):
        request = request_on(ctx.name(len(limits)), *limits)
        assert (await consume_one(a, request)).remaining == 9
        assert is_blocked_for_an_hour(await consume_one(b, block_of(request, HOUR_MS)))
        refused = await consume_one(a, request)
        assert (refused.allowed, refused.remaining) == (False, 0)
        assert is_blocked_for_an_hour(refused)
        assert is_just_below(refused.retry_after_ms, HOUR_MS)
        assert refused.reset_after_ms >= refused.retry_after_ms
        looked = await consume_one(b, replace(request, cost=0))
        assert looked.remaining == 0
        assert is_blocked_for_an_hour(looked)


@case("a block leaves what was taken before as it is")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, hourly(burst=3), cost=2)
    assert (await consume_one(driver, request)).remaining == 1
    # Long enough for the next request to come before its end.
    await consume_one(driver, block_of(request, 1_000))
    assert (await consume_one(driver, request)).allowed is False
    await outlast(1_000)
    answer = await consume_one(driver, request)
    assert (answer.allowed, answer.remaining, answer.blocked_ms) == (False, 1, None)
    assert (await consume_one(driver, replace(request, cost=1))).remaining == 0


@case("a block of an unused name ends, and leaves the name as it was")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, TEN_AN_HOUR, TWENTY_A_DAY)
    blocked_ms = (await consume_one(driver, block_of(request, 100))).blocked_ms
    assert blocked_ms is not None and 0 < blocked_ms <= 100
    await outlast(blocked_ms)
    assert (await consume_one(driver, request)).remaining == 9


@case("a block is replaced by a longer or shorter one, and ended by 0 or a reset")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, TEN_AN_HOUR)
    await consume_one(driver, request)
    for block_ms in (600_000, HOUR_MS, 600_000):
        answer = await consume_one(driver, block_of(request, block_ms))
        assert answer.blocked_ms is not None and is_just_below(answer.blocked_ms, block_ms)
        assert is_just_below((await consume_one(driver, request)).retry_after_ms, block_ms)
    assert (await consume_one(driver, block_of(request, 0))).blocked_ms is None
    assert (await consume_one(driver, request)).remaining == 8
    await consume_one(driver, block_of(request, 600_000))
    assert (await consume_one(driver, reset_of(request))).remaining == 10
    assert (await consume_one(driver, request)).remaining == 9


@case("a reset and a block change the request’s own limits, and no other limits of the name")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    by_hour, by_day = request_on(ctx.lock_name, TEN_AN_HOUR), request_on(ctx.lock_name, TWENTY_A_DAY)
    both = request_on(ctx.lock_name, TWENTY_A_DAY, TEN_AN_HOUR)
    await consume_one(driver, both)
    await consume_one(driver, reset_of(by_hour))
    assert (await consume_one(driver, by_hour)).remaining == 9
    assert (await consume_one(driver, by_day)).remaining == 18
    await consume_one(driver, block_of(by_hour, HOUR_MS))
    assert (await consume_one(driver, by_day)).remaining == 17
    refused = await consume_one(driver, both)
    assert not refused.allowed and is_just_below(refused.retry_after_ms, HOUR_MS), "one of its limits is blocked"
    assert (await consume_one(driver, by_day)).remaining == 16
    await consume_one(driver, reset_of(by_day))
    assert (await consume_one(driver, by_day)).remaining == 19
    assert (await consume_one(driver, by_hour)).allowed is False


@case("a reset and a block take effect at their place in the list")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    one = request_on(ctx.lock_name, hourly(burst=1))
    reset, block = reset_of(one), block_of(one, HOUR_MS)
    other = request_on(ctx.name("other"), hourly(burst=1))
    requests = [one, one, reset, other, one, reset, block, one, reset, one]
    answers = unwrap_all(await driver.consume(requests))
    allowed = [answer.allowed for request, answer in zip(requests, answers) if request in (one, other)]
    assert allowed == [True, False, True, True, False, True]


def is_blocked_for_an_hour(answer: RateAnswer) -> bool:
    return answer.blocked_ms is not None and is_just_below(answer.blocked_ms, HOUR_MS)
