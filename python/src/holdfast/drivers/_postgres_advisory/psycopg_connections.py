"""Connections of psycopg: new ones from a URL or with the settings of a pool, or the caller's one, async or sync."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, Awaitable, Callable, Mapping, Optional, Sequence

from .._postgres.placeholders import arranged, with_percent
from .._postgres.psycopg_session import plain_cursor
from .._shared.worker_threads import WorkerThreads
from . import deadlines
from .connections import (
    Background,
    Connection,
    Events,
    NotSentError,
    Row,
    ignore_outcome,
    no_answer,
    rows_of,
    seconds_for,
    until_free,
)

_IN_TRANSACTION = (2, 3)
"""`psycopg.pq.TransactionStatus.INTRANS` and `INERROR`."""
_LOOK_AGAIN_SECONDS = 0.02


class PsycopgConnection:
    """A connection of psycopg. One that is synchronous runs its statements in a thread of its own."""

    def __init__(self, connection: Any, events: Events, *, is_callers: bool, is_sync: bool) -> None:
        self._connection = connection
        self._events = events
        self._is_callers = is_callers
        self._threads = WorkerThreads("holdfast-psycopg", 1) if is_sync else None
        self._ended = False
        self._in_flight = False
        self._turn = asyncio.Lock()
        self._background = Background()
        self._loop = asyncio.get_running_loop()
        # The client registers its own descriptor with the event loop for each statement. So this is another one, for
        # the same socket.
        self._socket: Optional[socket.socket] = socket.socket(fileno=os.dup(connection.fileno()))
        self._watch()

    @property
    def is_callers(self) -> bool:
        return self._is_callers

    @property
    def server_pid(self) -> Optional[str]:
        pid = self._connection.pgconn.backend_pid
        return str(pid) if pid else None

    @property
    def is_in_transaction(self) -> bool:
        # While a statement is in flight, also one of ours, the status says only that. Ours waits for it.
        return self._is_callers and int(self._connection.pgconn.transaction_status) in _IN_TRANSACTION

    async def query(self, text: str, values: Sequence[str] = (), *, waits: bool = False) -> Sequence[Row]:
        if not values:
            return rows_of(await self._send(text, None, seconds_for(waits)))
        query, order = with_percent(text)
        return rows_of(await self._send(query, arranged(order, values), seconds_for(waits)))

    async def script(self, text: str) -> None:
        await self._send(text, None, deadlines.QUERY_SECONDS)

    async def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            if not self._is_callers:
                await self._close()
            elif not self._connection.closed:
                undo = self._events.undo()
                if undo != "":
                    await self.script(undo)
        finally:
            self._unwatch()
            if self._threads is not None:
                self._threads.close()

    async def _close(self) -> None:
        if self._in_flight:
            # Otherwise the statement that waits would never notice.
            self._shut_down()
        async with self._turn:
            await self._connection.close()

    async def _send(
        self, query: str, parameters: Optional[Sequence[str]], timeout_seconds: Optional[float]
    ) -> Sequence[Any]:
        async with self._turn:
            if self._is_callers:
                if not self._connection.autocommit:
                    raise NotSentError(_NOT_AUTOCOMMIT, retryable=False)
                await until_free(self._connection.lock.locked)
            task = asyncio.ensure_future(self._run(lambda: self._execute(query, parameters)))
            task.add_done_callback(ignore_outcome)
            self._in_flight = True
            self._unwatch_socket()
            try:
                done, _ = await asyncio.wait({task}, timeout=timeout_seconds)
            finally:
                self._in_flight = False
            if not done:
                # An answer that comes later would be taken for that of the next statement.
                self._shut_down()
                await asyncio.wait({task}, timeout=deadlines.END_SECONDS)
                self._on_closed(no_answer())
                raise no_answer()
            self._watch()
            try:
                rows: Sequence[Any] = task.result()
                return rows
            except Exception as error:
                if self._connection.closed:
                    self._on_closed(error)
                raise

    async def _run(self, work: Callable[[], Any]) -> Any:
        if self._threads is not None:
            return await self._threads.run(work, timeout_seconds=None)
        return await work()

    def _execute(self, query: str, parameters: Optional[Sequence[str]]) -> Any:
        from psycopg import AsyncCursor, Cursor

        cursor = plain_cursor(self._connection, AsyncCursor if self._threads is None else Cursor)

        async def execute() -> Any:
            await cursor.execute(query, parameters, prepare=False)
            return [] if cursor.description is None else await cursor.fetchall()

        if self._threads is None:
            return execute()
        cursor.execute(query, parameters, prepare=False)
        return [] if cursor.description is None else cursor.fetchall()

    def _watch(self) -> None:
        """Notices the end of the connection while it is idle: psycopg itself looks only when it sends something."""
        if self._socket is not None and not self._ended and not self._in_flight:
            self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def _unwatch_socket(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())

    def _unwatch(self) -> None:
        if self._socket is not None:
            self._unwatch_socket()
            self._socket.close()
            self._socket = None

    def _on_readable(self) -> None:
        """The server has sent something unasked: a notice, a notification, or that it ends the connection."""
        self._unwatch_socket()
        if self._in_flight or self._connection.lock.locked():
            # A statement of the caller is reading it.
            self._loop.call_later(_LOOK_AGAIN_SECONDS, self._watch)
        elif self._threads is None:
            self._consumed(_error_of(self._connection.pgconn.consume_input))
        else:
            self._background.start(self._consume_in_thread())

    async def _consume_in_thread(self) -> None:
        def consume() -> None:
            with self._connection.lock:
                self._connection.pgconn.consume_input()

        self._consumed(await self._run(lambda: _error_of(consume)))

    def _consumed(self, error: Optional[Exception]) -> None:
        if error is not None:
            self._on_closed(error)
        else:
            self._watch()

    def _on_closed(self, cause: BaseException) -> None:
        if self._ended:
            return
        self._ended = True
        self._unwatch()
        if self._threads is not None:
            self._threads.close()
        if not self._is_callers:
            self._background.start(self._connection.close())
        self._events.on_end(cause)

    def _shut_down(self) -> None:
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # It has ended already.


class PsycopgConnections:
    def __init__(
        self, connect: Callable[..., Awaitable[Any]], arguments: Mapping[str, Any], place: Optional[str]
    ) -> None:
        self._connect = connect
        self._arguments = arguments
        self.place = place
        self.is_callers = False

    async def dedicate(self, events: Events) -> Connection:
        keep_alive = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
        wanted: Mapping[str, Any] = {"connect_timeout": int(deadlines.CONNECT_SECONDS), **keep_alive, **self._arguments}
        own: Mapping[str, Any] = {"autocommit": True, "prepare_threshold": None}
        connection = await self._connect(**{**wanted, **own})
        return PsycopgConnection(connection, events, is_callers=False, is_sync=False)

    async def close(self) -> None:
        pass


class PsycopgCallersConnection:
    """Everything goes through the caller's one connection."""

    def __init__(self, connection: Any, *, is_sync: bool) -> None:
        self._connection = connection
        self._is_sync = is_sync
        self.is_callers = True
        info = connection.info
        self.place: Optional[str] = f"postgres://{info.host}:{info.port}/{info.dbname}"

    async def dedicate(self, events: Events) -> Connection:
        return PsycopgConnection(self._connection, events, is_callers=True, is_sync=self._is_sync)

    async def close(self) -> None:
        pass


def _error_of(work: Callable[[], Any]) -> Optional[Exception]:
    try:
        work()
        return None
    except Exception as error:
        return error


_NOT_AUTOCOMMIT = (
    "the connection that was passed to the postgres-advisory driver is not in autocommit mode: each statement would "
    "begin a transaction, which stays open. Connect with autocommit=True, or pass a URL or a pool"
)
