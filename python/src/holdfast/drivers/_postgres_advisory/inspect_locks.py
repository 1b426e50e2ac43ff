"""Reads the locks of a database: Holdfast's by their activity comments, any other by what the server shows."""

from __future__ import annotations

from typing import List, Optional, Sequence

from ...core.driver import InspectPage, InspectQuery, LeaseRecord, Mode, WaiterRecord
from .._postgres.connections import Row
from .activity_comment import ActivityEntry, read_activity_comment
from .held_locks import advisory_key


def holder_of(lock_name: str, rows: Sequence[Row]) -> Optional[LeaseRecord]:
    key = str(advisory_key(lock_name))
    held = [lease for row in rows if row["granted"] and row["key"] == key for lease in leases_on(lock_name, row)]
    return next((lease for lease in held if lease.fencing_token > 0), held[0] if held else None)


def leases_on(lock_name: str, row: Row) -> List[LeaseRecord]:
    """The leases on this name that a row is about. Its holder may not show the name."""
    named = [lease for lease in _leases_in(row) if lease.lock_name == lock_name]
    return named if named or row["key"] != str(advisory_key(lock_name)) else [_unnamed(row, lock_name)]


def inspect_locks(query: InspectQuery, rows: Sequence[Row]) -> InspectPage:
    def is_requested(name: str) -> bool:
        return (
            (query.lock_name is None or name == query.lock_name)
            and name.startswith(query.prefix or "")
            and (query.after is None or name > query.after)
        )

    ours = [row for row in rows if read_activity_comment(row["query"]) is not None]
    # Locks of other clients have no names. But if one name was asked for, all rows are about its key.
    name = query.lock_name
    held = [row for row in (ours if name is None else rows) if row["granted"]]
    shown = [each for row in held for each in (_leases_in(row) if name is None else leases_on(name, row))]
    leases = [each for each in shown if is_requested(each.lock_name)]
    waiters = [each for row in ours if not row["granted"] for each in _waiters_in(row) if is_requested(each.lock_name)]
    names = sorted({each.lock_name for each in leases} | {each.lock_name for each in waiters})
    page = set(names[: query.page_size])
    return InspectPage(
        leases=sorted(
            (each for each in leases if each.lock_name in page), key=lambda each: (each.lock_name, each.fencing_token)
        ),
        waiters=sorted((each for each in waiters if each.lock_name in page), key=lambda each: each.waiting_since_ms),
        next=names[query.page_size - 1] if len(names) > query.page_size else None,
    )


def _entries_of(row: Row) -> List[ActivityEntry]:
    """The comment lists all leases and requests of the connection. The row is about one of its locks."""
    entries = read_activity_comment(row["query"]) or []
    return [
        each for each in entries if each.shared == row["shared"] and str(advisory_key(each.lock_name)) == row["key"]
    ]


def _leases_in(row: Row) -> List[LeaseRecord]:
    entries = _entries_of(row)
    if not entries:
        return [_unnamed(row, f"#{row['key']}")]
    return [
        LeaseRecord(
            lock_name=each.lock_name,
            claim_id=each.claim_id,
            holder_id=each.holder_id,
            mode=_mode(row),
            permits=1,
            # Without a token, the comment was sent with the statement that requested this lock. So the server's columns
            # have its token and the time of the request. The comment of the next heartbeat has the time of the grant.
            fencing_token=int(row["token"]) if each.fencing_token is None else each.fencing_token,
            acquired_at_ms=_asked_at_ms(row) if each.acquired_at_ms is None else each.acquired_at_ms,
            session=_session_of(row),
        )
        for each in entries
    ]


def _waiters_in(row: Row) -> List[WaiterRecord]:
    return [
        WaiterRecord(
            lock_name=each.lock_name,
            claim_id=each.claim_id,
            holder_id=each.holder_id,
            mode=_mode(row),
            permits=1,
            waiting_since_ms=_asked_at_ms(row),
        )
        for each in _entries_of(row)[:1]
    ]


def _unnamed(row: Row, lock_name: str) -> LeaseRecord:
    """There was no room in the comment, this role may not see the statement, or the holder does not use Holdfast."""
    return LeaseRecord(
        lock_name=lock_name,
        claim_id=f"pid:{row['pid']}:{row['key']}",
        holder_id=_session_of(row),
        mode=_mode(row),
        permits=1,
        fencing_token=0,
        acquired_at_ms=_asked_at_ms(row),
        session=_session_of(row),
    )


def _session_of(row: Row) -> str:
    return f"pid {row['pid']}"


def _mode(row: Row) -> Mode:
    return "shared" if row["shared"] else "exclusive"


def _asked_at_ms(row: Row) -> float:
    """The server hides the time from a role that may not see the activity of others."""
    return float(row["asked_at"] or 0)
