"""A small pool of connections that the driver has opened, so that locks never starve the application's own pool."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Awaitable, Deque, Optional, Protocol, Sequence

from ...errors import ClosedError, StoreError
from . import deadlines
from .connections import DedicatedConnection, Row, Values
from .errors import READ_ONLY, sql_state

POOL_SIZE = 4
"""The connections for calls. One more listens for notifications."""
_IDLE_SESSION_TIMEOUT = "57P05"
_MAX_TRIES = 20


class Open(Protocol):
    """Opens a connection. `prepares`: see `Opener.dedicate`."""

    def __call__(self, *, prepares: bool = False) -> Awaitable[DedicatedConnection]: ...


class OwnPool:
    def __init__(self, open_connection: Open, place: Optional[str], size: int = POOL_SIZE):
        self.place = place
        self.is_pool = True
        self._open = open_connection
        self._size = size
        self._idle: list[DedicatedConnection] = []
        self._waiting: Deque[asyncio.Future[None]] = deque()
        self._urgent: Deque[asyncio.Future[None]] = deque()
        self._used = 0
        self._pid = os.getpid()
        self._closed = False

    async def query(self, text: str, values: Values) -> Sequence[Row]:
        """A call may get a connection that the server has just ended because it was idle. Nothing was done then, so the
        call is sent again. After any other failure the outcome is unknown, and only the core may repeat the call."""
        return await self._query(text, values, False)

    async def urgent(self, text: str, values: Values) -> Sequence[Row]:
        """Keeps or ends a lease. One connection is left to this: a claim can wait half a second for a row that an open
        transaction has locked, and many of them would use up all connections for longer than a lease lasts."""
        return await self._query(text, values, True)

    async def _query(self, text: str, values: Values, is_urgent: bool) -> Sequence[Row]:
        for _ in range(_MAX_TRIES - 1):
            try:
                return await self._query_once(text, values, is_urgent)
            except Exception as error:
                if sql_state(error) != _IDLE_SESSION_TIMEOUT:
                    raise
        return await self._query_once(text, values, is_urgent)

    async def dedicate(self, *, prepares: bool = False) -> DedicatedConnection:
        self._check_open()
        return await self._open(prepares=prepares)

    async def close(self) -> None:
        self._closed = True
        waiting = [*self._urgent, *self._waiting]
        self._urgent.clear()
        self._waiting.clear()
        for turn in waiting:
            turn.set_result(None)
        idle, self._idle = self._idle, []
        if os.getpid() == self._pid:
            await asyncio.gather(*(connection.close() for connection in idle), return_exceptions=True)

    async def _query_once(self, text: str, values: Values, is_urgent: bool) -> Sequence[Row]:
        connection = await self._take(is_urgent)
        usable = False
        try:
            rows = await connection.fetch(text, values)
            usable = True
            return rows
        except Exception as error:
            # After an error of the server the connection is as good as before. After all others its state is unknown.
            # A server that has become read-only is not the primary any more: a new connection may reach the new one.
            state = sql_state(error)
            usable = state not in (None, READ_ONLY) and connection.is_open and not connection.in_transaction
            raise
        finally:
            self._give_back(connection, usable)

    async def _take(self, is_urgent: bool) -> DedicatedConnection:
        self._check_open()
        await self._enter(is_urgent)
        try:
            self._check_open()
            while self._idle:
                connection = self._idle.pop()
                if connection.is_open:
                    return connection
                connection.terminate()
            return await self._open(prepares=True)
        except BaseException:
            self._leave()
            raise

    async def _enter(self, is_urgent: bool) -> None:
        if self._used < (self._size if is_urgent else self._size - 1):
            self._used += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._urgent if is_urgent else self._waiting
        waiting.append(turn)
        try:
            await asyncio.wait({turn}, timeout=deadlines.QUERY_SECONDS)
        except BaseException:
            # Its turn may have come at the moment of the cancellation.
            if turn.done():
                self._leave()
            raise
        finally:
            if not turn.done():
                waiting.remove(turn)
        if not turn.done():
            raise StoreError(f"all {self._size} connections of the postgres driver have been busy for too long")

    def _give_back(self, connection: DedicatedConnection, usable: bool) -> None:
        if usable and not self._closed and os.getpid() == self._pid:
            self._idle.append(connection)
        else:
            connection.terminate()
        self._leave()

    def _leave(self) -> None:
        """The next one that waits takes the place over. A call that comes meanwhile must not count it as free."""
        if self._urgent:
            self._urgent.popleft().set_result(None)
        elif self._waiting and self._used < self._size:
            self._waiting.popleft().set_result(None)
        else:
            self._used -= 1

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the postgres driver is closed")
        if os.getpid() != self._pid:
            # Both processes would write to the same sockets. Closing them here would end the parent's sessions.
            raise StoreError("the postgres driver was opened before a fork: open it in each process", retryable=False)
