"""Rate limits over all processes on one store."""

from __future__ import annotations

from typing import Any, Coroutine, Optional, Sequence, Unpack

from ._instance import DEFAULT_STORE, Closable, Instance, Store
from ._options import RateLimiterOptions
from ._rate.fallback import RateFallback
from ._rate.headers import RateLimitHeaders
from ._rate.limits import LimitStanding, Limits, Rate, RateLimitResult, foreseen, limits_from, result_from
from ._rate.local_share import LocalShare, LocalShares, check_share
from ._rate.remembered_refusals import RememberedRefusals
from ._rate.waiting import RateWaiting
from .core.arguments import Seconds, check_lock_name, check_whole, wait_ms_from
from .core.driver import RateAnswer, RateRequest
from .core.events import Consumed, StoreFailed
from .core.limits import CLOSE_TIMEOUT_MS
from .errors import ClosedError, InvalidArgumentError, RateLimitedError, StoreError, UnsupportedError

__all__ = ["LimitStanding", "LocalShare", "Rate", "RateLimitHeaders", "RateLimitResult", "RateLimiter"]

_OWN_OPTIONS = ("limits", "local_share", "fallback", "fallback_seconds")


class RateLimiter(Closable):
    """Limits how often something is done, over all processes on one store, with the generic cell rate algorithm (GCRA)
    on the store's clock.

    A limiter has the limits. The key says to whom they apply, such as `login:user:7`. Limiters on one store, in Python
    and Node, share the units of a key for each limit that they have in common.

        limiter = RateLimiter("redis://localhost:6379", limits="100/minute")
        result = await limiter.consume("api:user:7")
        if not result:
            raise TooManyRequests(retry_after=result.retry_after_seconds)
    """

    def __init__(
        self,
        store: Store = DEFAULT_STORE,
        *,
        limits: Limits,
        local_share: Optional[LocalShare] = None,
        fallback: Optional[RateLimiter] = None,
        fallback_seconds: Seconds = 1,
        **options: Unpack[RateLimiterOptions],
    ) -> None:
        """`limits`: one `Rate`, or up to four. A call must be within all of them; otherwise none is charged. A text
        such as `"100/minute"` is a `Rate`, too.

        `local_share`: takes units from the store in blocks and hands them out in this process; see `LocalShare`.

        `fallback`: a limiter that answers while the store cannot be reached (`StoreError`), such as one in memory:
        `RateLimiter("memory:", limits=…)`. Its limits then apply to each process separately, and its answers have
        `fallback=True`. You close it yourself. Without a fallback, the `StoreError` is raised.

        `fallback_seconds`: how long the fallback answers before one call tries the store again. The fallback answers
        the other calls until the store has answered that one.
        """
        self._instance = Instance("RateLimiter", store, options, _OWN_OPTIONS, RateLimiterOptions)
        self._clock = self._instance.clock
        self._limits = limits_from(limits)
        self._most_cost = min(each.burst for each in self._limits)
        self._memory = RememberedRefusals(self._clock, self._limits)
        self._waiting = RateWaiting(self._clock, self._take, self._memory.refusal)
        self._shares: Optional[LocalShares] = None
        if local_share is not None:
            self._shares = LocalShares(check_share(local_share, self._most_cost), self._clock, self._ask)
        try_again_ms = wait_ms_from("fallback_seconds", fallback_seconds)
        self._fallback: Optional[RateFallback[RateLimiter]] = None
        if fallback is not None:
            if not isinstance(fallback, RateLimiter):
                raise InvalidArgumentError("fallback", fallback, "a RateLimiter")
            self._fallback = RateFallback(fallback, self._clock, try_again_ms, self._emit_failed)

    @property
    def limits(self) -> Sequence[Rate]:
        """The limits of this limiter, each with its burst."""
        return tuple(each.rate for each in self._limits)

    async def consume(self, key: str, *, cost: int = 1) -> RateLimitResult:
        """Takes units for the key, all or none. Being over the limit is a value that is false, with the time to try
        again. A refused call is not charged.

        The process remembers a refusal until its time has passed, for at most 10 seconds, and answers such calls
        without a round trip. With a `fallback`, that answers instead of a `StoreError`. If the call is cancelled while
        the store is being asked, the units may be taken.

        Raises `StoreError` if it is unknown whether the units were taken; `InvalidArgumentError`, also for a cost above
        the smallest burst, which could never be allowed; `UnsupportedError` for a driver without rate limits;
        `OverloadError` with more than 32 different limits on one key (PostgreSQL); `ClosedError`.
        """
        key, cost = self._checked(key, cost)
        return await self._reported(self._take(key, cost), key, cost)

    async def check(self, key: str, *, cost: int = 1) -> RateLimitResult:
        """Like `consume`, but raises `RateLimitedError` when the call is over the limit."""
        result = await self.consume(key, cost=cost)
        if not result.allowed:
            raise RateLimitedError(key, result.retry_after_seconds)
        return result

    async def wait(self, key: str, *, cost: int = 1, blocking_timeout_seconds: Seconds = 10) -> RateLimitResult:
        """Waits until the units are available, and takes them.

        Calls that wait for one key in this process are served first come, first served, at any cost. Between processes
        there is no order: each asks again when the store said that it could succeed, and the first one gets the units.

        Raises `RateLimitedError` as soon as it is certain that `blocking_timeout_seconds` is not enough, and what
        `consume` raises.
        """
        key, cost = self._checked(key, cost)
        wait_ms = wait_ms_from("blocking_timeout_seconds", blocking_timeout_seconds)
        return await self._reported(self._waiting.wait(key, cost, wait_ms), key, cost)

    async def peek(self, key: str, *, cost: int = 1) -> RateLimitResult:
        """What `consume` would return. It takes and writes nothing. Units of this process's local share are not
        counted."""
        key, cost = self._checked(key, cost)

        async def look() -> RateLimitResult:
            return foreseen(await self._request(RateRequest(key, 0, self._limits)), cost, self._limits)

        if self._fallback is None:
            return await look()
        return await self._fallback.answer_or(look, lambda other: other.peek(key, cost=cost), cost)

    async def reset(self, key: str) -> None:
        """Forgets what was taken for the key under this limiter's limits, and ends a block. Other limits on the key
        stay. This limiter allows calls at once and wakes the calls that wait for the key. Processes that remember a
        refusal allow calls within 10 seconds."""
        key, _ = self._checked(key, 1)
        if self._fallback is not None:
            await self._fallback.limiter.reset(key)
        answer = await self._request(RateRequest(key, 0, self._limits, reset=True))
        self._changed(key, answer.reset_after_ms == 0)

    async def block(self, key: str, seconds: Seconds) -> None:
        """Refuses all calls for the key for so many seconds from now, in every process and limiter that has one of this
        limiter's limits. `retry_after_seconds` says when the block ends. Units taken before still count afterwards.
        Calling it again sets a new end; 0 ends the block. A local share of another process may be used up first."""
        key, _ = self._checked(key, 1)
        block_ms = wait_ms_from("seconds", seconds)
        if self._fallback is not None:
            await self._fallback.limiter.block(key, seconds)
        answer = await self._request(RateRequest(key, 0, self._limits, block_ms=block_ms))
        self._changed(key, (block_ms > 0) == (answer.blocked_ms is not None))

    async def ping(self) -> None:
        """Opens the store unless it is open, and proves that it works: takes a unit of a new key (`ping:` and a random
        part) and resets it. Raises `StoreError`, `UnsupportedError`, `ClosedError`."""
        self._instance.assert_open()
        key = f"ping:{self._instance.random.id()}"
        await self._request(RateRequest(key, 1, self._limits))
        await self._request(RateRequest(key, 0, self._limits, reset=True))

    async def __aenter__(self) -> RateLimiter:
        return self

    async def close(self, *, drain_seconds: Seconds = 0, deadline_seconds: Seconds = CLOSE_TIMEOUT_MS / 1_000) -> None:
        """Ends the calls that wait with `ClosedError`, and closes the store if this limiter opened it."""
        self._waiting.give_up(ClosedError("the limiter was closed while the call waited"))
        await super().close(drain_seconds=drain_seconds, deadline_seconds=deadline_seconds)

    async def _reported(self, asking: Coroutine[Any, Any, RateLimitResult], key: str, cost: int) -> RateLimitResult:
        try:
            result = await asking
        except RateLimitedError:
            self._emit_decision(key, cost, False, False)
            raise
        except StoreError as error:
            self._emit_failed(error)
            raise
        self._emit_decision(key, cost, result.allowed, result.fallback)
        return result

    def _emit_decision(self, key: str, cost: int, allowed: bool, fallback: bool) -> None:
        if self._events.hears(Consumed):
            self._events.emit(Consumed(key, cost, allowed, fallback))

    def _emit_failed(self, error: StoreError) -> None:
        if self._events.hears(StoreFailed):
            self._events.emit(StoreFailed("consume", error))

    async def _consume_as_fallback(self, key: str, cost: int) -> RateLimitResult:
        """Without an event: the limiter that this is the fallback of emits one."""
        return await self._take(*self._checked(key, cost))

    async def _take(self, key: str, cost: int) -> RateLimitResult:
        if self._fallback is None:
            return await self._take_here(key, cost)
        # A remembered refusal counts before the fallback.
        refusal = self._memory.refusal(key, cost)
        if refusal is not None:
            return refusal
        return await self._fallback.answer_or(
            lambda: self._take_here(key, cost), lambda other: other._consume_as_fallback(key, cost), cost
        )

    async def _take_here(self, key: str, cost: int) -> RateLimitResult:
        return await (self._ask(key, cost) if self._shares is None else self._shares.consume(key, cost))

    async def _ask(self, key: str, cost: int) -> RateLimitResult:
        refusal = self._memory.refusal(key, cost)
        if refusal is not None:
            return refusal
        # Before the request is sent, so that a remembered refusal never lasts longer than the store's own.
        asked_at = self._clock.now()
        result = result_from(await self._request(RateRequest(key, cost, self._limits)), self._limits)
        if not result.allowed:
            self._memory.note(key, cost, asked_at, result)
        return result

    async def _request(self, request: RateRequest) -> RateAnswer:
        holder = await self._instance.open()
        answer = await holder.consume(request)
        if self._fallback is not None:
            self._fallback.answered()
        return answer

    def _changed(self, key: str, is_done: bool) -> None:
        self._memory.forget(key)
        if self._shares is not None:
            self._shares.forget(key)
        self._waiting.wake(key)
        if not is_done:
            raise UnsupportedError("the driver cannot reset or block a rate: it ignored the change")

    def _checked(self, key: str, cost: int) -> tuple[str, int]:
        checked = check_lock_name(key, "key"), check_whole("cost", cost, 1, self._most_cost)
        self._instance.assert_open()
        return checked
