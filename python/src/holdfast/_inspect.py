"""Shows what the store has for a lock name, and ends it by force."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Mapping, Optional, Sequence

from .core.driver import InspectQuery, LeaseRecord, Mode, WaiterRecord
from .core.holder import ClaimRequest, Holder
from .core.lease import HeldLease
from .core.limits import MAX_INSPECTED
from .core.lock_info import LockInfo, lock_info, time_of
from .errors import HoldfastError, StoreError


@dataclass(frozen=True)
class LeaseInfo:
    """The public part of a lease. It does not contain the claim id, which would allow others to end the lease."""

    holder_id: str
    mode: Mode
    permits: int
    """How many permits it has. 1 unless it is a semaphore's."""
    limit: Optional[int]
    """Only for a semaphore: the limit of its claim."""
    fencing_token: int
    acquired_at: Optional[datetime]
    """By the store's clock. None for the lock of another client that does not record it."""
    expires_at: Optional[datetime]
    """By the store's clock. None for a lease that does not expire by time."""
    metadata: Optional[Mapping[str, Any]]


@dataclass(frozen=True)
class WaiterInfo:
    holder_id: str
    mode: Mode
    permits: int
    limit: Optional[int]
    waiting_since: datetime
    """By the store's clock."""


@dataclass(frozen=True)
class LockInspection:
    lock_name: str
    leases: Sequence[LeaseInfo]
    """The holders: one, or several readers or permits. Empty: the lock is free."""
    waiters: Sequence[WaiterInfo]
    """In the order in which they will be served. Only stores with a queue know them."""
    complete: bool
    """False: there are more leases and waiters than the roughly 10,000 shown."""


async def inspect_lock(holder: Holder, lock_name: str) -> LockInspection:
    leases, waiters, complete = await _read_pages(holder, lock_name, MAX_INSPECTED)
    return LockInspection(
        lock_name, [_lease_info(each) for each in leases], [_waiter_info(each) for each in waiters], complete
    )


async def is_locked(holder: Holder, lock_name: str) -> bool:
    """Leases come before waiters, so usually the first page decides. A page may have neither, with another after it."""
    query = InspectQuery(lock_name=lock_name, page_size=1)
    while True:
        page = await holder.inspect(query)
        if page.leases:
            return True
        if page.next is None or page.waiters:
            return False
        query = replace(query, after=page.next)


async def force_release(holder: Holder, lock_name: str, by: str, end_session: bool) -> list[LockInfo]:
    """Ends the leases that are on the name now, and lets the next waiter have the lock. It ends no lease that is newer
    than those that it has seen: a holder that came meanwhile is not the one that is known to be dead."""
    holder.assert_supports("force")
    leases, _, _ = await _read_pages(holder, lock_name, None)
    first = {lease.fencing_token for lease in leases}
    for _ in range(_MAX_TRIES):
        # The leases of the first look have ended, by themselves or by an earlier try.
        if not any(lease.fencing_token in first for lease in leases):
            return []
        ended = await _end(holder, lock_name, leases, by, end_session)
        if ended:
            return [lock_info(lease) for lease in ended]
        # Readers that came meanwhile have to be ended together with the earlier ones.
        leases, _, _ = await _read_pages(holder, lock_name, None)
    raise StoreError(f'"{lock_name}" was not released by force: new holders came {_MAX_TRIES} times meanwhile')


async def _end(
    holder: Holder, lock_name: str, leases: Sequence[LeaseRecord], by: str, end_session: bool
) -> Sequence[LeaseRecord]:
    """Ends these leases, and no newer one. Returns those that it ended. With a driver that takes the lock in one step
    that is all of them, or none if the lock has a newer lease."""
    if holder.capabilities.force == "call":
        answers = await holder.force_release(leases, by=by, end_session=end_session)
        for answer in answers:
            if isinstance(answer, HoldfastError):
                raise answer
        return [lease for lease, answer in zip(leases, answers) if answer is True]
    request = ClaimRequest(
        lock_name,
        _FORCE_TTL_MS,
        # Of the lease that replaces the others for a moment.
        metadata={"forcedBy": by},
        max_hold_ms=_FORCE_TTL_MS,
        force_up_to=max(lease.fencing_token for lease in leases),
    )
    result = await holder.acquire(request)
    if not isinstance(result, HeldLease):
        return []
    await result.release()
    return leases


_FORCE_TTL_MS = 5_000
"""If this process dies before the release, the lock is free after this time."""
_MAX_TRIES = 10


async def _read_pages(
    holder: Holder, lock_name: str, most: Optional[int]
) -> tuple[list[LeaseRecord], list[WaiterRecord], bool]:
    """Follows `next` to the last page, or to the page that reaches `most`. A lease that is renewed between two pages
    may be on both of them. It is returned once."""
    leases: dict[str, LeaseRecord] = {}
    waiters: dict[str, WaiterRecord] = {}
    query = InspectQuery(lock_name=lock_name)
    while True:
        page = await holder.inspect(query)
        for lease in page.leases:
            leases.setdefault(lease.claim_id, lease)
        for waiter in page.waiters:
            waiters.setdefault(waiter.claim_id, waiter)
        done = page.next is None
        if done or (most is not None and len(leases) + len(waiters) >= most):
            return list(leases.values()), list(waiters.values()), done
        query = replace(query, after=page.next)


def _lease_info(record: LeaseRecord) -> LeaseInfo:
    return LeaseInfo(
        record.holder_id,
        record.mode,
        record.permits,
        record.limit,
        record.fencing_token,
        time_of(record.acquired_at_ms) if record.acquired_at_ms > 0 else None,
        None if record.expires_at_ms is None else time_of(record.expires_at_ms),
        record.metadata,
    )


def _waiter_info(record: WaiterRecord) -> WaiterInfo:
    return WaiterInfo(record.holder_id, record.mode, record.permits, record.limit, time_of(record.waiting_since_ms))
