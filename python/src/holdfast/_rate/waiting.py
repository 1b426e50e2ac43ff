"""The calls that wait for units. The calls for one key form a queue, and only the first of it asks the store."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Awaitable, Callable, Optional

from ..core.clock import Clock
from ..core.limits import MAX_PENDING_CLAIMS
from ..errors import OverloadError, RateLimitedError, StoreError
from .limits import RateLimitResult

_DEADLINE_GRACE_MS = 5
"""The timer of a sleep and the deadline may be due at the same time. Then there is still time to ask."""
_ANSWER_GRACE_MS = 100
"""How long the answer to a request that was sent in time may still take."""


class RateWaiting:
    def __init__(
        self,
        clock: Clock,
        consume: Callable[[str, int], Awaitable[RateLimitResult]],
        refusal: Callable[[str, int], Optional[RateLimitResult]],
    ) -> None:
        """`refusal` returns a remembered refusal."""
        self._clock = clock
        self._consume = consume
        self._refusal = refusal
        self._calls: set[_WaitingCall] = set()
        self._queues: dict[str, deque[_WaitingCall]] = {}

    async def wait(self, key: str, cost: int, wait_ms: float) -> RateLimitResult:
        if len(self._calls) >= MAX_PENDING_CLAIMS:
            raise OverloadError(f"{MAX_PENDING_CLAIMS} calls are already waiting in this limiter")
        call = _WaitingCall(key, cost, self._now_ms + wait_ms)
        self._calls.add(call)
        try:
            return await self._wait(call)
        finally:
            self._calls.discard(call)
            self._leave(call)

    def wake(self, key: str) -> None:
        """The key may have units earlier than expected. A refusal that is on its way is void."""
        for call in self._calls:
            if call.key == key:
                call.is_void = True
                call.wake()

    def give_up(self, error: Exception) -> None:
        for call in self._calls:
            call.error = error
            call.wake()

    async def _wait(self, call: _WaitingCall) -> RateLimitResult:
        queue = self._queues.setdefault(call.key, deque())
        queue.append(call)
        known = self._refusal(call.key, call.cost)
        if known is not None:
            self._assert_in_time(call, known)
        # Only the first one asks. If others asked meanwhile, one with a smaller cost, or one that asks a moment later,
        # could be served before it.
        while queue[0] is not call:
            if not await self._sleep(call, None):
                return await self._ask_last(call)
        while True:
            result = await self._ask(call)
            if result is None:
                continue
            if result.allowed:
                return result
            await self._sleep(call, result.retry_after_seconds * 1_000)

    async def _ask_last(self, call: _WaitingCall) -> RateLimitResult:
        """The time of a call that was never first is over. Only the store knows whether it is over its limit: the calls
        before it may only have waited for slow answers."""
        late = self._refusal(call.key, call.cost)
        result = await self._ask(call) if late is None else late
        if result is not None and result.allowed:
            return result
        raise RateLimitedError(call.key, 0 if result is None else result.retry_after_seconds)

    async def _ask(self, call: _WaitingCall) -> Optional[RateLimitResult]:
        """Returns None if the refusal is void. Raises `RateLimitedError` if the time is not enough."""
        call.is_void = False
        # In a task of its own: the answer has a deadline, but a request that was sent is never cancelled in the driver.
        asking = asyncio.ensure_future(self._consume(call.key, call.cost))
        try:
            in_time = True
            while in_time and call.error is None and not asking.done():
                in_time = await self._first(call, asking, self._left_ms(call) + _ANSWER_GRACE_MS)
        finally:
            asking.cancel()
        if call.error is not None:
            # Otherwise asyncio would report an error of the request as never retrieved.
            asking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise call.error
        if not asking.done() or asking.cancelled():
            raise StoreError(f'the store did not answer a wait for "{call.key}" in time')
        result = asking.result()
        if result.allowed:
            return result
        if call.is_void:
            return None
        self._assert_in_time(call, result)
        return result

    def _assert_in_time(self, call: _WaitingCall, refusal: RateLimitResult) -> None:
        # Units are never given back, so this is certain unless the key is reset.
        if refusal.retry_after_seconds * 1_000 > call.until_ms - self._now_ms:
            raise RateLimitedError(call.key, refusal.retry_after_seconds)

    async def _sleep(self, call: _WaitingCall, delay_ms: Optional[float]) -> bool:
        """Sleeps until `delay_ms` have passed or the call is woken. False if its own time has passed before."""
        left_ms = self._left_ms(call)
        woken = await self._first(call, None, left_ms if delay_ms is None else min(delay_ms, left_ms))
        if call.error is not None:
            raise call.error
        return woken

    async def _first(self, call: _WaitingCall, other: Optional[asyncio.Future[Any]], ms: float) -> bool:
        """Waits until the call is woken or `other` has ended. False if neither happened in time."""
        woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        call.woken = woken
        timer = self._clock.call_later(ms, lambda: _settle(woken, False))

        def ended(_: object) -> None:
            _settle(woken, True)

        if other is not None:
            other.add_done_callback(ended)
        try:
            return await woken
        finally:
            timer.cancel()
            call.woken = None
            if other is not None:
                other.remove_done_callback(ended)

    def _leave(self, call: _WaitingCall) -> None:
        call.has_left = True
        queue = self._queues[call.key]
        # A call in the middle is skipped later: removing it would cost a search of the whole queue.
        if queue[0] is not call:
            return
        while queue and queue[0].has_left:
            queue.popleft()
        if queue:
            queue[0].wake()
        else:
            del self._queues[call.key]

    def _left_ms(self, call: _WaitingCall) -> float:
        return call.until_ms - self._now_ms + _DEADLINE_GRACE_MS

    @property
    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1_000


class _WaitingCall:
    def __init__(self, key: str, cost: int, until_ms: float) -> None:
        self.key = key
        self.cost = cost
        self.until_ms = until_ms
        self.error: Optional[Exception] = None
        self.is_void = False
        """The key was reset or blocked after the request was made, so a refusal of it means nothing."""
        self.has_left = False
        self.woken: Optional[asyncio.Future[bool]] = None

    def wake(self) -> None:
        if self.woken is not None:
            _settle(self.woken, True)


def _settle(woken: asyncio.Future[bool], value: bool) -> None:
    if not woken.done():
        woken.set_result(value)
