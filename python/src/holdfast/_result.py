"""The result of the methods that return contention as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Optional, Union

from .core.driver import LeaseRecord
from .core.lock_info import LockInfo, lock_info, time_of
from .core.store_answers import checked_lease
from .errors import NotAcquiredError

if TYPE_CHECKING:
    from .core.holder import Refused
    from .core.lease import Lease


@dataclass(frozen=True)
class Acquired:
    """The lock is held. True in a condition."""

    lease: Lease
    acquired: Literal[True] = True
    holder: None = None
    error: None = None

    def __bool__(self) -> Literal[True]:
        return True


@dataclass(frozen=True)
class NotAcquired:
    """Another claim holds the lock. False in a condition."""

    error: str
    """A sentence for a log that names the lock and its holder."""
    holder: Optional[LockInfo] = None
    """One of the current holders, if the store shows it."""
    acquired: Literal[False] = False
    lease: None = None

    def __bool__(self) -> Literal[False]:
        return False


LockResult = Union[Acquired, NotAcquired]


def not_acquired(lock_name: str, refused: Refused) -> NotAcquired:
    waited = f" (waited {refused.waited_ms / 1_000:.1f} s)" if refused.waited_ms >= 1 else ""
    seen = refused.refusal.holder
    if seen is None:
        return NotAcquired(f'"{lock_name}" is held by another claim{waited}')
    record = checked_lease(seen)
    return NotAcquired(f'"{lock_name}" is held by {holder_text(record)}{waited}', lock_info(record))


def not_acquired_error(lock_name: str, refused: Refused) -> NotAcquiredError:
    result = not_acquired(lock_name, refused)
    return NotAcquiredError(lock_name, result.error, result.holder)


def holder_text(record: LeaseRecord) -> str:
    """It is unknown since when another client holds its lock."""
    if record.acquired_at_ms > 0:
        return f"{record.holder_id} since {_iso(record.acquired_at_ms)}"
    end = "no expiry" if record.expires_at_ms is None else f"expires: {_iso(record.expires_at_ms)}"
    return f"{record.holder_id} (since: unknown, {end})"


def _iso(ms: float) -> str:
    return time_of(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
