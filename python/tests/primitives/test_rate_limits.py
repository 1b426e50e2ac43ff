"""The parts of the rate limiter that need no store: limits, header fields, remembered refusals."""

from __future__ import annotations

import math
from typing import Any, List

import pytest

from holdfast._protocol import read
from holdfast._rate.headers import RateLimitHeaders
from holdfast._rate.limits import LimitStanding, Rate, RateLimitResult, foreseen, limits_from, result_from
from holdfast._rate.remembered_refusals import RememberedRefusals
from holdfast.core.clock import Clock, Instant
from holdfast.core.driver import RateAnswer
from holdfast.drivers._shared.gcra import limit_id
from holdfast.errors import InvalidArgumentError


class StoppedClock(Clock):
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return 1_700_000_000 + self.seconds


def refused(retry: float, *, limits: int = 1) -> RateLimitResult:
    return RateLimitResult(False, 0, retry, retry + 9, (LimitStanding(0, retry, retry + 9),) * limits)


def test_the_id_and_spacing_of_a_limit_match_the_test_vectors() -> None:
    import json

    for vector in json.loads(read("vectors/rate-limits.json"))["vectors"]:
        (limit,) = limits_from(Rate(vector["limit"], vector["periodMs"] / 1_000, vector["burst"]))
        assert limit_id(limit) == vector["id"]
        assert math.isclose(limit.spacing_ms, vector["spacingMs"], rel_tol=1e-12)


def test_rates_can_be_written_in_several_ways() -> None:
    assert limits_from("100/minute") == limits_from(Rate.per_minute(100)) == limits_from([Rate(100, 60, 100)])
    assert [each.rate for each in limits_from(("5/second", Rate.per_hour(7, burst=2), "3/day"))] == [
        Rate(5, 1, 5),
        Rate(7, 3_600, 2),
        Rate(3, 86_400, 3),
    ]


@pytest.mark.parametrize(
    "limits, argument",
    [
        ([], "limits"),
        (["1/second"] * 5, "limits"),
        (7, "limits"),
        (None, "limits"),
        ("100/fortnight", "limits"),
        ("100 / minute", "limits"),
        ("0/minute", "limits.limit"),
        (["1/second", 3], "limits[1]"),
        (Rate(0, 1), "limits.limit"),
        (Rate(True, 1), "limits.limit"),
        (Rate(1.5, 1), "limits.limit"),  # type: ignore[arg-type]
        (Rate(1, 0.0001), "limits.period_seconds"),
        (Rate(1, float("nan")), "limits.period_seconds"),
        (Rate(1, 31_536_001), "limits.period_seconds"),
        (Rate(1, 1, 0), "limits.burst"),
        (Rate(1, 86_400, 366), "limits.burst"),
    ],
)
def test_limits_that_are_not_valid_are_refused_by_name(limits: Any, argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        limits_from(limits)
    assert raised.value.argument == argument


def test_a_result_says_what_is_left_of_each_limit() -> None:
    limits = limits_from([Rate(10, 10), Rate(100, 1_000, 20)])
    result = result_from(RateAnswer(True, 7, 0, 150_000, (3_000, 150_000)), limits)
    assert result
    assert result.limits == (LimitStanding(7, 1, 3), LimitStanding(5, 10, 150))
    blocked = result_from(RateAnswer(False, 0, 60_000, 150_000, (3_000, 150_000), 60_000), limits)
    assert not blocked
    assert blocked.limits == (LimitStanding(0, 60, 60), LimitStanding(0, 60, 150))


def test_a_look_foresees_what_a_step_would_answer() -> None:
    limits = limits_from(Rate(10, 10))
    answer = RateAnswer(True, 4, 0, 6_000, (6_000,))
    assert foreseen(answer, 4, limits).allowed
    refusal = foreseen(answer, 6, limits)
    assert (refusal.allowed, refusal.retry_after_seconds, refusal.remaining) == (False, 2, 4)


def test_header_fields_have_whole_seconds_rounded_up() -> None:
    one = RateLimitHeaders((Rate(100, 60, 100),))
    assert one.policy == '"default";q=100;w=60'
    allowed = RateLimitResult(True, 7, 0, 55.8, (LimitStanding(7, 0.6, 55.8),))
    assert one.fields(allowed) == {"RateLimit-Policy": one.policy, "RateLimit": '"default";r=7;t=1'}
    refusal = refused(3.2)
    assert one.fields(refusal)["Retry-After"] == "4"
    assert one.problem(refusal)["violated-policies"] == ["default"]


def test_a_refusal_names_only_the_exceeded_limits() -> None:
    two = RateLimitHeaders((Rate(10, 0.1, 5), Rate(1_000, 3_600)), names=("fast", "slow"))
    assert two.policy == '"fast";q=100;w=1;holdfast-burst=5, "slow";q=1000;w=3600'
    refusal = RateLimitResult(False, 0, 0.01, 9, (LimitStanding(0, 0.01, 1), LimitStanding(900, 3.6, 9)))
    assert two.standing(refusal) == '"fast";r=0;t=1'
    assert RateLimitHeaders((Rate(1, 1), Rate(1, 60))).policy == '"per-1s";q=1;w=1, "per-60s";q=1;w=60'


def test_a_fallback_has_no_fields_of_these_limits() -> None:
    headers = RateLimitHeaders((Rate(1, 1),))
    fallback = RateLimitResult(False, 0, 2, 2, (LimitStanding(0, 2, 2),), fallback=True)
    assert headers.fields(fallback) == {"Retry-After": "2"}
    assert headers.problem(fallback)["violated-policies"] == []


def test_names_that_would_break_the_header_are_refused() -> None:
    wrong: List[Any] = [('"',), ("a\n",), (), ("a", "b"), "a", (7,), ("é",)]
    for names in wrong:
        with pytest.raises(InvalidArgumentError):
            RateLimitHeaders((Rate(1, 1),), names=names)


def test_a_refusal_is_remembered_for_the_same_cost_or_more_until_its_time_has_passed() -> None:
    clock = StoppedClock()
    memory = RememberedRefusals(clock, limits_from(Rate(10, 10)))
    memory.note("key", 2, clock.now(), refused(4))
    assert memory.refusal("key", 1) is None
    assert memory.refusal("other", 2) is None
    clock.seconds += 1
    known = memory.refusal("key", 2)
    assert known is not None and math.isclose(known.retry_after_seconds, 3)
    larger = memory.refusal("key", 5)
    assert larger is not None and math.isclose(larger.retry_after_seconds, 12 + 5 - 10)
    clock.seconds += 3
    assert memory.refusal("key", 2) is None


def test_the_store_is_asked_again_after_ten_seconds() -> None:
    clock = StoppedClock()
    memory = RememberedRefusals(clock, limits_from(Rate(1, 3_600)))
    memory.note("key", 1, clock.now(), refused(3_000))
    clock.seconds += 9.9
    assert memory.refusal("key", 1) is not None
    clock.seconds += 0.2
    assert memory.refusal("key", 1) is None


def test_a_refusal_that_was_on_its_way_during_a_reset_is_not_remembered() -> None:
    clock = StoppedClock()
    memory = RememberedRefusals(clock, limits_from(Rate(1, 3_600)))
    asked: Instant = clock.now()
    clock.seconds += 0.1
    memory.forget("key")
    clock.seconds += 0.1
    memory.note("key", 1, asked, refused(3_000))
    assert memory.refusal("key", 1) is None


def test_ten_thousand_refusals_are_remembered_and_the_oldest_are_forgotten_first() -> None:
    clock = StoppedClock()
    memory = RememberedRefusals(clock, limits_from(Rate(1, 3_600)))
    for number in range(10_001):
        memory.note(str(number), 1, clock.now(), refused(3_000))
    assert memory.refusal("0", 1) is None
    assert memory.refusal("1", 1) is not None
    assert memory.refusal("10000", 1) is not None
