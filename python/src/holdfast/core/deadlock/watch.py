"""Searches for deadlocks among the claims of an instance that have waited for some time."""

from __future__ import annotations

import logging
import math
from typing import Callable, Mapping, Optional, Protocol

from ...errors import HoldfastError, StoreError
from ..clock import backoff_ms
from ..driver import Claim
from ..lease import LeaseContext
from ..limits import MAX_DEADLOCK_REQUESTS
from ..scheduler import Entry
from ..store_client import StoreClient
from .find import Cycle, cycle_key, deadlock_error, find_cycles
from .snapshot import Snapshot
from .wait_marker import WaitMarker

log = logging.getLogger("holdfast")

CyclesByVictim = Mapping[str, Cycle]
"""By the claim id of the victim."""


class WaitingClaim(Protocol):
    @property
    def claim(self) -> Claim: ...

    def give_up(self, error: HoldfastError) -> None: ...


class DeadlockWatch:
    """Ends each claim that is the victim of a cycle.

    A claim writes a wait marker when it has waited for half of `after_ms`. So a search, which follows the markers,
    finds those of all claims that have waited longer. A search reads a bounded number of records. Only one runs at a
    time, all claims of the instance share it, and each claim searches at growing intervals: a claim that waits long
    costs almost nothing, and a thousand claims cost no more than two searches a second.
    """

    def __init__(self, context: LeaseContext, open_store: Callable[[], StoreClient], after_ms: float) -> None:
        """`open_store` opens a client that sends nothing but markers and searches. It is called for the first claim
        that is watched."""
        self.context = context
        self.after_ms = after_ms
        self.opened: Optional[StoreClient] = None
        self._open_store = open_store
        self._watched: dict[WaitingClaim, _Watched] = {}
        self._last_search: Optional[_Search] = None
        self._refused = False

    @property
    def store(self) -> StoreClient:
        if self.opened is None:
            self.opened = self._open_store()
        return self.opened

    def watch(self, pending: WaitingClaim) -> None:
        if not self._refused:
            watched = self._watched[pending] = _Watched(self, pending)
            watched.begin()

    def forget(self, pending: WaitingClaim) -> None:
        watched = self._watched.pop(pending, None)
        if watched is not None:
            if not self._watched:
                self._last_search = None
            watched.end()

    def failed(self, error: Exception) -> None:
        """A store that does not answer is not reported here: the claim itself reports it. If the store rejects the
        markers of this client for good, the watch stops."""
        if not isinstance(error, StoreError) or error.retryable or self._refused:
            return
        self._refused = True
        for pending in list(self._watched):
            self.forget(pending)
        log.warning(
            "this instance does not look for deadlocks, because the store rejects its wait markers: %s. Give this "
            "client permission for the names waits:*, or set deadlock_after_seconds to 0",
            error,
        )

    def search(self, since_ms: Optional[float], done: Callable[[CyclesByVictim], None], failed: OnFailure) -> None:
        """Calls one of the functions with the result of a search that began after `since_ms`, and starts one if there
        is none. Without `since_ms`, the search is recent enough to find every cycle of which a claim that is due can be
        the victim."""
        now_ms = self.context.clock.monotonic() * 1_000
        if since_ms is None:
            # The victim is the youngest claim of its cycle, and has waited for `after_ms`. So half of that time ago,
            # all claims of the cycle were already waiting.
            since_ms = now_ms - min(self.after_ms / 2, _MAX_AGE_MS)
        last = self._last_search
        if last is None or not (last.in_flight or last.began_ms > since_ms):
            last = self._last_search = _Search(now_ms)
            self.store.spawn(last.run(self.store, self._next_names()), last.cancelled)
        last.then(done, failed)

    def _next_names(self) -> list[str]:
        """The lock names that claims of this instance wait for. If a search cannot cover all of them, those that the
        last search left out come first."""
        names: dict[str, None] = {}
        for pending, watched in list(self._watched.items()):
            if len(names) == _MAX_NAMES:
                break
            names[pending.claim.lock_name] = None
            del self._watched[pending]
            self._watched[pending] = watched
        return list(names)


OnFailure = Callable[[Exception], None]


class _Search:
    def __init__(self, began_ms: float) -> None:
        self.began_ms = began_ms
        self.in_flight = True
        self._cycles: CyclesByVictim = {}
        self._error: Optional[Exception] = None
        self._waiting: list[Callable[[], None]] = []

    async def run(self, store: StoreClient, lock_names: list[str]) -> None:
        snapshot = Snapshot(store)
        try:
            await snapshot.read(lock_names)
            self._cycles = find_cycles(snapshot.leases, snapshot.waiters)
        except Exception as error:
            if not isinstance(error, HoldfastError):
                log.exception("a search for deadlocks failed")
            self._error = error
        self._settle()

    def cancelled(self) -> None:
        """The program has cancelled all tasks."""
        self._error = StoreError("a search for deadlocks was cancelled from outside")
        self._settle()

    def then(self, done: Callable[[CyclesByVictim], None], failed: OnFailure) -> None:
        def settled() -> None:
            if self._error is None:
                done(self._cycles)
            else:
                failed(self._error)

        if self.in_flight:
            self._waiting.append(settled)
        else:
            settled()

    def _settle(self) -> None:
        self.in_flight = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each()


class _Watched:
    """A claim that is watched."""

    def __init__(self, watch: DeadlockWatch, pending: WaitingClaim) -> None:
        self.schedule: Optional[Entry] = None
        self._watch = watch
        self._pending = pending
        self._marker: Optional[WaitMarker] = None
        self._due_ms = math.inf
        self._tries = 0
        self._unconfirmed: Optional[tuple[str, float]] = None
        """The cycle that the last search found, and when its result was known."""
        self._ended = False

    def begin(self) -> None:
        after_ms = self._watch.after_ms
        if self._uses_markers:
            self._set(self._now_ms() + after_ms / 2)
        else:
            self._search_in(after_ms)

    def due(self) -> None:
        if self._now_ms() < self._due_ms:
            self._set(self._due_ms)
            return
        self._due_ms = math.inf
        watch = self._watch
        watch.context.scheduler.clear(self)
        if self._uses_markers:
            is_first = self._marker is None
            if self._marker is None:
                self._marker = WaitMarker(watch.store, watch.context.in_flight, self._pending.claim, watch.failed)
            if is_first or self._tries > 0:
                self._marker.write()
            if is_first:
                self._search_in(watch.after_ms / 2)
                return
        since_ms = None if self._unconfirmed is None else self._unconfirmed[1]
        watch.search(since_ms, self._decide, self._failed)

    def end(self) -> None:
        self._ended = True
        self._watch.context.scheduler.clear(self)
        if self._marker is not None:
            self._marker.end()

    @property
    def _uses_markers(self) -> bool:
        """A session store shows all waiters, so that no markers are needed."""
        return self._watch.context.store.driver.capabilities.queue

    def _now_ms(self) -> float:
        return self._watch.context.clock.monotonic() * 1_000

    def _set(self, due_ms: float) -> None:
        self._due_ms = due_ms
        self._watch.context.scheduler.set(self, due_ms)

    def _search_in(self, ms: float) -> None:
        if not self._ended:
            # Rounded up to a grid, so that claims that are due at about the same time share a search.
            self._set(self._watch.context.scheduler.round(self._now_ms() + ms + _GRID_MS, _GRID_MS))

    def _decide(self, cycles: CyclesByVictim) -> None:
        if self._ended:
            return
        cycle = cycles.get(self._pending.claim.claim_id)
        if cycle is None:
            self._unconfirmed = None
            self._search_later()
            return
        # Pages are read one after the other, so a cycle may be made of records from different moments. If a second
        # search finds the same cycle, all of it existed at once in between.
        key = cycle_key(cycle)
        if self._unconfirmed is not None and key == self._unconfirmed[0]:
            self._pending.give_up(deadlock_error(cycle))
            return
        self._unconfirmed = (key, self._now_ms())
        self._search_in(_CONFIRM_MS)

    def _failed(self, error: Exception) -> None:
        self._watch.failed(error)
        self._search_later()

    def _search_later(self) -> None:
        self._tries += 1
        self._search_in(backoff_ms(_RETRY_FIRST_MS, _RETRY_MAX_MS, self._tries, self._watch.context.random))


_MAX_NAMES = MAX_DEADLOCK_REQUESTS // 2
"""How many lock names a search starts with: each of them takes another request for its holder."""
_MAX_AGE_MS = 500
"""Claims share a search that began at most this long ago."""
_GRID_MS = 100
_CONFIRM_MS = 100
"""After how long a cycle is searched for a second time."""
_RETRY_FIRST_MS = 1_000
_RETRY_MAX_MS = 30_000
