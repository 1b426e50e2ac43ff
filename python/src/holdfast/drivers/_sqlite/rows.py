"""What a decision about a lock needs to know. The cost of a read does not grow with the number of leases or waiters."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Sequence

from ...core.driver import LeaseRecord, Mode, WaiterRecord
from ...core.lock_share import Share
from .connection import Connection

QUEUE_WINDOWS = (1, 32)
"""How many waiters are read first, and then, to decide who is next. If the first one is exclusive, one is enough."""
MAX_AHEAD = 32
"""The number of waiters ahead is exact up to this."""


class Part(NamedTuple):
    """The part of a lock that a lease has, or that a waiter needs."""

    mode: Mode
    limit: Optional[int]
    permits: int
    claim_id: str = ""


def part_of(row: sqlite3.Row) -> Part:
    return Part(row["mode"], row["max_permits"], row["permits"], row["claim_id"])


def read_now(connection: Connection) -> int:
    row = connection.get("now")
    assert row is not None
    return int(row[0])


@dataclass(frozen=True)
class Held:
    """The leases that are held, combined into one."""

    parts: tuple[Part, ...]
    is_ahead: bool
    """One of them was written by a clock that has been set back since."""


def held_beside(connection: Connection, lock_name: str, now_ms: int, largest: int) -> Held:
    """Reads no more leases than the largest limit in question: more would not change a decision."""
    row = connection.get("held", now_ms, lock_name, now_ms, largest)
    if row is None:
        return Held((), False)
    _, permits, exclusive, ahead = row
    return Held((Part("exclusive" if exclusive else "shared", None, permits),), bool(ahead))


def largest_limit(shares: Sequence[Share]) -> int:
    return max((1, *(share.limit or 1 for share in shares)))


@dataclass(frozen=True)
class Front:
    """What the waiters behind the front of a queue need to know about it."""

    waiters: int
    last_place: int
    first_gone_ms: Optional[int]
    """When the first of them ends unless it asks again."""


def front_of(connection: Connection, lock_name: str, now_ms: int) -> Front:
    row = connection.get("front_of", lock_name, now_ms, MAX_AHEAD)
    assert row is not None
    return Front(row["waiters"], row["last_place"] or 0, row["first_gone_ms"])


def next_end_of(connection: Connection, lock_name: str, now_ms: int) -> Optional[int]:
    """When the first lease ends."""
    row = connection.get("next_end", now_ms, lock_name, now_ms)
    assert row is not None
    end: Optional[int] = row["next_end_ms"]
    return end


def waiters_of(connection: Connection, lock_name: str, now_ms: int, most: int) -> list[sqlite3.Row]:
    """The first waiters of a queue, at most `most` of them."""
    return connection.all("waiters_of", lock_name, now_ms, most)


def lease_record(row: sqlite3.Row, now_ms: int) -> LeaseRecord:
    return LeaseRecord(
        lock_name=row["lock_name"],
        claim_id=row["claim_id"],
        holder_id=row["holder_id"],
        mode=row["mode"],
        permits=row["permits"],
        fencing_token=row["fencing_token"],
        acquired_at_ms=row["acquired_at_ms"],
        expires_at_ms=_end_of(row["expires_at_ms"], row["ttl_ms"], now_ms),
        limit=row["max_permits"],
        metadata=_metadata_in(row["metadata"]),
    )


def _end_of(expires_at_ms: Any, ttl_ms: Any, now_ms: int) -> Any:
    """A column may have a value of any type: another program may have written it. The core repairs what it shows."""
    if not isinstance(ttl_ms, (int, float)) or not isinstance(expires_at_ms, (int, float)):
        return expires_at_ms
    return min(expires_at_ms, now_ms + ttl_ms)


def _metadata_in(text: Any) -> Any:
    """What another program wrote is shown without it."""
    try:
        return json.loads(text) if isinstance(text, str) and text else None
    except (ValueError, RecursionError):
        return None


def waiter_record(row: sqlite3.Row) -> WaiterRecord:
    return WaiterRecord(
        lock_name=row["lock_name"],
        claim_id=row["claim_id"],
        holder_id=row["holder_id"],
        mode=row["mode"],
        permits=row["permits"],
        waiting_since_ms=row["waiting_since_ms"],
        limit=row["max_permits"],
    )
