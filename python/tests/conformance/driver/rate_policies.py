"""Several limits in one request, and requests on one name with different limits, as in a rolling deploy."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Sequence, Tuple

from holdfast.core.driver import Driver, RateLimit, RateRequest

from ..context import Context
from ..driver_calls import consume_one, unwrap_all
from ..rate_requests import HOUR_MS, TEN_AN_HOUR, TWENTY_A_DAY, hourly, is_just_below, request_on
from ..suite import Group
from ..timing import outlast, sleep_ms

rate_policies = Group("driver interface: several rate limits", needs=["rate"])
case = rate_policies.case

Policy = Sequence[RateLimit]

THIRTY_A_DAY = RateLimit(limit=30, period_ms=86_400_000, burst=30)

CHANGED_LIMITS: List[Policy] = [
    [TWENTY_A_DAY, TEN_AN_HOUR],
    [TEN_AN_HOUR, THIRTY_A_DAY],
    [replace(TEN_AN_HOUR, burst=9), TWENTY_A_DAY],
]
"""A rolling deploy that changes a limit: the changed limit has its own state, and the other limits keep theirs."""

MIXED_POLICIES: Dict[str, List[Policy]] = {
    "some of the other’s limits": [[TWENTY_A_DAY], [TEN_AN_HOUR, TWENTY_A_DAY]],
    "the same limits in another order": [[TEN_AN_HOUR, TWENTY_A_DAY], [TWENTY_A_DAY, TEN_AN_HOUR]],
    "other limits": [[TEN_AN_HOUR], [TWENTY_A_DAY]],
    "a changed limit": CHANGED_LIMITS,
}


@case("several limits are charged together or not at all")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, RateLimit(limit=1, period_ms=30, burst=1), hourly(burst=4))
    allowed = 0
    # The narrow limit refuses most of these; the wide one must not be charged for them.
    while True:
        answer = await consume_one(driver, request)
        allowed += answer.allowed
        assert allowed <= 4
        if not answer.allowed and answer.retry_after_ms > 1_000:
            break
        await sleep_ms(2)  # until the narrow limit has room again
    assert allowed == 4


@case("of several limits the tightest decides, in any position")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    wide, tight = hourly(burst=10), hourly(burst=2)
    for name, limits in {"tight last": [wide, tight], "tight first": [tight, wide]}.items():
        request = request_on(ctx.name(name), *limits)
        assert (await consume_one(driver, request)).remaining == 1
        assert (await consume_one(driver, request)).remaining == 0
        assert (await consume_one(driver, request)).allowed is False


@case("the answer says how much of each of several limits is used")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    limits = [hourly(burst=5), RateLimit(limit=2, period_ms=HOUR_MS, burst=5)]
    first, second = (await consume_one(driver, request_on(ctx.lock_name, *limits, cost=2))).used_ms
    assert is_just_below(first, 2 * HOUR_MS)
    assert is_just_below(second, HOUR_MS)


@case("failure 56: 10 per hour beside 10 per hour and 20 per day allows 10 of 60 calls")
async def _(ctx: Context) -> None:
    old, fresh = await ctx.driver(), await ctx.driver()
    allowed = 0
    for _ in range(10):
        allowed += await allowed_of(old, 3, request_on(ctx.lock_name, TEN_AN_HOUR))
        allowed += await allowed_of(fresh, 3, request_on(ctx.lock_name, TEN_AN_HOUR, TWENTY_A_DAY))
    assert allowed == 10


@case("failure 56: calls without the daily limit do not reset it: 20 per day allows 20 of 90")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    often = RateLimit(limit=1_000, period_ms=HOUR_MS, burst=1_000)
    allowed = 0
    for _ in range(18):
        allowed += await allowed_of(driver, 5, request_on(ctx.lock_name, often, TWENTY_A_DAY))
        assert (await consume_one(driver, request_on(ctx.lock_name, often))).allowed is True
    assert allowed == 20


def each_limit_holds(relation: str, policies: List[Policy]) -> None:
    @case(f"failure 56: each limit holds on its own when one name has policies with {relation}")
    async def _(ctx: Context) -> None:
        driver = await ctx.driver()
        # A store might remember only the policy that came first.
        for round, order in enumerate([policies, policies[::-1]]):
            left = Countdown()
            for call in range(45):
                limits = order[call % len(order)]
                answer = await consume_one(driver, request_on(ctx.name(round), *limits))
                assert (answer.allowed, answer.remaining) == left.take(limits), f"call {call} of round {round}"


for each_relation, each_policies in MIXED_POLICIES.items():
    each_limit_holds(each_relation, each_policies)


@case("failure 56: requests of one list on one name may have different limits")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    left = Countdown()
    requests = [
        request_on(ctx.lock_name, *CHANGED_LIMITS[call % len(CHANGED_LIMITS)], cost=int(call % 5 != 4))
        for call in range(60)
    ]
    answers = unwrap_all(await driver.consume(requests))
    assert [(answer.allowed, answer.remaining) for answer in answers] == [
        left.take(request.limits, request.cost) for request in requests
    ]


@case("failure 56: a request of cost 0 writes nothing, for any limits")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    three = replace(TEN_AN_HOUR, burst=3)

    async def look() -> List[int]:
        policies = [[TEN_AN_HOUR], [TWENTY_A_DAY], [TWENTY_A_DAY, TEN_AN_HOUR], [three]]
        requests = [request_on(ctx.lock_name, *limits, cost=0) for limits in policies]
        return [(await consume_one(driver, request)).remaining for request in requests]

    assert await look() == [10, 20, 10, 3]
    for _ in range(10):
        assert (await consume_one(driver, request_on(ctx.lock_name, TEN_AN_HOUR, TWENTY_A_DAY))).allowed is True
    for _ in range(3):
        assert await look() == [0, 10, 0, 3]
    assert (await consume_one(driver, request_on(ctx.lock_name, TEN_AN_HOUR))).allowed is False
    assert (await consume_one(driver, request_on(ctx.lock_name, TWENTY_A_DAY))).remaining == 9
    assert (await consume_one(driver, request_on(ctx.lock_name, three))).remaining == 2


@case("a limit that a request names twice is charged once")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    request = request_on(ctx.lock_name, TEN_AN_HOUR, TEN_AN_HOUR)
    assert [(await consume_one(driver, request)).remaining for _ in range(10)] == list(range(9, -1, -1))
    answer = await consume_one(driver, request)
    assert answer.allowed is False
    assert len(answer.used_ms) == 2


@case("a limit that has run out leaves the other limits as they are")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    brief, lasting = RateLimit(limit=1, period_ms=20, burst=1), hourly(burst=2)
    await consume_one(driver, request_on(ctx.lock_name, brief, lasting))
    await outlast(20)
    assert (await consume_one(driver, request_on(ctx.lock_name, lasting))).remaining == 0
    assert (await consume_one(driver, request_on(ctx.lock_name, brief))).allowed is True
    assert (await consume_one(driver, request_on(ctx.lock_name, lasting))).allowed is False


class Countdown:
    """What a store must answer while no unit is given back: each limit counts the requests that were allowed."""

    def __init__(self) -> None:
        self._left: Dict[RateLimit, int] = {}

    def take(self, limits: Policy, cost: int = 1) -> Tuple[bool, int]:
        allowed = self._least(limits) >= cost
        for limit in limits:
            self._left[limit] = self._left.get(limit, limit.burst) - (cost if allowed else 0)
        return allowed, self._least(limits)

    def _least(self, limits: Policy) -> int:
        return min(self._left.get(limit, limit.burst) for limit in limits)


async def allowed_of(driver: Driver, calls: int, request: RateRequest) -> int:
    """How many of so many equal requests in one list are allowed."""
    return sum(answer.allowed for answer in unwrap_all(await driver.consume([request] * calls)))
