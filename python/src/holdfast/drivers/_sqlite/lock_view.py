"""What one transaction has read about a lock."""

from __future__ import annotations

import sqlite3
import time
from typing import Optional, Sequence

from ...core.lock_share import Share
from .connection import Connection
from .rows import MAX_AHEAD, Front, Held, front_of, held_beside, largest_limit, waiters_of


class LockView:
    """All claims of a list on one name, such as those of many waiters that renew their places, share one read."""

    def __init__(self, connection: Connection, lock_name: str, now_ms: int) -> None:
        self._connection = connection
        self._lock_name = lock_name
        self._now_ms = now_ms
        self._rows: Optional[list[sqlite3.Row]] = None
        self._most = 0
        self._held: Optional[Held] = None
        self._largest = 0
        self._holder: Optional[sqlite3.Row] = None
        self._front: Optional[Front] = None

    def changed(self) -> None:
        """The leases have changed."""
        self._rows = None
        self._held = None
        self._holder = None
        self._front = None

    def joined(self) -> None:
        """A claim was added to the end of the queue."""
        if self._rows is not None and len(self._rows) < self._most:
            self._rows = None
        if self._front is not None and self._front.waiters < MAX_AHEAD:
            self._front = None

    def waiters(self, most: int) -> list[sqlite3.Row]:
        """The first waiters of the queue, at most `most` of them."""
        if self._rows is not None and (most <= self._most or len(self._rows) < self._most):
            return self._rows[:most]
        rows = waiters_of(self._connection, self._lock_name, self._now_ms, most)
        if any(row["expires_at_ms"] > self._now_ms + row["wait_ms"] for row in rows):
            self._clamp_waiters()
        self._rows = rows
        self._most = most
        return rows

    def held(self, candidates: Sequence[Share]) -> Sequence[Share]:
        """The leases that are held, combined into one, as far as they matter to these claims."""
        largest = largest_limit(candidates)
        if self._held is None or largest > self._largest:
            held = held_beside(self._connection, self._lock_name, self._now_ms, largest)
            if held.is_ahead and self._end_leases_ahead():
                held = held_beside(self._connection, self._lock_name, self._now_ms, largest)
            self._held = held
            self._largest = largest
        return self._held.parts

    @property
    def holder(self) -> Optional[sqlite3.Row]:
        """One of the leases."""
        if self._holder is None:
            self._holder = self._connection.get("holder", self._lock_name, self._now_ms)
        return self._holder

    @property
    def front(self) -> Front:
        if self._front is None:
            self._front = front_of(self._connection, self._lock_name, self._now_ms)
        return self._front

    def clamp(self) -> None:
        """Ends what the clock would keep for as long as it was set back. A claim with force does it in any case."""
        self._clamp_waiters()
        self._end_leases_ahead()

    def _clamp_waiters(self) -> None:
        """A place ends as if it had been written now. A waiter that lives asks again long before."""
        self._connection.run("clamp_waiters", self._now_ms, self._lock_name, self._now_ms)

    def _end_leases_ahead(self) -> bool:
        """A lease that ends too late by SQLite's clock may be one of a clock that was ahead, or this clock may be wrong
        and set right again. So it keeps its end, and is deleted when its own length has passed. True if one was."""
        # The monotonic clock of the machine, which all of its processes share.
        monotonic_ms = int(time.monotonic() * 1_000)
        self._connection.run("note_ahead", self._now_ms, monotonic_ms, self._lock_name, self._now_ms)
        if self._connection.run("end_ahead", self._lock_name, self._now_ms, self._now_ms, monotonic_ms) == 0:
            return False
        self.changed()
        return True


class LockViews:
    """The views of one transaction."""

    def __init__(self, connection: Connection, now_ms: int) -> None:
        self._connection = connection
        self._now_ms = now_ms
        self._views: dict[str, LockView] = {}

    def of(self, lock_name: str) -> LockView:
        view = self._views.get(lock_name)
        if view is None:
            view = self._views[lock_name] = LockView(self._connection, lock_name, self._now_ms)
        return view
