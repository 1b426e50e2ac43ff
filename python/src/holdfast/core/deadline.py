"""Until when a lease can be relied on."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Optional

from .clock import Instant


def trusted_until(sent: Instant, ttl_ms: float) -> Instant:
    """Rule 2: a lease is trusted from the moment at which its request was sent. The store starts to count later, and
    the client does not know how much later. The margin, 1 % of the TTL + 2 ms, is for clocks whose rates differ."""
    return sent.later(ttl_ms - (ttl_ms * 0.01 + 2))


def ttl_ms_for(trusted_ms: float) -> float:
    """The TTL of a lease that is to be relied on for this long."""
    return math.ceil((trusted_ms + 2) / 0.99)


class RenewalInFlight:
    __slots__ = ("sent", "ttl_ms", "proven_ms")

    def __init__(self, sent: Instant, ttl_ms: float) -> None:
        self.sent = sent
        self.ttl_ms = ttl_ms
        self.proven_ms = ttl_ms
        """What its answer proves: the shortest TTL of all renewals that were in flight together with it."""


class LeaseDeadline:
    """Until when a lease can be relied on, while renewals with different TTLs are in flight and arrive in any order.

    A renewal sets the end of the lease in the store to exactly its own TTL from its arrival. So the answer to a renewal
    proves no more than the shortest TTL of all renewals that were in flight at the same time: the shortest may have
    arrived last. A renewal without an answer may still arrive at any later moment.
    """

    __slots__ = ("at", "ends_at_ms", "unanswered_ms", "_in_flight", "_has_ended")

    def __init__(self, sent: Instant, ttl_ms: float, unanswered_ms: float = math.inf) -> None:
        self.at = trusted_until(sent, ttl_ms)
        self.ends_at_ms = sent.monotonic_ms + ttl_ms
        """The earliest moment at which the lease in the store can end, on the monotonic clock."""
        self.unanswered_ms = unanswered_ms
        """The shortest TTL that was sent and never answered. It may still arrive."""
        self._in_flight: Optional[list[RenewalInFlight]] = None
        self._has_ended = False

    def sending(self, sent: Instant, ttl_ms: float) -> RenewalInFlight:
        """Call it before a renewal is sent: from then on the lease may end as early as the renewal says."""
        renewal = RenewalInFlight(sent, ttl_ms)
        if self._in_flight is None:
            self._in_flight = []
        for other in self._in_flight:
            other.proven_ms = min(other.proven_ms, ttl_ms)
            renewal.proven_ms = min(renewal.proven_ms, other.ttl_ms)
        self._in_flight.append(renewal)
        self.at = self.at.earlier(trusted_until(sent, ttl_ms))
        self.ends_at_ms = min(self.ends_at_ms, sent.monotonic_ms + ttl_ms)
        return renewal

    def confirmed(self, renewal: RenewalInFlight) -> None:
        self._settle(renewal)
        proven_ms = min(renewal.proven_ms, self.unanswered_ms)
        at = trusted_until(renewal.sent, proven_ms)
        # A renewal that was sent before one that is already confirmed proves nothing new.
        if at.monotonic_ms > self.at.monotonic_ms and not self._has_ended:
            self.at = at
            self.ends_at_ms = renewal.sent.monotonic_ms + proven_ms

    def unanswered(self, renewal: RenewalInFlight) -> None:
        self._settle(renewal)
        self.unanswered_ms = min(self.unanswered_ms, renewal.ttl_ms)

    def end(self) -> None:
        """It cannot be relied on any more. An answer that another thread is just reading changes nothing about that."""
        self._has_ended = True
        self.at = Instant(-math.inf, -math.inf)

    def _settle(self, renewal: RenewalInFlight) -> None:
        if self._in_flight is not None and renewal in self._in_flight:
            self._in_flight.remove(renewal)


class SharedDeadline(LeaseDeadline):
    """For a lease that two threads renew. `at` can be read without the lock: it is replaced in one step."""

    __slots__ = ("_lock",)

    def __init__(
        self, lock: AbstractContextManager[object], sent: Instant, ttl_ms: float, unanswered_ms: float
    ) -> None:
        super().__init__(sent, ttl_ms, unanswered_ms)
        self._lock = lock

    def sending(self, sent: Instant, ttl_ms: float) -> RenewalInFlight:
        with self._lock:
            return super().sending(sent, ttl_ms)

    def confirmed(self, renewal: RenewalInFlight) -> None:
        with self._lock:
            super().confirmed(renewal)

    def unanswered(self, renewal: RenewalInFlight) -> None:
        with self._lock:
            super().unanswered(renewal)

    def end(self) -> None:
        with self._lock:
            super().end()
