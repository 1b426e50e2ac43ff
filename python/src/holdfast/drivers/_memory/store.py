"""The leases, queues and rate limits of a memory store. Each method is one step of the store."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Optional, Union

from ...core.arguments import check_inspect_query
from ...core.clock import SYSTEM_CLOCK, Clock
from ...core.driver import (
    Claim,
    DriverListener,
    Grant,
    InspectPage,
    InspectQuery,
    LeaseRecord,
    LeaseRef,
    Mode,
    RateAnswer,
    RateRequest,
    Refusal,
    RenewAnswer,
    Renewal,
    WaiterRecord,
)
from ...core.lock_share import fits_beside
from ...errors import StoreError
from .._shared.admission import admitted
from .._shared.gcra import Moment, policy_of, take_step
from .._shared.groups import left_over


@dataclass(eq=False)
class _Row:
    """What a lease and a waiter have in common."""

    claim: Claim
    ends_ms: float
    length_ms: float
    """For how long it was written: the TTL of the grant or of the last renewal, or how long its place is kept."""

    @property
    def mode(self) -> Mode:
        return self.claim.mode

    @property
    def limit(self) -> Optional[int]:
        return self.claim.limit

    @property
    def permits(self) -> int:
        return self.claim.permits


@dataclass(eq=False)
class _Lease(_Row):
    fencing_token: int
    acquired_at_ms: float


@dataclass(eq=False)
class _Waiter(_Row):
    since_ms: float


@dataclass(eq=False)
class _Lock:
    leases: list[_Lease] = field(default_factory=list)
    waiters: list[_Waiter] = field(default_factory=list)
    """First come, first served."""


class MemoryStore:
    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.listeners: list[DriverListener] = []
        self._clock = clock
        self._locks: dict[str, _Lock] = {}
        self._last_token = 0
        """One counter for all names, strictly rising and never below the clock in microseconds. So nothing has to be
        kept for an idle name."""
        self._rates: dict[tuple[str, str], Moment] = {}
        self._sweep_rates_at_ms = 0.0

    def acquire(self, claim: Claim, at_ms: Optional[float] = None) -> Union[Grant, Refusal]:
        now = self._now_ms() if at_ms is None else at_ms
        name, ttl_ms = claim.lock_name, claim.ttl_ms
        lock = self._lock(name, now)

        for own in lock.leases:
            if own.claim.claim_id == claim.claim_id:
                sooner = now + ttl_ms < own.ends_ms
                own.ends_ms, own.length_ms = now + ttl_ms, ttl_ms
                if sooner:
                    self._changed(name, lock)
                return Grant(own.fencing_token, ttl_ms, own.acquired_at_ms)

        if claim.force_up_to is not None:
            for lease in lock.leases:
                if lease.fencing_token > claim.force_up_to:
                    return Refusal(_lease_record(lease), answered_at_ms=now)
            ended, lock.leases = lock.leases, []
            for lease in ended:
                self._report_lost(lease.claim, claim)

        waiter = next((each for each in lock.waiters if each.claim.claim_id == claim.claim_id), None)
        if waiter is not None:
            waiter.ends_ms, waiter.length_ms = now + claim.waiter_ttl_ms, claim.waiter_ttl_ms
        if claim.force_up_to is not None or self._is_admitted(lock, claim, waiter):
            lease = _Lease(claim, now + ttl_ms, ttl_ms, self._next_token(now), now)
            self._forget_idle_locks(now)
            lock.leases.append(lease)
            if waiter is not None:
                lock.waiters.remove(waiter)
            self._changed(name, lock)
            return Grant(lease.fencing_token, ttl_ms, now)

        holder = _lease_record(lock.leases[0]) if lock.leases else None
        if claim.waiter_ttl_ms <= 0:
            if waiter is not None:
                lock.waiters.remove(waiter)
            self._keep(name, lock)
            return Refusal(holder, answered_at_ms=now)
        if waiter is None:
            waiter = _Waiter(claim, now + claim.waiter_ttl_ms, claim.waiter_ttl_ms, now)
            lock.waiters.append(waiter)
        self._keep(name, lock)
        ahead = lock.waiters.index(waiter)
        # The first waiter waits for a lease to expire, the others for a waiter ahead of them, which may be dead.
        before: list[_Row] = [*lock.leases] if ahead == 0 else [*lock.waiters[:ahead]]
        ask_again_ms = min((row.ends_ms for row in before), default=math.inf) - now
        return Refusal(
            holder,
            ahead=ahead,
            ask_again_ms=None if ask_again_ms == math.inf else ask_again_ms,
            answered_at_ms=now,
        )

    def acquire_group(self, claims: list[Claim]) -> list[Union[Grant, Refusal, Exception]]:
        """Claims of one group: all are granted, or none. One time for all of them: otherwise a lease that expires in
        the middle could make one claim fail alone."""
        now = self._now_ms()
        held: list[bool] = []
        is_open: list[bool] = []
        for claim in claims:
            lock = self._lock(claim.lock_name, now)
            held.append(any(lease.claim.claim_id == claim.claim_id for lease in lock.leases))
            is_open.append(held[-1] or self._is_admitted(lock, claim, None))
        if all(is_open):
            return [self.acquire(claim, now) for claim in claims]
        answers: list[Union[Grant, Refusal, Exception]] = []
        for claim, is_held, is_free in zip(claims, held, is_open):
            leases = self._lock(claim.lock_name, now).leases
            if is_held:
                answers.append(left_over(claim.lock_name))
            elif is_free:
                answers.append(Refusal(free=True, answered_at_ms=now))
            else:
                answers.append(Refusal(_lease_record(leases[0]) if leases else None, answered_at_ms=now))
        return answers

    def renew(self, renewal: Renewal) -> RenewAnswer:
        now = self._now_ms()
        lock = self._lock(renewal.lock_name, now)
        for lease in lock.leases:
            if lease.claim.claim_id == renewal.claim_id and lease.fencing_token == renewal.fencing_token:
                sooner = now + renewal.ttl_ms < lease.ends_ms
                lease.ends_ms, lease.length_ms = now + renewal.ttl_ms, renewal.ttl_ms
                if sooner:
                    self._changed(renewal.lock_name, lock)
                return "renewed"
        self._changed(renewal.lock_name, lock)
        return "lost"

    def release(self, ref: LeaseRef) -> bool:
        lock = self._lock(ref.lock_name, self._now_ms())
        kept = [
            lease
            for lease in lock.leases
            if lease.claim.claim_id != ref.claim_id
            or (ref.fencing_token is not None and lease.fencing_token != ref.fencing_token)
        ]
        was_held = len(kept) < len(lock.leases)
        lock.leases = kept
        if lock.waiters:
            lock.waiters = [waiter for waiter in lock.waiters if waiter.claim.claim_id != ref.claim_id]
        self._changed(ref.lock_name, lock)
        return was_held

    def inspect(self, query: InspectQuery) -> InspectPage:
        check_inspect_query(query)
        now = self._now_ms()
        asked = list(self._locks) if query.lock_name is None else [query.lock_name]
        for name in asked:
            self._keep(name, self._lock(name, now))
        prefix, after = query.prefix or "", query.after
        names = sorted(
            name
            for name in asked
            if name in self._locks and name.startswith(prefix) and (after is None or name > after)
        )
        page = names[: query.page_size]
        locks = [self._locks[name] for name in page]
        return InspectPage(
            [_lease_record(lease) for lock in locks for lease in lock.leases],
            [_waiter_record(waiter) for lock in locks for waiter in lock.waiters],
            page[-1] if len(names) > len(page) else None,
        )

    def consume(self, request: RateRequest) -> RateAnswer:
        now = self._now_ms()
        self._sweep_rates(now)
        keys = [(request.name, limit_id) for limit_id in policy_of(request).ids]
        moments = [self._rates.get(key) or Moment() for key in keys]
        answer = take_step(request, moments, now)
        for key, moment in zip(keys, moments):
            if moment.end_ms > now:
                self._rates[key] = moment
            else:
                self._rates.pop(key, None)
        return answer

    def _now_ms(self) -> float:
        return self._clock.wall() * 1_000

    def _next_token(self, now: float) -> int:
        self._last_token = max(self._last_token + 1, math.floor(now * 1_000))
        return self._last_token

    def _lock(self, name: str, now: float) -> _Lock:
        """The lock without expired leases and waiters, or an empty lock."""
        lock = self._locks.get(name)
        if lock is None:
            return _Lock()
        _drop_ended(lock, now)
        return lock

    def _keep(self, name: str, lock: _Lock) -> None:
        """Deletes a name that has neither leases nor waiters."""
        if lock.leases or lock.waiters:
            self._locks[name] = lock
        else:
            self._locks.pop(name, None)

    def _forget_idle_locks(self, now: float) -> None:
        """Deletes names that expired and were never used again: each grant checks two of them, which then go to the end
        of the table."""
        for name in [name for name, _ in zip(self._locks, range(2))]:
            lock = self._locks.pop(name)
            _drop_ended(lock, now)
            self._keep(name, lock)

    def _is_admitted(self, lock: _Lock, claim: Claim, waiter: Optional[_Waiter]) -> bool:
        if not lock.waiters:
            return fits_beside(claim, lock.leases)
        if waiter is not None:
            return waiter in admitted(lock.leases, lock.waiters)
        # A newcomer is judged as if it were at the end of the queue.
        fits = admitted(lock.leases, lock.waiters)
        return len(fits) == len(lock.waiters) and fits_beside(claim, [*lock.leases, *fits])

    def _changed(self, name: str, lock: _Lock) -> None:
        """Notifies the waiters whose turn it is after a change."""
        self._keep(name, lock)
        if not lock.waiters:
            return
        # The first waiter is notified even if it must go on waiting: the holder, and so when to ask again, may have
        # changed.
        woken = admitted(lock.leases, lock.waiters) or lock.waiters[:1]
        for claim_id in [waiter.claim.claim_id for waiter in woken]:
            for listener in list(self.listeners):
                listener.wake(name, claim_id)

    def _report_lost(self, claim: Claim, by: Claim) -> None:
        cause = StoreError(f"it was force-released by {by.holder_id}")
        for listener in list(self.listeners):
            listener.lost(claim.claim_id, cause)

    def _sweep_rates(self, now: float) -> None:
        """Nothing is kept for a limit that has run out. Looking takes longer with more limits: once a second."""
        if now < self._sweep_rates_at_ms:
            return
        self._sweep_rates_at_ms = now + 1_000
        for key in [key for key, moment in self._rates.items() if moment.end_ms <= now]:
            del self._rates[key]


def _drop_ended(lock: _Lock, now: float) -> None:
    for row in (*lock.leases, *lock.waiters):
        # What was written while the clock was ahead ends as if it had been written now, which is later than any client
        # trusts it.
        row.ends_ms = min(row.ends_ms, now + row.length_ms)
    if any(lease.ends_ms <= now for lease in lock.leases):
        lock.leases = [lease for lease in lock.leases if lease.ends_ms > now]
    if any(waiter.ends_ms <= now for waiter in lock.waiters):
        lock.waiters = [waiter for waiter in lock.waiters if waiter.ends_ms > now]


def _lease_record(lease: _Lease) -> LeaseRecord:
    claim = lease.claim
    return LeaseRecord(
        claim.lock_name,
        claim.claim_id,
        claim.holder_id,
        claim.mode,
        claim.permits,
        lease.fencing_token,
        lease.acquired_at_ms,
        lease.ends_ms,
        claim.limit,
        claim.metadata,
    )


def _waiter_record(waiter: _Waiter) -> WaiterRecord:
    claim = waiter.claim
    return WaiterRecord(
        claim.lock_name, claim.claim_id, claim.holder_id, claim.mode, claim.permits, waiter.since_ms, claim.limit
    )
