"""Reads one page of leases and waiters, within a transaction."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Optional

from ...core.driver import InspectPage, InspectQuery, LeaseRecord, WaiterRecord
from ...errors import InvalidArgumentError
from .connection import Connection
from .rows import lease_record, read_now, waiter_record

_LAST = "\U0010ffff" * 255
"""The prefix followed by this is behind every name that begins with the prefix."""
_MAX_ON_A_PAGE = 500
"""A page with many leases or waiters ends early, even within a name, so that no other call waits long for it."""


@dataclass(frozen=True)
class _Cursor:
    """Where a page ended: after a name, or within a name after a lease or a waiter."""

    name: str
    claim_id: Optional[str] = None
    place: Optional[int] = None

    def text(self) -> str:
        return json.dumps([self.name, self.claim_id, self.place], ensure_ascii=False, separators=(",", ":"))


def inspect(connection: Connection, query: InspectQuery) -> InspectPage:
    now_ms = read_now(connection)
    start = None if query.after is None else _read_cursor(query.after)
    leases: list[LeaseRecord] = []
    waiters: list[WaiterRecord] = []
    names = 0
    last = "" if start is None else start.name

    def page(end: Optional[_Cursor] = None) -> InspectPage:
        return InspectPage(leases, waiters, None if end is None else end.text())

    for name in _names_of(connection, query, start, now_ms):
        if not name.startswith(query.prefix or "") or (query.lock_name is not None and name != query.lock_name):
            continue
        room = _MAX_ON_A_PAGE - len(leases) - len(waiters)
        if names == query.page_size or room <= 0:
            return page(_Cursor(last))
        names += 1
        last = name
        within = start if start is not None and start.name == name else None
        if within is None or within.place is None:
            after = within.claim_id if within is not None and within.claim_id is not None else ""
            # One row more than there is room for shows whether there are more.
            rows = connection.all("leases_from", name, after, now_ms, room + 1)
            shown = rows[:room]
            leases.extend(lease_record(row, now_ms) for row in sorted(shown, key=_token_of))
            if len(rows) > room:
                return page(_Cursor(name, claim_id=shown[-1]["claim_id"]))
            room -= len(rows)
        place = within.place if within is not None and within.place is not None else -1
        rows = connection.all("waiters_from", name, place, now_ms, room + 1)
        waiters.extend(waiter_record(row) for row in rows[:room])
        if len(rows) > room:
            # After its leases, if there was no room for a waiter.
            return page(_Cursor(name, place=rows[room - 1]["place"] if room > 0 else place))
    return page()


def _token_of(row: sqlite3.Row) -> float:
    """A row that another program wrote may have anything there."""
    token = row["fencing_token"]
    return token if isinstance(token, (int, float)) else 0


def _read_cursor(after: str) -> _Cursor:
    try:
        name, claim_id, place = json.loads(after)
    except (TypeError, ValueError):
        name = claim_id = place = None
    is_ours = isinstance(name, str) and isinstance(claim_id, (str, type(None))) and isinstance(place, (int, type(None)))
    if not is_ours:
        raise InvalidArgumentError("after", after, "`next` of the previous page")
    return _Cursor(name, claim_id, place)


def _names_of(connection: Connection, query: InspectQuery, start: Optional[_Cursor], now_ms: int) -> list[str]:
    """Up to one name more than fits on the page. A name that the page before has begun comes first."""
    is_within = start is not None and (start.claim_id is not None or start.place is not None)
    if query.lock_name is not None:
        return [query.lock_name] if start is None or is_within else []
    prefix = query.prefix or ""
    after = "" if start is None else f"{start.name}\x01"
    span = (after, prefix, prefix + _LAST, now_ms, query.page_size + 1)
    names = [row["lock_name"] for row in connection.all("names", *span, *span, query.page_size + 1)]
    return [start.name, *names] if start is not None and is_within else names
