"""Connections of asyncpg that nothing else uses."""

from __future__ import annotations

import asyncio
from typing import Any, Optional, Sequence

from .connections import CLOSE_SECONDS, QUERY_SECONDS, SCRIPT_SECONDS
from .connections import OnEnd, OnNotification, Row, Values


class AsyncpgSession:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
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
        if not self._connection.is_closed():
            try:
                await self._connection.close(timeout=CLOSE_SECONDS)
            except Exception:
                # A connection that breaks while it is closed is closed.
                self._connection.terminate()

    def _forget_watcher(self) -> None:
        watcher, self._on_termination = self._on_termination, None
        if watcher is not None:
            self._connection.remove_termination_listener(watcher)


def unwrapped(connection: Any) -> Any:
    """A connection of a pool is wrapped anew each time it is lent."""
    return getattr(connection, "_con", None) or connection
