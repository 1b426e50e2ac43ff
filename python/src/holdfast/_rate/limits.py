"""The limits of a rate limiter, and what its calls return."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

from ..core.arguments import Seconds, check_seconds, check_whole, number_of
from ..core.driver import RateAnswer, RateLimit
from ..core.limits import MAX_RATE_LIMITS, MAX_TTL_MS
from ..errors import InvalidArgumentError

MAX_UNITS = 1_000_000_000


@dataclass(frozen=True, init=False)
class Rate:
    """A number of units per period: `Rate(100, period_seconds=60)`, or `Rate.per_minute(100)`."""

    limit: int
    """How many units are available per period in the long run. From 1 to a billion."""
    period_seconds: float
    """The length of the period. From 0.001 to one year; may be a fraction."""
    burst: Optional[int] = None
    """How many units are available at once after a pause. The default is `limit`.

    In any period, wherever it begins, at most `limit + burst` units are allowed. To allow at most n in any period,
    choose the two so that their sum is n.
    """

    def __init__(self, limit: int, period_seconds: Seconds, burst: Optional[int] = None) -> None:
        """Checked by the limiter that gets it."""
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "period_seconds", number_of(period_seconds))
        object.__setattr__(self, "burst", burst)

    @classmethod
    def per_second(cls, limit: int, *, burst: Optional[int] = None) -> Rate:
        return cls(limit, 1, burst)

    @classmethod
    def per_minute(cls, limit: int, *, burst: Optional[int] = None) -> Rate:
        return cls(limit, 60, burst)

    @classmethod
    def per_hour(cls, limit: int, *, burst: Optional[int] = None) -> Rate:
        return cls(limit, 3_600, burst)

    @classmethod
    def per_day(cls, limit: int, *, burst: Optional[int] = None) -> Rate:
        return cls(limit, 86_400, burst)


Limits = Union[Rate, str, Sequence[Union[Rate, str]]]
"""One limit, or a sequence of one to four. A text such as `"100/minute"` is the same as `Rate.per_minute(100)`."""


@dataclass(frozen=True)
class LimitStanding:
    """The state of one limit after a call."""

    remaining: int
    """How many units are available now."""
    next_after_seconds: float
    """The time until one more unit is available. 0 if all are."""
    reset_after_seconds: float
    """The time until it is as if nothing had been taken."""


@dataclass(frozen=True)
class RateLimitResult:
    """What a call returns. It is true if the units were taken: `if await limiter.consume(key): …`."""

    allowed: bool
    """Whether the units were taken."""
    remaining: int
    """How many units are available now under the tightest limit."""
    retry_after_seconds: float
    """When the same call can succeed, if no other call takes the units before. 0 if it was allowed."""
    reset_after_seconds: float
    """The time until all limits are as if nothing had been taken."""
    limits: Sequence[LimitStanding]
    """The state of each limit, in the order of the limiter's `limits`."""
    fallback: bool = False
    """The store could not be reached, and the limiter's `fallback` answered. The numbers are those of its limits."""

    def __bool__(self) -> bool:
        return self.allowed


@dataclass(frozen=True)
class Limit(RateLimit):
    """A limit in the form for drivers, with two numbers that every call needs."""

    spacing_ms: float = 0
    """How long it takes until one unit is available again."""
    full_ms: float = 0
    """How long it takes until all units are."""

    @property
    def rate(self) -> Rate:
        return Rate(self.limit, self.period_ms / 1_000, self.burst)


def limits_from(limits: Any) -> tuple[Limit, ...]:
    """Checks the limits and converts them for drivers."""
    if isinstance(limits, (Rate, str)):
        return (_limit_from("limits", limits),)
    if not isinstance(limits, Sequence) or not 1 <= len(limits) <= MAX_RATE_LIMITS:
        raise InvalidArgumentError("limits", limits, f"a Rate, or a sequence of 1 to {MAX_RATE_LIMITS}")
    return tuple(_limit_from(f"limits[{at}]", each) for at, each in enumerate(limits))


_TEXT = re.compile(r"([0-9]{1,10})/(second|minute|hour|day)", re.ASCII)
_PERIODS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}


def _limit_from(argument: str, value: object) -> Limit:
    if isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match is None:
            raise InvalidArgumentError(argument, value, 'a text such as "100/minute" (second, minute, hour or day)')
        value = Rate(int(match[1]), _PERIODS[match[2]])
    if not isinstance(value, Rate):
        raise InvalidArgumentError(argument, value, 'a Rate, or a text such as "100/minute"')
    limit = check_whole(f"{argument}.limit", value.limit, 1, MAX_UNITS)
    burst = check_whole(f"{argument}.burst", limit if value.burst is None else value.burst, 1, MAX_UNITS)
    # Not rounded to a whole millisecond: the id of a limit has its period in microseconds.
    period_ms = check_seconds(f"{argument}.period_seconds", value.period_seconds, 0.001, MAX_TTL_MS / 1_000) * 1_000
    spacing_ms = period_ms / limit
    full_ms = spacing_ms * burst
    # The store remembers the limit for this long.
    if full_ms > MAX_TTL_MS:
        rule = "one that comes back within a year at this limit"
        raise InvalidArgumentError(f"{argument}.burst", burst, rule)
    return Limit(limit, period_ms, burst, spacing_ms, full_ms)


def result_from(answer: RateAnswer, limits: Sequence[Limit]) -> RateLimitResult:
    return RateLimitResult(
        allowed=answer.allowed,
        remaining=answer.remaining,
        retry_after_seconds=answer.retry_after_ms / 1_000,
        reset_after_seconds=answer.reset_after_ms / 1_000,
        limits=tuple(
            _standing(limit, used_ms, answer.blocked_ms or 0.0) for limit, used_ms in zip(limits, answer.used_ms)
        ),
    )


def _standing(limit: Limit, used_ms: float, blocked_ms: float) -> LimitStanding:
    # A thousandth of a unit, because sums of fractions are not exact.
    remaining = max(0, math.floor((limit.full_ms - used_ms) / limit.spacing_ms + 0.001))
    next_ms = 0.0
    if remaining < limit.burst:
        next_ms = max(0.0, used_ms + limit.spacing_ms * (remaining + 1) - limit.full_ms)
    if blocked_ms == 0:
        return LimitStanding(remaining, next_ms / 1_000, used_ms / 1_000)
    next_ms = max(blocked_ms, 0.0 if remaining > 0 else next_ms)
    return LimitStanding(0, next_ms / 1_000, max(blocked_ms, used_ms) / 1_000)


def foreseen(answer: RateAnswer, cost: int, limits: Sequence[Limit]) -> RateLimitResult:
    """What `consume` would answer, computed from a look that takes nothing."""
    allowed = answer.remaining >= cost
    retry_after_ms = 0.0
    if not allowed:
        needed = (used + limit.spacing_ms * cost - limit.full_ms for used, limit in zip(answer.used_ms, limits))
        retry_after_ms = max(answer.blocked_ms or 0.0, 0.0, *needed)
    result = result_from(answer, limits)
    return RateLimitResult(
        allowed, result.remaining, retry_after_ms / 1_000, result.reset_after_seconds, result.limits
    )
