"""The rate limiter on the memory driver. Time is the store's: most limits are too slow to matter within a test."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any, AsyncIterator, Callable, List

import pytest

from conformance.faulty_network import FaultyNetwork, fails, hold_reply
from holdfast import (
    ClosedError,
    InvalidArgumentError,
    LocalShare,
    Rate,
    RateLimitedError,
    RateLimiter,
    RateLimitHeaders,
    StoreError,
    UnsupportedError,
)
from holdfast.drivers.memory import MemoryStore, memory_driver
from support.polling import until

Limiter = Callable[..., RateLimiter]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def network(store: MemoryStore) -> FaultyNetwork:
    return FaultyNetwork(memory_driver(store))


@pytest.fixture
async def limiter(store: MemoryStore) -> AsyncIterator[Limiter]:
    """Limiters on one store, each with its own driver, as in separate processes."""
    opened: List[RateLimiter] = []

    def create(limits: Any, driver: Any = None, **options: Any) -> RateLimiter:
        each = RateLimiter(memory_driver(store) if driver is None else driver, limits=limits, **options)
        opened.append(each)
        return each

    yield create
    for each in opened:
        await each.close()


async def test_exactly_the_burst_passes_at_once_over_all_limiters_with_the_same_limit(limiter: Limiter) -> None:
    a, b = limiter("10/hour"), limiter(Rate.per_hour(10))
    results = await asyncio.gather(*(each.consume("key") for each in (a, b) * 10))
    assert sum(map(bool, results)) == 10
    assert await a.consume("another")


async def test_a_result_says_what_is_left_and_when_to_try_again(limiter: Limiter) -> None:
    limits = limiter([Rate(4, 3_600), Rate(100, 86_400, burst=50)])
    first = await limits.consume("key", cost=3)
    assert first.allowed and first.remaining == 1 and first.retry_after_seconds == 0
    assert [each.remaining for each in first.limits] == [1, 47]
    refused = await limits.consume("key", cost=2)
    assert not refused.allowed and refused.remaining == 1
    assert 800 < refused.retry_after_seconds <= 900
    assert await limits.consume("key")  # a refused call is not charged
    assert limits.limits == (Rate(4, 3_600, 4), Rate(100, 86_400, 50))


async def test_check_raises_when_the_call_is_over_the_limit(limiter: Limiter) -> None:
    limits = limiter("1/hour")
    assert (await limits.check("key")).allowed
    with pytest.raises(RateLimitedError) as raised:
        await limits.check("key")
    assert (raised.value.code, raised.value.key) == ("RATE_LIMITED", "key")
    assert raised.value.retry_after_seconds > 3_500


async def test_peek_foresees_and_takes_nothing(limiter: Limiter) -> None:
    limits = limiter("2/hour")
    for _ in range(3):
        assert (await limits.peek("key")).remaining == 2
    await limits.consume("key")
    assert await limits.peek("key")
    foreseen = await limits.peek("key", cost=2)
    refused = await limits.consume("key", cost=2)
    assert not foreseen and abs(foreseen.retry_after_seconds - refused.retry_after_seconds) < 10


async def test_reset_and_block_apply_to_every_limiter_with_the_limit(limiter: Limiter) -> None:
    a, b = limiter("3/hour"), limiter("3/hour")
    await a.consume("key", cost=3)
    assert not await a.consume("key")
    await b.reset("key")
    assert await b.consume("key")
    await a.reset("key")
    assert (await a.consume("key")).remaining == 2
    await b.block("key", 600)
    refused = await a.consume("key")
    assert not refused and 590 < refused.retry_after_seconds <= 600
    await a.block("key", 0)
    assert (await a.consume("key")).remaining == 1


async def test_a_refusal_is_remembered_and_costs_no_round_trip(limiter: Limiter, network: FaultyNetwork) -> None:
    limits = limiter("1/hour", network.driver)
    await limits.consume("key")
    assert not await limits.consume("key")
    asked = network.counts["consume"].calls
    for _ in range(20):
        assert not await limits.consume("key")
    assert network.counts["consume"].calls == asked
    await limits.reset("key")
    assert await limits.consume("key")


async def test_a_refusal_that_was_on_its_way_during_a_reset_is_forgotten(
    limiter: Limiter, network: FaultyNetwork
) -> None:
    limits = limiter("1/hour", network.driver)
    await limits.consume("key")
    late = hold_reply()
    network.once("consume", late.fault)
    refused = asyncio.create_task(limits.consume("key"))
    await late.reached.wait()
    await limits.reset("key")
    late.resume()
    assert not await refused
    assert await limits.consume("key")


async def test_a_wait_ends_when_the_units_are_available(limiter: Limiter) -> None:
    limits = limiter(Rate(20, 1, burst=1))
    began = time.monotonic()
    for _ in range(4):
        assert await limits.wait("key")
    assert time.monotonic() - began >= 0.145


async def test_a_wait_is_refused_as_soon_as_it_is_certain_that_its_time_is_not_enough(limiter: Limiter) -> None:
    limits = limiter("1/hour")
    await limits.wait("key")
    with pytest.raises(RateLimitedError) as raised:
        await limits.wait("key", blocking_timeout_seconds=600)
    assert raised.value.retry_after_seconds > 3_000
    with pytest.raises(RateLimitedError):
        await limits.wait("key", blocking_timeout_seconds=0)


async def test_waits_for_one_key_are_served_first_come_first_served_at_any_cost(limiter: Limiter) -> None:
    limits = limiter(Rate(100, 1, burst=4))
    await limits.consume("key", cost=4)
    served: List[int] = []

    async def wait(number: int, cost: int) -> None:
        await limits.wait("key", cost=cost)
        served.append(number)

    tasks = []
    for number, cost in enumerate((4, 1, 3, 1, 1)):
        tasks.append(asyncio.create_task(wait(number, cost)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4]


async def test_a_wait_behind_a_slow_answer_is_not_refused_while_there_are_units(
    limiter: Limiter, network: FaultyNetwork
) -> None:
    limits = limiter("10/hour", network.driver)
    slow = hold_reply()
    network.once("consume", slow.fault)
    first = asyncio.create_task(limits.wait("key"))
    await slow.reached.wait()
    assert (await limits.wait("key", blocking_timeout_seconds=0)).remaining == 8
    slow.resume()
    assert (await first).remaining == 9


async def test_a_cancelled_wait_leaves_the_queue_and_the_next_call_is_served(limiter: Limiter) -> None:
    limits = limiter("2/hour")
    await limits.consume("key", cost=2)
    calls = [asyncio.create_task(limits.wait("key", blocking_timeout_seconds=7_200)) for _ in range(4)]
    await until(lambda: limits._waiting._queues)
    for index in (0, 2):
        calls[index].cancel()
    await asyncio.wait([calls[0], calls[2]])
    await limits.reset("key")
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in results] == [True, False, True, False]
    assert limits._waiting._queues == {} and limits._waiting._calls == set()


async def test_a_reset_wakes_the_calls_that_wait(limiter: Limiter) -> None:
    limits = limiter("2/hour")
    await limits.consume("key", cost=2)
    calls = [asyncio.create_task(limits.wait("key", blocking_timeout_seconds=7_200)) for _ in range(2)]
    await until(lambda: limits._waiting._queues)
    await limits.reset("key")
    assert all(await asyncio.gather(*calls))


async def test_closing_ends_the_calls_that_wait(limiter: Limiter) -> None:
    limits = limiter("1/hour")
    await limits.consume("key")
    calls = [asyncio.create_task(limits.wait("key", blocking_timeout_seconds=7_200)) for _ in range(3)]
    await until(lambda: limits._waiting._queues)
    await limits.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in results] == [ClosedError] * 3
    with pytest.raises(ClosedError):
        await limits.consume("key")


async def test_a_wait_whose_request_is_not_answered_in_its_time_is_a_store_error(
    limiter: Limiter, network: FaultyNetwork
) -> None:
    limits = limiter("1/hour", network.driver)
    network.always("consume", network.hangs)
    with pytest.raises(StoreError):
        await limits.wait("key", blocking_timeout_seconds=0.05)
    network.heal()


async def test_an_outage_is_a_store_error_and_a_cost_that_can_never_be_allowed_is_refused(
    limiter: Limiter, network: FaultyNetwork
) -> None:
    limits = limiter([Rate(10, 1), Rate(100, 3_600, burst=3)], network.driver)
    network.always("consume", fails)
    for call in (limits.consume("key"), limits.peek("key"), limits.reset("key"), limits.block("key", 1)):
        with pytest.raises(StoreError):
            await call
    network.heal()
    wrong: List[Any] = [0, 4, 1.5, True, None, "1"]
    for cost in wrong:
        with pytest.raises(InvalidArgumentError, match="cost must be a whole number from 1 to 3"):
            await limits.consume("key", cost=cost)
    with pytest.raises(InvalidArgumentError, match="key must be"):
        await limits.consume("")
    with pytest.raises(InvalidArgumentError, match="seconds must be"):
        await limits.block("key", -1)


async def test_a_driver_without_rates_is_refused_with_a_reason(limiter: Limiter) -> None:
    driver = memory_driver()
    driver.capabilities = replace(
        driver.capabilities, rate=False, reasons={"rate": "majorities do not preserve a count"}
    )
    with pytest.raises(UnsupportedError, match="rate limits: majorities"):
        await limiter("1/hour", driver).consume("key")


async def test_ping_proves_that_the_store_works_and_leaves_nothing_behind(
    limiter: Limiter, network: FaultyNetwork
) -> None:
    limits = limiter("1/hour", network.driver)
    await limits.ping()
    network.always("consume", fails)
    with pytest.raises(StoreError):
        await limits.ping()


# The fallback


async def test_the_fallback_answers_in_an_outage_and_one_call_tries_the_store_again(
    limiter: Limiter, network: FaultyNetwork
) -> None:
    fallback = limiter("2/hour", memory_driver())
    limits = limiter("5/hour", network.driver, fallback=fallback, fallback_seconds=0)
    assert (await limits.consume("key")).remaining == 4
    network.always("consume", fails)
    answer = await limits.consume("key")
    assert (answer.allowed, answer.remaining, answer.fallback) == (True, 1, True)
    assert (await limits.peek("key")).fallback
    network.heal()
    back = await limits.consume("key")
    assert (back.remaining, back.fallback) == (3, False)


async def test_the_store_is_not_asked_again_before_fallback_seconds_have_passed(
    limiter: Limiter, network: FaultyNetwork
) -> None:
    limits = limiter("5/hour", network.driver, fallback=limiter("5/hour", memory_driver()), fallback_seconds=600)
    network.always("consume", fails)
    await limits.consume("key")
    asked = network.counts["consume"].calls
    network.heal()
    assert (await limits.consume("key")).fallback
    assert network.counts["consume"].calls == asked


async def test_while_one_call_tries_the_store_the_fallback_answers_the_others(
    limiter: Limiter, network: FaultyNetwork
) -> None:
    limits = limiter("5/hour", network.driver, fallback=limiter("5/hour", memory_driver()), fallback_seconds=0)
    network.once("consume", fails)
    await limits.consume("key")
    late = hold_reply()
    network.once("consume", late.fault)
    trying = asyncio.create_task(limits.consume("key"))
    await late.reached.wait()
    assert (await limits.consume("key")).fallback
    late.resume()
    assert not (await trying).fallback
    # A call that is cancelled while it tries the store must not leave the fallback in charge for ever.
    network.once("consume", fails)
    await limits.consume("key")
    late = hold_reply()
    network.once("consume", late.fault)
    trying = asyncio.create_task(limits.consume("key"))
    await late.reached.wait()
    trying.cancel()
    await asyncio.wait({trying})
    late.resume()
    assert not (await limits.consume("key")).fallback


async def test_the_fallback_does_not_hide_other_errors_or_a_cost_that_it_can_never_allow(
    limiter: Limiter, network: FaultyNetwork
) -> None:
    limits = limiter("5/hour", network.driver, fallback=limiter("2/hour", memory_driver()), fallback_seconds=0)
    network.always("consume", fails)
    with pytest.raises(StoreError):
        await limits.consume("key", cost=3)
    with pytest.raises(InvalidArgumentError):
        limiter("5/hour", fallback="memory:")
    network.heal()


async def test_header_fields_come_from_the_limiter(limiter: Limiter) -> None:
    limits = limiter("2/minute")
    headers = RateLimitHeaders(limits.limits)
    fields = headers.fields(await limits.consume("key"))
    assert fields == {"RateLimit-Policy": '"default";q=2;w=60', "RateLimit": '"default";r=1;t=30'}
    await limits.consume("key")
    refused = await limits.consume("key")
    assert headers.fields(refused)["Retry-After"] == "30"


# The local share


async def test_a_local_share_costs_one_round_trip_per_block(limiter: Limiter, network: FaultyNetwork) -> None:
    limits = limiter("100/hour", network.driver, local_share=LocalShare(units=10, for_seconds=600))
    for left in range(99, 49, -1):
        result = await limits.consume("key")
        assert result and result.remaining == left
    assert network.counts["consume"].requests == 5


async def test_a_local_share_hands_out_all_units_to_calls_of_different_costs(limiter: Limiter) -> None:
    limits = limiter("100/hour", local_share=LocalShare(units=10, for_seconds=600))
    given = 0
    for call in range(100):
        cost = 1 if call % 2 == 0 else 10
        given += cost if await limits.consume("key", cost=cost) else 0
    assert given == 100


async def test_local_shares_of_several_limiters_never_take_more_than_the_limit(limiter: Limiter) -> None:
    share = LocalShare(units=4, for_seconds=600)
    several = [limiter("30/hour", local_share=share) for _ in range(3)]
    allowed = 0
    for _ in range(20):
        results = await asyncio.gather(*(each.consume("key") for each in several for _ in range(2)))
        allowed += sum(map(bool, results))
    assert allowed == 30


async def test_a_local_share_is_lost_after_its_time_and_forgotten_with_a_reset_or_block(
    limiter: Limiter, network: FaultyNetwork
) -> None:
    limits = limiter("100/hour", network.driver, local_share=LocalShare(units=10, for_seconds=0.05))
    await limits.consume("key")
    await asyncio.sleep(0.06)
    await limits.consume("key")
    assert network.counts["consume"].requests == 2
    await limits.block("key", 600)
    assert not await limits.consume("key")
    await limits.reset("key")
    assert (await limits.consume("key")).remaining == 99


async def test_a_cancelled_call_does_not_take_the_block_from_the_others(
    limiter: Limiter, network: FaultyNetwork
) -> None:
    limits = limiter("100/hour", network.driver, local_share=LocalShare(units=10, for_seconds=600))
    late = hold_reply()
    network.once("consume", late.fault)
    first = asyncio.create_task(limits.consume("key"))
    await late.reached.wait()
    second = asyncio.create_task(limits.consume("key"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    late.resume()
    assert (await second).remaining == 99
    assert network.counts["consume"].requests == 1


def test_a_share_that_is_not_valid_is_refused() -> None:
    wrong: List[Any] = [LocalShare(11, 1), LocalShare(0, 1), LocalShare(1, 0), LocalShare(1, float("nan")), 7]
    for share in wrong:
        with pytest.raises(InvalidArgumentError, match="local_share"):
            RateLimiter("memory:", limits="10/hour", local_share=share)
