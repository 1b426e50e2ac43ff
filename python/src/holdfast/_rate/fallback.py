"""The limiter that answers while the store cannot be reached."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Awaitable, Callable, Generic, Optional, Protocol, Sequence, TypeVar

from ..core.clock import Clock
from ..errors import StoreError
from .limits import Rate, RateLimitResult


class _HasLimits(Protocol):
    @property
    def limits(self) -> Sequence[Rate]: ...


Limiter = TypeVar("Limiter", bound=_HasLimits)


class RateFallback(Generic[Limiter]):
    """Another limiter that answers while the store of the first cannot be reached.

    When a call has failed, no call waits for the store until it is time to try again. Then one call tries it, and the
    fallback answers the others until that one is answered. So an outage delays one call at a time.
    """

    def __init__(
        self, limiter: Limiter, clock: Clock, try_again_ms: float, failed: Callable[[StoreError], None]
    ) -> None:
        """`failed` is called when the fallback answers for the store."""
        self.limiter = limiter
        self._clock = clock
        self._try_again_ms = try_again_ms
        self._failed = failed
        self._most_cost = min(each.burst or each.limit for each in limiter.limits)
        self._try_at_ms: Optional[float] = None
        """On the monotonic clock: when to try the store again. None: it answered the last call."""

    async def answer_or(
        self,
        store: Callable[[], Awaitable[RateLimitResult]],
        other: Callable[[Limiter], Awaitable[RateLimitResult]],
        cost: int,
    ) -> RateLimitResult:
        """The store's answer, or else the fallback's. Raises the store's error for a cost that the fallback can never
        allow."""
        can_answer = cost <= self._most_cost
        if can_answer and self._try_at_ms is not None:
            if self._now_ms < self._try_at_ms:
                return replace(await other(self.limiter), fallback=True)
            # This call tries the store. No other does until it is answered.
            self._try_at_ms = math.inf
        try:
            return await store()
        except StoreError as error:
            self._try_at_ms = self._now_ms + self._try_again_ms
            if not can_answer:
                raise
            self._failed(error)
        except Exception:
            self._try_at_ms = None
            raise
        finally:
            # Without asking the store: a remembered refusal, or a call that was cancelled. The next call tries it.
            # Otherwise the fallback would answer for ever.
            if self._try_at_ms == math.inf:
                self._try_at_ms = self._now_ms
        return replace(await other(self.limiter), fallback=True)

    def answered(self) -> None:
        """The store itself has answered."""
        self._try_at_ms = None

    @property
    def _now_ms(self) -> float:
        return self._clock.now().monotonic_ms
