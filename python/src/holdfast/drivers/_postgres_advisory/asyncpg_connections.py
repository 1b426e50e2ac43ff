"""Connections of asyncpg: new ones beside a pool or from a URL, or the one connection of the caller."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Callable, Mapping, Optional, Sequence

from . import deadlines
from .connections import (
    BUSY_POLL_SECONDS,
    Connection,
    Events,
    Row,
    busy,
    no_answer,
    rows_of,
)


class AsyncpgConnection:
    def __init__(self, connection: Any, events: Events, *, is_callers: bool) -> None:
        self._connection = connection
        self._events = events
        self._is_callers = is_callers
        self._ended = False
        self._in_flight = False
        self._turn = asyncio.Lock()
        connection.add_termination_listener(self._on_terminated)

    @property
    def is_callers(self) -> bool:
        return self._is_callers

    @property
    def server_pid(self) -> Optional[str]:
        pid = self._connection.get_server_pid()
        return str(pid) if pid else None

    @property
    def is_in_transaction(self) -> bool:
        return self._is_callers and bool(self._connection.is_in_transaction())

    async def query(self, text: str, values: Sequence[str] = (), *, waits: bool = False) -> Sequence[Row]:
        # A timeout of the caller's own, set on its connection, does not count here.
        seconds = None if waits else deadlines.QUERY_SECONDS
        return rows_of(await self._send(lambda: self._connection.fetch(text, *values, timeout=seconds)))

    async def script(self, text: str) -> None:
        await self._send(lambda: self._connection.execute(text, timeout=deadlines.QUERY_SECONDS))

    async def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._connection.remove_termination_listener(self._on_terminated)
        if self._is_callers:
            undo = self._events.undo()
            if undo != "" and not self._connection.is_closed():
                await self.script(undo)
        elif self._in_flight:
            # There is no way to close it in order while a statement waits for its answer.
            self._connection.terminate()
        else:
            try:
                await self._connection.close(timeout=deadlines.END_SECONDS)
            except asyncio.TimeoutError:
                self._connection.terminate()

    def _on_terminated(self, _connection: object) -> None:
        if not self._ended:
            self._ended = True
            self._events.on_end(ConnectionResetError("the server closed the connection"))

    async def _send(self, call: Callable[[], Any]) -> Any:
        async with self._turn:
            loop = asyncio.get_running_loop()
            until = loop.time() + deadlines.QUERY_SECONDS
            while True:
                try:
                    return await self._once(call)
                except Exception as error:
                    if not (self._is_callers and "another operation is in progress" in str(error)):
                        raise
                # Nothing was sent: the caller's code uses the connection.
                if loop.time() > until:
                    raise busy()
                await asyncio.sleep(BUSY_POLL_SECONDS)

    async def _once(self, call: Callable[[], Any]) -> Any:
        self._in_flight = True
        try:
            return await call()
        except asyncio.TimeoutError:
            pass
        finally:
            self._in_flight = False
        # An answer that comes later would be taken for that of the next statement.
        self._connection.terminate()
        raise no_answer()


class AsyncpgConnections:
    """Opens connections beside the caller's pool: a pinned one would be missing in the pool from then on."""

    def __init__(self, connect: Callable[..., Any], arguments: Mapping[str, Any], place: Optional[str]) -> None:
        self._connect = connect
        self._arguments = arguments
        self.place = place
        self.is_callers = False

    async def dedicate(self, events: Events) -> Connection:
        # Texts differ nearly every time, so a cache would only cost. The statement that waits must have no timeout.
        own: Mapping[str, Any] = {"statement_cache_size": 0, "command_timeout": None}
        settings: Mapping[str, Any] = {"timeout": deadlines.CONNECT_SECONDS, **self._arguments, **own}
        connection = await self._connect(**settings)
        detect_vanished_server(connection)
        return AsyncpgConnection(connection, events, is_callers=False)

    async def close(self) -> None:
        pass


class AsyncpgCallersConnection:
    """Everything goes through the caller's one connection."""

    def __init__(self, connection: Any, place: Optional[str] = None) -> None:
        self._connection = connection
        self.place = place
        self.is_callers = True

    async def dedicate(self, events: Events) -> Connection:
        return AsyncpgConnection(self._connection, events, is_callers=True)

    async def close(self) -> None:
        pass


def detect_vanished_server(connection: Any) -> None:
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
