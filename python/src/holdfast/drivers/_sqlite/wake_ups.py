"""Finds out which waiters of this driver should ask again and which leases were ended by force, and rings the bell when
it may be the turn of another process. A check only reads. A check that wrote would trigger the checks of other
processes, which would trigger this one again."""

from __future__ import annotations

import math
import sqlite3
from typing import Callable, Iterable, Sequence

from ...core.driver import DriverListener
from ...errors import StoreError
from .._shared.admission import admitted
from .bell import ring_bell
from .connection import Connection
from .errors import store_error_from
from .rows import QUEUE_WINDOWS, Part, held_beside, largest_limit, next_end_of, part_of, read_now, waiters_of


class WakeUps:
    """Lives in the driver's thread. `notify` calls a listener in the event loop. `stop_watching` is called there, too,
    after all listeners were told that they are disconnected."""

    def __init__(
        self, connection: Connection, notify: Callable[[Callable[[], None]], None], stop_watching: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._notify = notify
        self._stop_watching = stop_watching
        self._listeners: list[DriverListener] = []
        self._waiting: dict[str, set[str]] = {}
        """The claims of this driver that are in a queue, by lock name."""
        self._first: dict[str, tuple[str, float]] = {}
        """The first waiter of each lock at the last check, and the end of the lease that it waited for."""
        self._last_forced = 0
        """The forced releases up to this id have been reported."""
        self._version = (0, 0)
        self._news_is_due = False
        connection.on_moved = self._moved

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def add(self, lock_name: str, claim_id: str) -> None:
        self._waiting.setdefault(lock_name, set()).add(claim_id)

    def remove(self, lock_name: str, claim_id: str) -> None:
        waiting = self._waiting.get(lock_name)
        if waiting is None:
            return
        waiting.discard(claim_id)
        if not waiting:
            del self._waiting[lock_name]
            self._first.pop(lock_name, None)

    def listen(self, listener: DriverListener) -> None:
        """Call it within a transaction."""
        if not any(each is listener for each in self._listeners):
            self._listeners.append(listener)
        self._version = self._connection.data_version()
        self._news_is_due = True

    def stop(self, listener: DriverListener) -> bool:
        """True if no listener is left."""
        self._listeners = [each for each in self._listeners if each is not listener]
        return not self._listeners

    def forget_all(self) -> None:
        """In a forked process: they belong to the parent."""
        self._listeners = []
        self._waiting = {}
        self._first = {}

    def committed(self, lock_names: Iterable[str], turns: bool) -> None:
        """Call it after a commit of this connection. `turns`: it may be the turn of a waiter, of this process or
        another."""
        if turns:
            ring_bell(self._connection.path)
        if not self._listeners:
            return
        # The data version changes with commits of other connections, not with those of this one.
        self._news_is_due = True
        ours = [lock_name for lock_name in dict.fromkeys(lock_names) if lock_name in self._waiting]
        if ours:
            self._check(ours, with_news=False)

    def check_rung(self) -> int:
        """Returns how many lock names were checked. Never raises, as `poll`."""
        return self._check(list(self._waiting), with_news=False)

    def poll(self) -> int:
        if not self._waiting:
            return 0
        try:
            version = self._connection.look(self._connection.data_version)
        except Exception as error:
            self._disconnected(error)
            return 0
        if version == self._version and not self._news_is_due:
            return 0
        self._version = version
        self._news_is_due = False
        try:
            self._connection.look(self._report_forced)
        except Exception as error:
            self._disconnected(error)
            return 0
        return self._check(list(self._waiting), with_news=True)

    def _report_forced(self) -> None:
        since_ms = read_now(self._connection) - _RECENT_MS
        for row in self._connection.all("forced_releases_since", self._last_forced, since_ms):
            self._last_forced = row["id"]
            claim_id, cause = row["claim_id"], StoreError(f"it was force-released by {row['forced_by']}")
            for listener in self._listeners:
                self._notify(lambda each=listener, id=claim_id, why=cause: each.lost(id, why))  # type: ignore[misc]

    def _check(self, lock_names: Sequence[str], with_news: bool) -> int:
        """Never raises: the transaction before it has been committed, and its answer must arrive."""
        if not lock_names:
            return 0

        def look() -> None:
            now_ms = read_now(self._connection)
            for lock_name in lock_names:
                self._wake_on(lock_name, now_ms, with_news)

        try:
            self._connection.look(look)
        except Exception as error:
            self._disconnected(error)
        return len(lock_names)

    def _wake_on(self, lock_name: str, now_ms: int, with_news: bool) -> None:
        """News is less urgent: another waiter is the first now, or the lease that the first one waits for ends
        sooner."""
        ours = self._waiting.get(lock_name, set())
        front, more = QUEUE_WINDOWS
        queue = waiters_of(self._connection, lock_name, now_ms, front)
        # Behind an exclusive claim of another process no waiter of ours has its turn. Most checks end here.
        if not queue or (queue[0]["mode"] == "exclusive" and queue[0]["claim_id"] not in ours):
            self._first.pop(lock_name, None)
            return
        first = part_of(queue[0])
        woken = self._admitted(lock_name, now_ms, queue)
        if any(part.mode == "shared" for part in woken):
            woken = self._admitted(lock_name, now_ms, waiters_of(self._connection, lock_name, now_ms, more))
        if with_news:
            end = next_end_of(self._connection, lock_name, now_ms)
            next_end_ms = math.inf if end is None else float(end)
            before = self._first.get(lock_name)
            is_news = before is None or before[0] != first.claim_id or next_end_ms < before[1]
            if not woken and is_news:
                woken = [first]
            self._first[lock_name] = (first.claim_id, next_end_ms)
        for part in woken:
            if part.claim_id in ours:
                self._wake(lock_name, part.claim_id)

    def _wake(self, lock_name: str, claim_id: str) -> None:
        for listener in self._listeners:
            self._notify(lambda listener=listener: listener.wake(lock_name, claim_id))  # type: ignore[misc]

    def _admitted(self, lock_name: str, now_ms: int, rows: Sequence[sqlite3.Row]) -> list[Part]:
        queue = [part_of(row) for row in rows]
        return admitted(held_beside(self._connection, lock_name, now_ms, largest_limit(queue)).parts, queue)

    def _moved(self) -> None:
        path = self._connection.path
        # Another file counts from the beginning.
        self._last_forced = 0
        self._disconnected(StoreError(f"the lock file {path} was removed or replaced, and was opened again"))

    def _disconnected(self, error: Exception) -> None:
        cause = store_error_from(error, self._connection.path)
        listeners, self._listeners = self._listeners, []
        self._notify(self._stop_watching)
        for listener in listeners:
            self._notify(lambda listener=listener: listener.disconnected(cause))  # type: ignore[misc]


_RECENT_MS = 10_000
"""The holders of leases that were ended earlier have asked since."""
