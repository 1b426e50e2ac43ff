"""Limits and requests that the rate-limiting cases share."""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.driver import RateLimit, RateRequest

HOUR_MS = 3_600_000

TEN_AN_HOUR = RateLimit(limit=10, period_ms=HOUR_MS, burst=10)
TWENTY_A_DAY = RateLimit(limit=20, period_ms=86_400_000, burst=20)


def hourly(burst: int) -> RateLimit:
    """One an hour: no unit is given back while a case runs, however slow the machine is."""
    return RateLimit(limit=1, period_ms=HOUR_MS, burst=burst)


def request_on(name: str, *limits: RateLimit, cost: int = 1) -> RateRequest:
    return RateRequest(name=name, cost=cost, limits=limits)


def reset_of(request: RateRequest) -> RateRequest:
    return replace(request, cost=0, reset=True)


def block_of(request: RateRequest, block_ms: float) -> RateRequest:
    return replace(request, cost=0, block_ms=block_ms)


def is_just_below(ms: float, bound_ms: float) -> bool:
    """Allows for a minute of the case's own running time."""
    return bound_ms - 60_000 < ms <= bound_ms + 1
