"""A small pool of connections that the driver has opened, so that locks never starve the application's own pool."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Awaitable, Callable, Deque, Optional, Sequence

from ...errors import ClosedError, StoreError
from .connections import QUERY_SECONDS, Row, Session, Values
from .errors import sql_state

POOL_SIZE = 4
"""The connections for calls. One more listens for notifications."""
_IDLE_SESSION_TIMEOUT = "57P05"
_MAX_TRIES = 20


class OwnPool:
    def __init__(self, open_session: Callable[[], Awaitable[Session]], place: Optional[str], size: int = POOL_SIZE):
        self.place = place
        self.is_pool = True
        self._open = open_session
        self._size = size
        self._idle: list[Session] = []
        self._waiting: Deque[asyncio.Future[None]] = deque()
        self._used = 0
        self._pid = os.getpid()
        self._closed = False

    async def query(self, text: str, values: Values) -> Sequence[Row]:
        """A call may get a connection that the server has just ended because it was idle. Nothing was done then, so the
        call is sent again. After any other failure the outcome is unknown, and only the core may repeat the call."""
        for _ in range(_MAX_TRIES - 1):
            try:
                return await self._query_once(text, values)
            except Exception as error:
                if sql_state(error) != _IDLE_SESSION_TIMEOUT:
                    raise
        return await self._query_once(text, values)

    call = query
    """Only this pool uses its connections, so none of them is inside a transaction."""

    async def dedicate(self) -> Session:
        self._check_open()
        return await self._open()

    async def close(self) -> None:
        self._closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        idle, self._idle = self._idle, []
        if os.getpid() == self._pid:
            await asyncio.gather(*(session.close() for session in idle), return_exceptions=True)

    async def _query_once(self, text: str, values: Values) -> Sequence[Row]:
        session = await self._take()
        usable = False
        try:
            rows = await session.fetch(text, values, QUERY_SECONDS)
            usable = True
            return rows
        except Exception as error:
            # After an error of the server the connection is as good as before. After all others its state is unknown.
            usable = sql_state(error) is not None and session.is_open and not session.in_transaction
            raise
        finally:
            self._give_back(session, usable)

    async def _take(self) -> Session:
        self._check_open()
        if self._used >= self._size:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            done, _ = await asyncio.wait({turn}, timeout=QUERY_SECONDS)
            if not done:
                self._waiting.remove(turn)
                raise StoreError(f"all {self._size} connections of the postgres driver have been busy for too long")
            self._check_open()
        self._used += 1
        try:
            while self._idle:
                session = self._idle.pop()
                if session.is_open:
                    return session
                session.terminate()
            return await self._open()
        except BaseException:
            self._leave()
            raise

    def _give_back(self, session: Session, usable: bool) -> None:
        if usable and not self._closed and os.getpid() == self._pid:
            self._idle.append(session)
        else:
            session.terminate()
        self._leave()

    def _leave(self) -> None:
        self._used -= 1
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the postgres driver is closed")
        if os.getpid() != self._pid:
            # Both processes would write to the same sockets. Closing them here would end the parent's sessions.
            raise StoreError("the postgres driver was opened before a fork: open it in each process", retryable=False)
