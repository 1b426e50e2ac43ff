from __future__ import annotations

import asyncio
import contextvars
from typing import Any, Callable, Optional, Set

from holdfast import Clock


class SteeredClock(Clock):
    """The clock of a client whose time a test advances, so that nothing depends on how fast the machine is.

    Its timers notice: those that are due run in the next turn of the event loop. Its time also passes by itself, so
    what must not become due has minutes.
    """

    def __init__(self) -> None:
        self._ahead_seconds = 0.0
        self._timers: Set[_Timer] = set()

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead_seconds

    def wall(self) -> float:
        return super().wall() + self._ahead_seconds

    def call_later(self, delay_ms: float, run: Callable[[], object]) -> Any:
        timer = _Timer(self, self.monotonic() + max(0.0, delay_ms) / 1_000, run)
        self._timers.add(timer)
        timer.arm()
        return timer

    def advance(self, seconds: float) -> None:
        self._ahead_seconds += seconds
        for timer in sorted(self._timers, key=lambda each: each.due):
            timer.arm()

    def forget(self, timer: _Timer) -> None:
        self._timers.discard(timer)


class _Timer:
    def __init__(self, clock: SteeredClock, due: float, run: Callable[[], object]) -> None:
        self.due = due
        self._clock = clock
        self._run = run
        self._handle: Optional[asyncio.TimerHandle] = None

    def arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        delay = max(0.0, self.due - self._clock.monotonic())
        self._handle = asyncio.get_running_loop().call_later(delay, self._fire, context=contextvars.Context())

    def cancel(self) -> None:
        self._clock.forget(self)
        if self._handle is not None:
            self._handle.cancel()

    def _fire(self) -> None:
        self._clock.forget(self)
        self._run()
