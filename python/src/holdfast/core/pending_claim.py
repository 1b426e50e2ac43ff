"""One claim from its first request to its end: granted, refused or given up."""

from __future__ import annotations

import math
from typing import Callable, Optional, Union

from ..errors import HoldfastError, StoreError
from .clock import BLOCKED_MS, READING_TURNS, Clock, Instant, Random, backoff_ms
from .deadline import trusted_until
from .driver import Claim, Grant, Refusal
from .emitter import Emitter
from .events import StoreFailed, Waiting
from .lock_info import LockInfo, lock_info
from .lease import LeaseContext, OwnClaim
from .scheduler import Entry
from .store_answers import checked_lease, trimmed
from .store_client import AcquireAnswer, is_outage
from .wake_ups import Waiter


class Granted:
    """A claim that the store has granted, and when."""

    __slots__ = ("grant", "sent", "answered", "unanswered_ms")

    def __init__(self, grant: Grant, sent: Instant, answered: Instant, unanswered_ms: float) -> None:
        self.grant = grant
        self.sent = sent
        """When the request was sent. The lease is trusted from this moment."""
        self.answered = answered
        self.unanswered_ms = unanswered_ms
        """The TTL of an earlier request that was never answered and may still arrive. Infinite if there is none."""


Outcome = Union[Granted, Refusal, HoldfastError]


class PendingClaim:
    """Sends one request. If it may wait, it sends another one on every wake-up, when the store said that asking again
    may help, and on a slow poll in case a wake-up was lost.

    At most one request of a claim is in flight at a time. A claim that is given up during a request is withdrawn after
    that request has settled: a release that overtakes its own acquire on another connection would leave a lease that no
    process knows of.
    """

    __slots__ = (
        "schedule",
        "own",
        "_context",
        "_settle",
        "_started_ms",
        "_wait_until_ms",
        "_waits",
        "_done",
        "_joined",
        "_may_request",
        "_in_flight",
        "_subscription_at_request",
        "_last_sent",
        "_woken",
        "_unanswered",
        "_next_request_ms",
        "_tries",
        "_refusal",
        "_failure",
        "_inherited",
        "_unanswered_since_ms",
        "_turns_left",
        "_announced",
    )

    def __init__(
        self, context: LeaseContext, own: OwnClaim, wait_ms: float, settle: Callable[[Outcome], None]
    ) -> None:
        """`wait_ms` 0: ends with the first answer. `settle` is called once, after `start`."""
        self.schedule: Optional[Entry] = None
        self.own = own
        self._context = context
        self._settle = settle
        self._started_ms = context.clock.monotonic() * 1_000
        self._wait_until_ms = self._started_ms + wait_ms
        self._waits = wait_ms > 0
        self._done = False
        self._joined = False
        self._may_request = True
        """False behind another waiter of this process, where the store has no queue: only the first sends requests."""
        self._in_flight = False
        self._subscription_at_request: Optional[object] = None
        self._last_sent: Optional[Instant] = None
        """When the last answered request was sent. Until one is answered: when the first one was sent."""
        self._woken = False
        """Whether a wake-up came during the request in flight."""
        self._unanswered = False
        self._next_request_ms = math.inf
        self._tries = 0
        self._refusal: Optional[Refusal] = None
        self._failure: Optional[HoldfastError] = None
        self._inherited: Union[Refusal, HoldfastError, None] = None
        self._unanswered_since_ms: Optional[float] = None
        self._turns_left = READING_TURNS
        self._announced = False

    @property
    def claim(self) -> Claim:
        return self.own.claim

    @property
    def events(self) -> Emitter:
        return self.own.events

    @property
    def waited_ms(self) -> float:
        return self._context.clock.monotonic() * 1_000 - self._started_ms

    def start(self) -> None:
        if self._waits and self._must_join_first():
            self._join()
        if self._may_request:
            self._request()
        else:
            self._announce(None)

    def due(self) -> None:
        now_ms = self._context.clock.monotonic() * 1_000
        if now_ms >= self._wait_until_ms:
            if now_ms - self._wait_until_ms > BLOCKED_MS and self._turns_left > 0:
                # The event loop was blocked, and the answer may have arrived.
                self._turns_left -= 1
                self._context.scheduler.set(self, now_ms)
                return
            self._timed_out()
            return
        if now_ms >= self._next_request_ms:
            self._request()
        self._reschedule()

    def wake(self) -> None:
        if self._may_request:
            self._request()

    def became_first(self, previous: Waiter) -> None:
        self._may_request = True
        answer = previous.last_answer
        # Any other error may concern that claim only.
        if not isinstance(answer, HoldfastError) or is_outage(answer):
            self._inherited = answer
        since_ms = previous.unanswered_since_ms
        self._unanswered_since_ms = self._context.clock.monotonic() * 1_000 if since_ms is None else since_ms
        self._request()

    def granted(self, grant: Grant) -> None:
        """The store reports a grant that it made without a request."""
        if self._done:
            return
        grant = trimmed(grant, self.claim)
        if self._in_flight or self._last_sent is None:
            # If the claim accepted the grant now, its request in flight could reach the store after the lease was
            # released, and acquire the lock again with no process to hold it. The answer to that request may be older
            # than the grant and be a refusal, so another request follows it.
            self._woken = True
            return
        # A later request may be answered before this message arrives. Only a grant that was made after the last refusal
        # was made after the last request was sent, and can be trusted from there. In every other case the store is
        # asked; it answers "already yours".
        refused_at_ms = None if self._refusal is None else self._refusal.answered_at_ms
        now = self._context.clock.now()
        is_after_refusal = (
            self._failure is None and refused_at_ms is not None and grant.acquired_at_ms >= refused_at_ms
        )
        if is_after_refusal and _trusted_ms(grant, self._last_sent, now) > grant.ttl_ms / 2:
            self._accept(grant, self._last_sent, now)
        else:
            self._request()

    def give_up(self, error: HoldfastError) -> None:
        """Ends the claim with an error, and withdraws from the store what it has or will have there."""
        if not self._done:
            self._finish()
            self._withdraw()
            self._settle(error)

    def _must_join_first(self) -> bool:
        """Most claims are granted at once and need neither a place among the waiters nor a deadline in the scheduler
        before they are refused, as long as no message can arrive for them, and the call times out before their waiting
        time ends."""
        store = self._context.store
        return (
            not store.driver.capabilities.queue
            or store.wake_ups.active
            or self._wait_until_ms - self._started_ms < store.call_timeout_ms
        )

    def _join(self) -> None:
        if not self._joined:
            self._joined = True
            self._may_request = self._context.store.wake_ups.join(self)
            self._reschedule()

    def _request(self) -> None:
        if self._done:
            return
        if self._in_flight:
            self._woken = True
            return
        context = self._context
        self._in_flight = True
        self._woken = False
        self._next_request_ms = math.inf
        self._subscription_at_request = context.store.wake_ups.subscription
        self._tries += 1
        context.in_flight.begin()
        context.store.acquire(self.own.claim, self)

    def answered(self, answer: AcquireAnswer, sent: Instant, now: Instant) -> None:
        self._in_flight = False
        self._unanswered_since_ms = None
        self._last_sent = sent
        if self._done:
            self._withdraw()
        elif isinstance(answer, Grant):
            self._accept(trimmed(answer, self.claim), sent, now)
        else:
            self._refused(answer)
        self._context.in_flight.end()

    def failed(self, error: HoldfastError, sent: Instant) -> None:
        self._in_flight = False
        self._unanswered_since_ms = None
        if self._last_sent is None:
            self._last_sent = sent
        self._unanswered = True
        if isinstance(error, StoreError) and self.events.hears(StoreFailed):
            self.events.emit(StoreFailed("acquire", error))
        if self._done:
            self._withdraw()
        else:
            self._retry_or_give_up(error, sent)
        self._context.in_flight.end()

    def late(self, answer: AcquireAnswer) -> None:
        """It was granted or queued after the call had timed out. If no caller is left for it, it must not stay."""
        if self.own.abandoned and (isinstance(answer, Grant) or self.own.claim.waiter_ttl_ms > 0):
            self._context.store.withdraw(self.own.claim)

    def _accept(self, grant: Grant, sent: Instant, now: Instant) -> None:
        if _trusted_ms(grant, sent, now) <= 0:
            late = StoreError(f'the grant of "{self.claim.lock_name}" arrived after its lease had ended')
            self._retry_or_give_up(late, sent)
            return
        self._finish()
        self._settle(Granted(grant, sent, now, self.claim.ttl_ms if self._unanswered else math.inf))

    def _refused(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self._failure = None
        if not self._waits:
            self._finish()
            self._settle(refusal)
            return
        self._join()
        self._announce(refusal)
        if self._woken:
            self._request()
            return
        wake_ups = self._context.store.wake_ups
        subscription = wake_ups.subscription
        # Also before a subscription: if it hangs or fails, the claim polls.
        self._request_at(self._poll_at_ms(refusal, subscription is not None))
        if subscription is None:
            wake_ups.subscribe()
        elif subscription is not self._subscription_at_request:
            # The request was made under another subscription, or none. A release in between has sent no wake-up.
            self._request()

    def _announce(self, refusal: Optional[Refusal]) -> None:
        """`refusal` is None for a waiter behind another one of its process: it has sent no request."""
        if not self._announced:
            self._announced = True
            if self.events.hears(Waiting):
                ahead = None if refusal is None else refusal.ahead
                self.events.emit(Waiting(*self.own.event_base, holder_of(refusal), ahead))

    def _poll_at_ms(self, refusal: Refusal, is_subscribed: bool) -> float:
        """When the store said that asking again may help, or the next poll, whichever is sooner."""
        context = self._context
        # The slow poll behind the wake-ups. It also keeps the place in the queue, so it runs three times in the TTL of
        # a waiter.
        slow_poll_ms = self.claim.waiter_ttl_ms / 3
        hint_ms = math.inf if refusal.ask_again_ms is None else max(refusal.ask_again_ms + 1, _MIN_POLL_MS)
        poll_ms = slow_poll_ms if is_subscribed else backoff_ms(20, 1_000, self._tries, context.random)
        delay_ms = min(hint_ms, poll_ms)
        at_ms = context.clock.monotonic() * 1_000 + delay_ms
        return at_ms if delay_ms < slow_poll_ms else context.scheduler.round(at_ms, slow_poll_ms / 4)

    def _retry_or_give_up(self, error: HoldfastError, sent: Instant) -> None:
        self._failure = error
        if not self._waits or not is_outage(error):
            self.give_up(error)
            return
        self._join()
        if self._may_request:
            self._request_at(_retry_at_ms(self._context.clock, self._context.random, sent, self._tries))

    def _request_at(self, at_ms: float) -> None:
        self._next_request_ms = at_ms
        self._reschedule()

    def _reschedule(self) -> None:
        if not self._done and self._waits:
            self._context.scheduler.set(self, min(self._wait_until_ms, self._next_request_ms))

    @property
    def last_answer(self) -> Union[Refusal, HoldfastError, None]:
        answer = self._failure if self._failure is not None else self._refusal
        if answer is not None or self._unanswered_since_ms is None:
            return answer
        # The inherited answer expires after one call timeout. Without that, waiters that are first one after the other,
        # each for less than a call may take, would report an outage as contention for ever.
        unanswered_ms = self._context.clock.monotonic() * 1_000 - self._unanswered_since_ms
        return self._inherited if unanswered_ms < self._context.store.call_timeout_ms else None

    @property
    def unanswered_since_ms(self) -> Optional[float]:
        return self._unanswered_since_ms

    def _timed_out(self) -> None:
        name = self.claim.lock_name
        # A waiter behind another one of its process has sent no request. The answer of the first one is its answer.
        first: Optional[Waiter] = self if self._may_request else self._context.store.wake_ups.first(name)
        answer = None if first is None else first.last_answer
        if answer is None or isinstance(answer, HoldfastError):
            self.give_up(answer or StoreError(f'the store did not answer a claim of "{name}" in time'))
            return
        self._finish()
        self._withdraw()
        self._settle(answer)

    def _withdraw(self) -> None:
        """The store may have a place in its queue for this claim, or a grant whose answer is still in flight."""
        self.own.will_withdraw(self._context.store)
        if self._in_flight:
            return
        if self._last_sent is None:
            self.own.withdrawn()
        else:
            self.own.withdraw(self._context.store)

    def _finish(self) -> None:
        self._done = True
        if self._joined:
            self._context.scheduler.clear(self)
            self._context.store.wake_ups.leave(self)


def holder_of(refusal: Optional[Refusal]) -> Optional[LockInfo]:
    """What an event shows of the holder."""
    return None if refusal is None or refusal.holder is None else lock_info(checked_lease(refusal.holder))


def _trusted_ms(grant: Grant, sent: Instant, now: Instant) -> float:
    return trusted_until(sent, grant.ttl_ms).due_at_ms(now) - now.monotonic_ms


_MIN_POLL_MS = 2
_last_retry: Optional[tuple[Instant, int, float]] = None


def _retry_at_ms(clock: Clock, random: Random, sent: Instant, tries: int) -> float:
    """After a failed request. Claims that failed in one list retry at the same moment, so that they go out in one list
    again, in the same order. They are recognised by `sent`, which is one object for the list."""
    global _last_retry
    if _last_retry is not None and _last_retry[0] is sent and _last_retry[1] == tries:
        return _last_retry[2]
    at_ms = clock.monotonic() * 1_000 + backoff_ms(20, 1_000, tries, random)
    _last_retry = (sent, tries, at_ms)
    return at_ms
