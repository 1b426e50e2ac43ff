"""What a store may answer.

Others write to a store, too, and a proxy or a broken server may send anything. A grant or a refusal that is not valid
counts as no answer. A record is only shown to people, and is repaired: the lock of another client must not make a claim
or an `inspect` fail.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Optional

from ..errors import StoreError
from .driver import Claim, Grant, InspectPage, LeaseRecord, Mode, RateAnswer, Refusal, WaiterRecord
from .limits import MAX_HOLDER_ID_LENGTH

_MAX_TOKEN = 2**53 - 1
_MAX_TIME_MS = 8.64e15
"""As in JavaScript: an end at infinity is shown as a date far away."""


def is_grant(grant: Grant, needs_token: bool) -> bool:
    """A grant without a valid token, TTL or date must not become a lease."""
    token = grant.fencing_token
    return (
        type(token) is int
        and (1 if needs_token else 0) <= token <= _MAX_TOKEN
        and _is_number(grant.ttl_ms)
        and grant.ttl_ms > 0
        and _is_time(grant.acquired_at_ms)
    )


def is_refusal(refusal: Refusal) -> bool:
    """NaN would break the timer of the waiting claim. Behind a lease without an end, asking again never helps."""
    times = (refusal.ahead, refusal.ask_again_ms, refusal.answered_at_ms)
    return all(each is None or (type(each) in (int, float) and not math.isnan(each)) for each in times)


def trimmed(grant: Grant, claim: Claim) -> Grant:
    """A lease is never trusted for longer than its claim asked for."""
    return grant if grant.ttl_ms <= claim.ttl_ms else replace(grant, ttl_ms=claim.ttl_ms)


def is_rate_answer(answer: RateAnswer) -> bool:
    amounts = (answer.remaining, answer.retry_after_ms, answer.reset_after_ms, answer.blocked_ms or 0)
    return (
        isinstance(answer.allowed, bool)
        and isinstance(answer.used_ms, (list, tuple))
        and all(type(each) in (int, float) and 0 <= each < math.inf for each in (*amounts, *answer.used_ms))
    )


def printed(value: object, length: int = 200) -> str:
    """For an error. Its class may fail to print it, or it is a number with too many digits."""
    try:
        return repr(value)[:length]
    except Exception:
        return f"a value of type {type(value).__name__} that cannot be printed"[:length]


def checked_page(driver_name: str, page: InspectPage) -> InspectPage:
    """Raises `StoreError` if it is no page at all."""
    if not isinstance(page, InspectPage):
        raise StoreError(f"the {driver_name} driver returned an invalid page: {printed(page)}")
    leases = [checked_lease(each) for each in page.leases]
    return InspectPage(leases, [_checked_waiter(each) for each in page.waiters], page.next)


def checked_lease(record: LeaseRecord) -> LeaseRecord:
    """The same record if it is valid."""
    token, end = record.fencing_token, record.expires_at_ms
    # 0: unknown, as for a lock that another library took.
    checked_token = token if type(token) is int and 0 <= token <= _MAX_TOKEN else 0
    metadata = record.metadata if isinstance(record.metadata, dict) else None
    is_valid = (
        _is_shared_valid(record)
        and checked_token == token
        and _is_time(record.acquired_at_ms)
        and (end is None or _is_time(end))
        and metadata is record.metadata
    )
    if is_valid:
        return record
    return LeaseRecord(
        lock_name=record.lock_name,
        claim_id=_text(record.claim_id),
        holder_id=_text(record.holder_id)[:MAX_HOLDER_ID_LENGTH],
        mode=_mode(record.mode),
        permits=_permits(record.permits),
        fencing_token=checked_token,
        acquired_at_ms=_nearest_time(record.acquired_at_ms),
        expires_at_ms=None if end is None else _nearest_time(end),
        limit=_limit(record.limit),
        metadata=metadata,
        session=None if record.session is None else _text(record.session),
    )


def _checked_waiter(record: WaiterRecord) -> WaiterRecord:
    if _is_shared_valid(record) and _is_time(record.waiting_since_ms):
        return record
    return WaiterRecord(
        lock_name=record.lock_name,
        claim_id=_text(record.claim_id),
        holder_id=_text(record.holder_id)[:MAX_HOLDER_ID_LENGTH],
        mode=_mode(record.mode),
        permits=_permits(record.permits),
        waiting_since_ms=_nearest_time(record.waiting_since_ms),
        limit=_limit(record.limit),
    )


def _is_shared_valid(record: Any) -> bool:
    return (
        isinstance(record.claim_id, str)
        and isinstance(record.holder_id, str)
        # It is a part of error messages.
        and len(record.holder_id) <= MAX_HOLDER_ID_LENGTH
        and record.mode in ("exclusive", "shared")
        and type(record.permits) is int
        and (record.limit is None or type(record.limit) is int)
    )


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and not math.isnan(value)  # type: ignore[arg-type]


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and -_MAX_TIME_MS <= value <= _MAX_TIME_MS  # type: ignore[operator]


def _nearest_time(value: Any) -> float:
    """PostgreSQL sends an infinite time as a text. 0: unknown."""
    try:
        ms = float(value) if isinstance(value, (int, float, str)) else math.nan
    except (ValueError, OverflowError):
        ms = math.nan
    return 0 if math.isnan(ms) else min(max(ms, -_MAX_TIME_MS), _MAX_TIME_MS)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else printed(value, 255)


def _mode(value: Any) -> Mode:
    return "shared" if value == "shared" else "exclusive"


def _permits(value: Any) -> int:
    return value if type(value) is int else 1


def _limit(value: Any) -> Optional[int]:
    return value if type(value) is int else None
