"""One step of the generic cell rate algorithm, for stores that count in this process (memory and SQLite).

protocol/README.md, "Rate limits", says what the numbers mean. Every limit has one moment under the name and the limit's
id: when nothing of the limit will be in use any more. A request moves the moments of all of its limits, or of none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Sequence

from ...core.driver import RateAnswer, RateLimit, RateRequest

_ROUNDING_MS = 1.0
"""A double holds today's time in milliseconds to a quarter of a microsecond, and the errors of a burst may add up."""


@dataclass
class Moment:
    """What a store keeps for a limit on a name. A new one is that of a limit of which nothing is in use."""

    at_ms: float = 0.0
    until_ms: float = 0.0
    """The end of a block. 0: the limit is not blocked."""
    block_ms: float = 0.0
    """How long the block was when it was made."""

    @property
    def end_ms(self) -> float:
        """From when on there is nothing left to store."""
        return max(self.at_ms, self.until_ms)


@dataclass(frozen=True)
class Policy:
    """What a request takes of its limits. Each tuple has one entry for each limit."""

    cost: int
    ids: tuple[str, ...]
    """The id under which each limit's moment is stored, beside the name."""
    spacings_ms: tuple[float, ...]
    steps_ms: tuple[float, ...]
    """How far one request moves each moment. Never 0."""
    fulls_ms: tuple[float, ...]
    """How far ahead each moment may be. Slightly more than burst × spacing, because sums of fractions come out too
    large, but less than a unit more, so that no period has a unit too many."""


def period_micros(limit: RateLimit) -> int:
    """Whole microseconds, so that every language writes the same digits."""
    return math.floor(limit.period_ms * 1_000 + 0.5)


def limit_id(limit: RateLimit) -> str:
    return f"{limit.limit}/{period_micros(limit)}/{limit.burst}"


def policy_of(request: RateRequest) -> Policy:
    return _policy(request.cost, tuple(request.limits))


@lru_cache(maxsize=256)
def _policy(cost: int, limits: tuple[RateLimit, ...]) -> Policy:
    spacings = tuple(each.period_ms / each.limit for each in limits)
    return Policy(
        cost=cost,
        ids=tuple(limit_id(each) for each in limits),
        spacings_ms=spacings,
        steps_ms=tuple(spacing * (cost or 1) for spacing in spacings),
        fulls_ms=tuple(
            spacing * each.burst + min(_ROUNDING_MS, spacing / 4) for spacing, each in zip(spacings, limits)
        ),
    )


def take_step(request: RateRequest, moments: Sequence[Moment], now_ms: float) -> RateAnswer:
    """Executes the request on the stored moments of its limits, which it changes in place, and answers it.

    The store writes back the moments that differ from what it had. A moment whose `end_ms` has passed need not be
    stored: a look and a refused first request leave nothing behind, and a reset deletes.
    """
    policy = policy_of(request)
    if request.reset:
        for moment in moments:
            moment.at_ms = moment.until_ms = moment.block_ms = 0.0
    elif request.block_ms is not None:
        for moment in moments:
            moment.until_ms = now_ms + request.block_ms if request.block_ms > 0 else 0.0
            moment.block_ms = request.block_ms
    writes = policy.cost > 0
    used_ms: list[float] = []
    blocked_ms = 0.0
    fits = True
    for moment, step_ms, full_ms in zip(moments, policy.steps_ms, policy.fulls_ms):
        ahead_ms = max(moment.at_ms - now_ms, 0.0)
        if ahead_ms > full_ms:
            # Only a clock that was set back does that. Without this, every call would be refused until the clock has
            # reached its old time again.
            ahead_ms = full_ms
            if writes:
                moment.at_ms = now_ms + full_ms
        used_ms.append(ahead_ms)
        blocked_ms = max(blocked_ms, _blocked_ms(moment, now_ms, writes))
        fits = fits and math.floor((full_ms - ahead_ms) / step_ms) >= 1
    taken = writes and fits and blocked_ms == 0
    if taken:
        for at, (moment, step_ms) in enumerate(zip(moments, policy.steps_ms)):
            used_ms[at] += step_ms
            moment.at_ms = now_ms + used_ms[at]
    return answer_of(policy, taken or not writes, used_ms, blocked_ms)


def _blocked_ms(moment: Moment, now_ms: float, writes: bool) -> float:
    """As for a moment: a block with more time left than its length comes from a clock that was set back."""
    left_ms = moment.until_ms - now_ms
    if left_ms <= moment.block_ms:
        return max(0.0, left_ms)
    if writes:
        moment.until_ms = now_ms + moment.block_ms
    return moment.block_ms


def answer_of(policy: Policy, allowed: bool, used_ms: Sequence[float], blocked_ms: float = 0.0) -> RateAnswer:
    """The answer to a request after which the moments are `used_ms` ahead of now. Stores that count themselves, such as
    Redis and PostgreSQL, need only this."""
    remaining = min(
        max(0, math.floor((full - used) / spacing))
        for full, used, spacing in zip(policy.fulls_ms, used_ms, policy.spacings_ms)
    )
    retry_after_ms = 0.0
    if not allowed:
        retry_after_ms = max(
            0.0, *(used + step - full for used, step, full in zip(used_ms, policy.steps_ms, policy.fulls_ms))
        )
    reset_after_ms = max(used_ms)
    if blocked_ms == 0:
        return RateAnswer(allowed, remaining, retry_after_ms, reset_after_ms, tuple(used_ms))
    return RateAnswer(
        allowed,
        0,
        0.0 if allowed else max(retry_after_ms, blocked_ms),
        max(reset_after_ms, blocked_ms),
        tuple(used_ms),
        blocked_ms,
    )
