"""Connections of asyncpg that nothing else of this package uses: new ones, or the one that a caller has passed."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Awaitable, Callable, Optional, Sequence

from . import deadlines
from .connections import OnEnd, OnNotification, Row, Values, wait_for_caller


class AsyncpgConnection:
    def __init__(self, connection: Any, *, is_callers: bool = False) -> None:
        self.is_callers = is_callers
        self._connection = connection
        # asyncpg refuses a statement on a busy connection, and a ping may meet another statement.
        self._turn = asyncio.Lock()
        self._on_termination: Optional[Any] = None
        if not is_callers:
            _notice_vanished_server(connection)

    async def fetch(self, text: str, values: Values = (), *, waits: bool = False) -> Sequence[Row]:
        # A timeout of the caller's own, set on its connection, does not count here.
        seconds = None if waits else deadlines.QUERY_SECONDS
        rows: Sequence[Row] = await self._in_turn(self._connection.fetch, text, *values, timeout=seconds)
        return rows

    async def script(self, text: str) -> None:
        await self._in_turn(self._connection.execute, text, timeout=deadlines.SCRIPT_SECONDS)

    async def listen(self, channels: Sequence[str], on_notification: OnNotification) -> None:
        def receive(_connection: Any, _pid: int, channel: str, payload: str) -> None:
            on_notification(channel, payload)

        async with self._turn:
            for channel in channels:
                await self._connection.add_listener(channel, receive)

    def watch(self, on_end: OnEnd) -> None:
        def terminated(_connection: Any) -> None:
            on_end(ConnectionError("the server closed the connection"))

        self._forget_watcher()
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
        if self.is_callers or self._connection.is_closed():
            return
        try:
            if self._turn.locked():
                raise ConnectionError("a statement waits for its answer, so it cannot be closed in order")
            await self._connection.close(timeout=deadlines.CLOSE_SECONDS)
        except Exception:
            # A connection that breaks while it is closed is closed.
            self._connection.terminate()

    async def _in_turn(self, send: Callable[..., Awaitable[Any]], *values: Any, timeout: Optional[float]) -> Any:
        async with self._turn:
            until = asyncio.get_running_loop().time() + deadlines.QUERY_SECONDS
            while True:
                try:
                    return await send(*values, timeout=timeout)
                except asyncio.TimeoutError:
                    # An answer that comes later would be taken for that of the next statement.
                    self._connection.terminate()
                    raise
                except Exception as error:
                    if not (self.is_callers and "another operation is in progress" in str(error)):
                        raise
                # Nothing was sent: the caller's code uses the connection.
                await wait_for_caller(until)

    def _forget_watcher(self) -> None:
        watcher, self._on_termination = self._on_termination, None
        if watcher is not None:
            self._connection.remove_termination_listener(watcher)


def unwrapped(connection: Any) -> Any:
    """A connection of a pool is wrapped anew each time it is lent."""
    return getattr(connection, "_con", None) or connection


def _notice_vanished_server(connection: Any) -> None:
    """A connection that waits in the server's queue sends nothing. Only keep-alives notice that the server is gone."""
    transport = getattr(connection, "_transport", None)
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is None or sock.family == getattr(socket, "AF_UNIX", None):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
