"""Refusals that are repeated without a round trip until their time has passed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Optional, Sequence

from ..core.clock import Clock, Instant
from .limits import Limit, LimitStanding, RateLimitResult

_MAX_REFUSALS = 10_000
"""How many refusals are remembered. With more, the oldest is forgotten, and the store is asked for its key."""
_MAX_MEMORY_MS = 10_000


@dataclass(frozen=True)
class _Refusal:
    cost: int
    until: Instant
    ask_again: Instant
    result: RateLimitResult


class RememberedRefusals:
    """The refusals that this process remembers.

    Units are never given back, so a refusal is valid until its time has passed: until then, the store need not be asked
    for the same cost or more. The time counts from the request, so it never ends after the store's own. From time to
    time the store is asked nevertheless: another process may have reset the key, or the store may have been emptied.
    """

    def __init__(self, clock: Clock, limits: Sequence[Limit]) -> None:
        self._clock = clock
        self._limits = limits
        self._refusals: dict[str, _Refusal] = {}
        self._changed_at_ms = -math.inf

    def refusal(self, key: str, cost: int) -> Optional[RateLimitResult]:
        """The remembered refusal of such a call."""
        found = self._refusals.get(key)
        if found is None:
            return None
        now = self._clock.now()
        if found.until.is_past(now) or found.ask_again.is_past(now):
            del self._refusals[key]
            return None
        if cost < found.cost:
            return None
        return self._aged(found, cost, found.until.due_at_ms(now) - now.monotonic_ms)

    def forget(self, key: str) -> None:
        """The key was reset or blocked. Answers to earlier requests are then void, even if they arrive later."""
        self._refusals.pop(key, None)
        self._changed_at_ms = self._clock.now().monotonic_ms

    def note(self, key: str, cost: int, asked_at: Instant, result: RateLimitResult) -> None:
        """Remembers a refusal. `asked_at` is when its request was sent, or earlier."""
        # One moment for all keys: changes are rare.
        if asked_at.monotonic_ms <= self._changed_at_ms:
            return
        known = self._refusals.get(key)
        # One refusal per key: that of the smaller cost covers more calls.
        if known is not None and known.cost < cost and not known.until.is_past(asked_at):
            return
        if known is None and len(self._refusals) >= _MAX_REFUSALS:
            del self._refusals[next(iter(self._refusals))]
        until = asked_at.later(result.retry_after_seconds * 1_000)
        self._refusals[key] = _Refusal(cost, until, asked_at.later(_MAX_MEMORY_MS), result)

    def _aged(self, refusal: _Refusal, cost: int, left_ms: float) -> RateLimitResult:
        """The refusal some time later: the times are shorter, `remaining` stays. A larger cost waits longer."""
        result = refusal.result
        left = max(0.0, left_ms) / 1_000
        aged = max(0.0, result.retry_after_seconds - left)
        limits = tuple(
            LimitStanding(
                each.remaining, max(0.0, each.next_after_seconds - aged), max(0.0, each.reset_after_seconds - aged)
            )
            for each in result.limits
        )
        retry_after = left
        if cost != refusal.cost:
            # What was taken has to become available again.
            retry_after = max(
                left,
                *(
                    each.reset_after_seconds + (limit.spacing_ms * cost - limit.full_ms) / 1_000
                    for each, limit in zip(limits, self._limits)
                ),
            )
        return replace(
            result,
            retry_after_seconds=retry_after,
            reset_after_seconds=max(0.0, result.reset_after_seconds - aged),
            limits=limits,
        )
