"""A connection of the caller's asyncpg pool, between two calls that follow each other."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, NamedTuple, Optional

UNUSED_SECONDS = 0.01
"""How long a connection without a call is kept. Another user of the pool waits for it no longer than that."""
LENT_SECONDS = 0.1
"""How long a connection stays away from its pool, unless one call takes longer. The pool's `close` waits for it."""


class Lent(NamedTuple):
    connection: Any
    until: float


class KeptConnection:
    """The pool resets a connection that is given back, which costs as much as the call. So one connection is kept for a
    moment, for the calls that come in that time: the lists of a busy program, or the release of a short block.

    Only while the pool has another free one, so that its other users do not wait.
    """

    def __init__(self, pool: Any, give_back: Callable[[Any], None]) -> None:
        self._pool = pool
        self._give_back = give_back
        self._lent: Optional[Lent] = None
        self._due = 0.0
        self._timer: Optional[asyncio.TimerHandle] = None

    def lent(self, connection: Any) -> Lent:
        return Lent(connection, asyncio.get_running_loop().time() + LENT_SECONDS)

    def take(self) -> Optional[Lent]:
        lent, self._lent = self._lent, None
        return lent if lent is not None and is_open(lent.connection) else None

    def keep(self, lent: Lent) -> None:
        """Keeps it for the next call, or gives it back."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._lent is not None or now >= lent.until or not has_free_connection(self._pool):
            self._give_back(lent.connection)
            return
        self._lent = lent
        self._due = min(now + UNUSED_SECONDS, lent.until)
        # Not one timer for each call.
        if self._timer is None:
            self._timer = loop.call_at(self._due, self._check)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lent, self._lent = self._lent, None
        if lent is not None:
            self._give_back(lent.connection)

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        if self._lent is None:
            return
        if loop.time() < self._due:
            self._timer = loop.call_at(self._due, self._check)
        else:
            self.close()


def has_free_connection(pool: Any) -> bool:
    idle_size = getattr(pool, "get_idle_size", None)  # Not of the pool in an engine of SQLAlchemy.
    return idle_size is not None and idle_size() > 0


def lends_at_once(pool: Any) -> bool:
    """Whether the pool waits for nothing before it lends a connection. It may have free ones, but lend the place of one
    that has ended: it then connects, and calls `init`. For each connection that it lends, it calls `setup`."""
    try:
        place = pool._queue._queue[-1]
        is_fresh = place._generation == pool._generation
        return bool(pool._setup is None and place.is_connected() and is_fresh)
    except (AttributeError, IndexError, TypeError):
        return False  # Not a pool of asyncpg, or a version of it that has other names.


def is_open(connection: Any) -> bool:
    """One that has ended has gone back to its pool by itself, and refuses every question."""
    try:
        return not connection.is_closed()
    except Exception:
        return False
