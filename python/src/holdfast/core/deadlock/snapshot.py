"""Reads what can block claims that wait: who holds their locks, what those holders wait for, who holds that, and so on.
"""

from __future__ import annotations

import asyncio
from typing import Callable, Iterable, Sequence

from ..driver import InspectPage, InspectQuery, LeaseRecord, WaiterRecord
from ..limits import MAX_DEADLOCK_RECORDS, MAX_DEADLOCK_REQUESTS, MAX_PAGE_SIZE
from ..store_client import StoreClient
from .wait_marker import marker_name_of, waits_for


class Snapshot:
    """The number of requests and of records is bounded, and only names that lead on are read: it takes no longer in a
    store with a million other locks."""

    def __init__(self, store: StoreClient) -> None:
        self.leases: list[LeaseRecord] = []
        self.waiters: list[WaiterRecord] = []
        self._store = store
        self._names_read: set[str] = set()
        self._followed: dict[str, int] = {}
        """How many holders of each lock name are followed."""
        self._requests = 0

    async def read(self, lock_names: Sequence[str]) -> None:
        if not self._store.driver.capabilities.queue:
            # A session store has no queue of its own. It shows all leases and waiters in a single answer.
            page = await self._store.inspect(InspectQuery(page_size=MAX_PAGE_SIZE))
            self.leases, self.waiters = list(page.leases), list(page.waiters)
            return
        while lock_names:
            markers = await self._names_behind(lock_names, self._add)
            lock_names = await self._names_behind(
                markers, lambda page, _: filter(None, (waits_for(marker) for marker in page.leases))
            )

    async def _names_behind(
        self, names: Iterable[str], follow: Callable[[InspectPage, str], Iterable[str]]
    ) -> list[str]:
        """Reads the names that were not read before, some at a time, and returns the names that their pages lead to."""
        unread = [name for name in dict.fromkeys(names) if name not in self._names_read]
        self._names_read.update(unread)
        found: dict[str, None] = {}
        for at in range(0, len(unread), _MAX_CONCURRENT):
            if not self._has_room:
                break
            some = unread[at : at + _MAX_CONCURRENT]
            for name, pages in zip(some, await asyncio.gather(*map(self._pages, some))):
                for page in pages:
                    found.update(dict.fromkeys(follow(page, name)))
        return list(found)

    def _add(self, page: InspectPage, name: str) -> list[str]:
        """Adds a page of a lock name, and returns the names of its holders' wait markers."""
        markers: list[str] = []
        for lease in page.leases:
            if self._is_full:
                break
            self.leases.append(lease)
            followed = self._followed.get(name, 0)
            marker = marker_name_of(lease) if followed < _MAX_FOLLOWED else None
            if marker is not None:
                self._followed[name] = followed + 1
                markers.append(marker)
        for waiter in page.waiters:
            if self._is_full:
                break
            self.waiters.append(waiter)
        return markers

    async def _pages(self, lock_name: str) -> list[InspectPage]:
        pages: list[InspectPage] = []
        query, records = InspectQuery(lock_name=lock_name), 0
        while self._has_room and records < MAX_DEADLOCK_RECORDS:
            self._requests += 1
            page = await self._store.inspect(query)
            pages.append(page)
            records += len(page.leases) + len(page.waiters)
            if page.next is None:
                break
            query = InspectQuery(lock_name=lock_name, after=page.next)
        return pages

    @property
    def _has_room(self) -> bool:
        return self._requests < MAX_DEADLOCK_REQUESTS and not self._is_full

    @property
    def _is_full(self) -> bool:
        return len(self.leases) + len(self.waiters) >= MAX_DEADLOCK_RECORDS


_MAX_CONCURRENT = 16
"""How many lock names are read at the same time."""
_MAX_FOLLOWED = 64
"""How many holders of one lock name are followed, so that a single name does not use up the bound for all others."""
