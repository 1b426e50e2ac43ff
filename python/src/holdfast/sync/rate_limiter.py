"""Rate limits, for code without an event loop."""

from __future__ import annotations

from typing import Optional, Sequence, Unpack

from .._instance import DEFAULT_STORE, Store
from .._options import RateLimiterOptions
from .._rate.limits import Limits, Rate, RateLimitResult
from .._rate.local_share import LocalShare
from ..core.arguments import Seconds
from ..errors import InvalidArgumentError
from ..rate_limiter import RateLimiter
from .instance import SyncInstance
from .portal import portal

__all__ = ["SyncRateLimiter"]


class SyncRateLimiter(SyncInstance):
    """Like `RateLimiter`, for code without an event loop::

        limiter = SyncRateLimiter("redis://localhost:6379", limits="100/minute")
        if not limiter.consume("api:user:7"):
            return too_many_requests()
    """

    _inner: RateLimiter

    def __init__(
        self,
        store: Store = DEFAULT_STORE,
        *,
        limits: Limits,
        local_share: Optional[LocalShare] = None,
        fallback: Optional[SyncRateLimiter] = None,
        fallback_seconds: Seconds = 1,
        **options: Unpack[RateLimiterOptions],
    ) -> None:
        """The arguments are those of `RateLimiter`."""
        if fallback is not None and not isinstance(fallback, SyncRateLimiter):
            raise InvalidArgumentError("fallback", fallback, "a SyncRateLimiter")
        self._inner = RateLimiter(
            store,
            limits=limits,
            local_share=local_share,
            fallback=None if fallback is None else fallback._inner,
            fallback_seconds=fallback_seconds,
            **options,
        )

    def __enter__(self) -> SyncRateLimiter:
        return self

    @property
    def limits(self) -> Sequence[Rate]:
        """The limits of this limiter, each with its burst."""
        return self._inner.limits

    def consume(self, key: str, *, cost: int = 1) -> RateLimitResult:
        """Takes units for the key, all or none. Being over the limit is a value that is false."""
        return portal().run(self._inner.consume(key, cost=cost))

    def check(self, key: str, *, cost: int = 1) -> RateLimitResult:
        """Like `consume`, but raises `RateLimitedError` when the call is over the limit."""
        return portal().run(self._inner.check(key, cost=cost))

    def wait(self, key: str, *, cost: int = 1, blocking_timeout_seconds: Seconds = 10) -> RateLimitResult:
        """Waits until the units are available, and takes them. See `RateLimiter.wait`."""
        return portal().run(self._inner.wait(key, cost=cost, blocking_timeout_seconds=blocking_timeout_seconds))

    def peek(self, key: str, *, cost: int = 1) -> RateLimitResult:
        """What `consume` would return. It takes and writes nothing."""
        return portal().run(self._inner.peek(key, cost=cost))

    def reset(self, key: str) -> None:
        """Forgets what was taken for the key under this limiter's limits, and ends a block."""
        portal().run(self._inner.reset(key))

    def block(self, key: str, seconds: Seconds) -> None:
        """Refuses all calls for the key for so many seconds from now. 0 ends the block."""
        portal().run(self._inner.block(key, seconds))
