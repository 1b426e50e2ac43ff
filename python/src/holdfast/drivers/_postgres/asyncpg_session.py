"""Connections of asyncpg, the driver's own and the caller's."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, Optional, Sequence
from weakref import WeakKeyDictionary

from .connections import CLOSE_SECONDS, QUERY_SECONDS, SCRIPT_SECONDS
from .connections import OnEnd, OnNotification, Row, Values


class AsyncpgSession:
    """A connection of asyncpg. `give_back` is given for one that belongs to the caller's pool."""

    is_callers = False

    def __init__(self, connection: Any, give_back: Optional[Callable[[], Awaitable[None]]] = None) -> None:
        self._connection = connection
        self._give_back = give_back
        # asyncpg refuses a statement on a busy connection, and a ping may meet another statement.
        self._turn = asyncio.Lock()
        self._on_termination: Optional[Any] = None

    async def fetch(
        self, text: str, values: Values = (), timeout_seconds: Optional[float] = QUERY_SECONDS
    ) -> Sequence[Row]:
        async with self._turn:
            rows: Sequence[Row] = await self._connection.fetch(text, *values, timeout=timeout_seconds)
            return rows

    async def script(self, text: str) -> None:
        async with self._turn:
            await self._connection.execute(text, timeout=SCRIPT_SECONDS)

    async def listen(self, channels: Sequence[str], on_notification: OnNotification) -> None:
        def receive(_connection: Any, _pid: int, channel: str, payload: str) -> None:
            on_notification(channel, payload)

        async with self._turn:
            for channel in channels:
                await self._connection.add_listener(channel, receive)
                self._remember(channel, receive)

    def _remember(self, channel: str, receive: Any) -> None:
        """The connection ends with its listeners."""

    def watch(self, on_end: OnEnd) -> None:
        def terminated(_connection: Any) -> None:
            on_end(ConnectionError("the connection has ended"))

        self._on_termination = terminated
        self._connection.add_termination_listener(terminated)

    @property
    def server_pid(self) -> Optional[int]:
        pid: Optional[int] = self._connection.get_server_pid()
        return pid

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.is_in_transaction())

    @property
    def is_open(self) -> bool:
        return not self._connection.is_closed()

    def terminate(self) -> None:
        self._forget_watcher()
        if not self._connection.is_closed():
            self._connection.terminate()

    async def close(self) -> None:
        self._forget_watcher()
        if self._give_back is not None:
            # It has listeners and an unknown past: the pool opens another in its place.
            self._connection.terminate()
            await self._give_back()
        elif not self._connection.is_closed():
            try:
                await self._connection.close(timeout=CLOSE_SECONDS)
            except Exception:
                # A connection that breaks while it is closed is closed.
                self._connection.terminate()

    def _forget_watcher(self) -> None:
        watcher, self._on_termination = self._on_termination, None
        if watcher is not None:
            self._connection.remove_termination_listener(watcher)


class CallersSession(AsyncpgSession):
    """The caller's one connection. It stays open, so exactly what was done on it is undone."""

    is_callers = True

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._turn = turn_on(connection)
        self._listeners: list[tuple[str, Any]] = []

    def _remember(self, channel: str, receive: Any) -> None:
        self._listeners.append((channel, receive))

    def terminate(self) -> None:
        self._forget_watcher()

    async def close(self) -> None:
        self._forget_watcher()
        listeners, self._listeners = self._listeners, []
        async with self._turn:
            for channel, listener in listeners:
                if not self._connection.is_closed():
                    await self._connection.remove_listener(channel, listener)


_turns: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()


def turn_on(connection: Any) -> asyncio.Lock:
    """Each connection of a caller has one queue, however many drivers use it."""
    connection = unwrapped(connection)
    lock = _turns.get(connection)
    if lock is None:
        lock = _turns[connection] = asyncio.Lock()
    return lock


def unwrapped(connection: Any) -> Any:
    """A connection of a pool is wrapped anew each time it is lent."""
    return getattr(connection, "_con", None) or connection
