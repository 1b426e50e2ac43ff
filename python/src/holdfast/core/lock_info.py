"""Who holds a lock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Mapping, Optional

from .driver import LeaseRecord


@dataclass(frozen=True)
class LockInfo:
    """A lease as others see it. Times are on the store's clock, in UTC."""

    lock_name: str
    holder_id: str
    acquired_at: datetime
    expires_at: datetime
    fencing_token: int
    metadata: Optional[Mapping[str, Any]] = None


def lock_info(record: LeaseRecord) -> LockInfo:
    """A lease that lasts as long as its session gets the latest possible time as `expires_at`."""
    return LockInfo(
        record.lock_name,
        record.holder_id,
        time_of(record.acquired_at_ms),
        NO_EXPIRY if record.expires_at_ms is None else time_of(record.expires_at_ms),
        record.fencing_token,
        record.metadata,
    )


NO_EXPIRY = datetime.max.replace(tzinfo=timezone.utc)


def time_of(ms: float) -> datetime:
    """UTC. A time beyond the last year that Python has is that year's end: another client may write any number."""
    try:
        return datetime.fromtimestamp(ms / 1_000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return NO_EXPIRY
