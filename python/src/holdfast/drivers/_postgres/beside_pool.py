"""A pool of the caller, and connections beside it for what must not wait for the application."""

from __future__ import annotations

import logging
import time
from typing import Optional, Sequence

from ...core.secrets import message_of
from .connections import Connections, DedicatedConnection, Row, Values
from .own_pool import OwnPool

log = logging.getLogger("holdfast")

_BESIDE = 2
_OPEN_AGAIN_SECONDS = 5.0


class BesidePool:
    """Renewals and releases have connections of their own, with the pool's settings: the application may keep all
    connections of its pool busy for longer than a lease lasts. Everything else is lent by the pool."""

    is_pool = True

    def __init__(self, pool: Connections, what: str) -> None:
        """`what` names the pool in the warning."""
        self.place = pool.place
        self._pool = pool
        self._what = what
        self._own = OwnPool(self._open, pool.place, _BESIDE)
        self._warned = False
        self._open_again_at = 0.0

    async def query(self, text: str, values: Values) -> Sequence[Row]:
        return await self._pool.query(text, values)

    async def urgent(self, text: str, values: Values) -> Sequence[Row]:
        failure: Optional[_NotOpenedError] = None
        if time.monotonic() >= self._open_again_at:
            try:
                return await self._own.urgent(text, values)
            except _NotOpenedError as error:
                failure = error
            self._open_again_at = time.monotonic() + _OPEN_AGAIN_SECONDS
        rows = await self._pool.query(text, values)
        # Only now: during an outage, the pool cannot open a connection either.
        if failure is not None and not self._warned:
            self._warned = True
            where = "" if self.place is None else f" of {self.place}"
            log.warning(
                "leases are renewed and released on the connections of the %s%s, and wait for those: a connection "
                "beside it could not be opened: %s",
                self._what,
                where,
                failure,
            )
        return rows

    async def dedicate(self, *, prepares: bool = False) -> DedicatedConnection:
        return await self._pool.dedicate(prepares=prepares)

    async def close(self) -> None:
        await self._own.close()
        await self._pool.close()

    async def _open(self, *, prepares: bool = False) -> DedicatedConnection:
        try:
            return await self._pool.dedicate(prepares=prepares)
        except Exception as error:
            message = message_of(error)
        # Outside the `except` block, so that the client's own error, which may show a password, is not attached.
        raise _NotOpenedError(message)


class _NotOpenedError(Exception):
    """Nothing was sent."""
