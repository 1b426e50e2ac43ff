"""Time and randomness. Both are passed in, so that a test can replace them."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import time
from contextvars import Context
from typing import Callable, NamedTuple


class Instant(NamedTuple):
    """One moment on both clocks, in milliseconds.

    Neither clock is enough for a deadline: the monotonic clock does not advance while the machine is suspended, and the
    wall clock can be set. A deadline has passed as soon as it has on one of them.
    """

    monotonic_ms: float
    wall_ms: float

    def later(self, ms: float) -> Instant:
        return _new_instant(Instant, (self.monotonic_ms + ms, self.wall_ms + ms))

    def is_past(self, now: Instant) -> bool:
        """Whether this deadline has passed on either clock."""
        return now.monotonic_ms >= self.monotonic_ms or now.wall_ms >= self.wall_ms

    def due_at_ms(self, now: Instant) -> float:
        """When this deadline will have passed, on the monotonic clock, if the wall clock is not set before."""
        return min(self.monotonic_ms, now.monotonic_ms + self.wall_ms - now.wall_ms)

    def earlier(self, other: Instant) -> Instant:
        """The earlier value of each clock. They are compared separately: a suspend or a step moves them apart."""
        return Instant(min(self.monotonic_ms, other.monotonic_ms), min(self.wall_ms, other.wall_ms))


class Clock:
    """The clocks of the operating system, and the timers of the event loop."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes backwards."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def now(self) -> Instant:
        return Instant(self.monotonic() * 1_000, self.wall() * 1_000)

    def call_later(self, delay_ms: float, run: Callable[[], object]) -> asyncio.TimerHandle:
        """Calls `run` once after `delay_ms`, in an empty context: a timer of this library must not carry the re-entry
        of the task in which it was set (an unrelated task would then share a lock that it does not hold)."""
        loop = asyncio.get_running_loop()
        return loop.call_later(max(0.0, delay_ms) / 1_000, run, context=Context())


BLOCKED_MS = 20.0
"""A timer that is later than this was held up by a blocked event loop."""
READING_TURNS = 16
"""What arrived while the event loop was blocked is read in the turn in which its late timers run. Then it passes
through up to ten callbacks and tasks. So a late timer that gives something up waits for so many turns first."""


class Random:
    """The randomness of the operating system."""

    def fraction(self) -> float:
        """At least 0 and less than 1, for jitter."""
        return random.random()

    def id(self) -> str:
        """A new id of 96 random bits: 16 characters of the base64url alphabet. Other clients cannot predict it."""
        try:
            return _drawn.pop()
        except IndexError:
            text = base64.urlsafe_b64encode(os.urandom(12 * _IDS_PER_DRAW)).decode()
            _drawn.extend(text[at : at + 16] for at in range(16, len(text), 16))
            return text[:16]


_IDS_PER_DRAW = 64
_drawn: list[str] = []
# A child process must not draw the ids that its parent will use: two claims with one id would share one lease.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drawn.clear)


class _SystemClock(Clock):
    """Reads both clocks with fewer calls: that is done seven times for each lock."""

    def now(self) -> Instant:
        return _new_instant(Instant, (time.monotonic() * 1_000, time.time() * 1_000))


_new_instant = tuple.__new__
SYSTEM_CLOCK: Clock = _SystemClock()
SYSTEM_RANDOM = Random()


def backoff_ms(first_ms: float, max_ms: float, tries: int, source: Random) -> float:
    """Capped exponential backoff. After try number `tries`, counted from 1, the delay lies between 50 % and 100 % of
    `first_ms × 2^(tries − 1)`. The random half spreads the retries of processes that failed at the same time."""
    ceiling = min(max_ms, first_ms * 2.0 ** min(tries - 1, 30))
    return ceiling / 2 + ceiling / 2 * source.fraction()
