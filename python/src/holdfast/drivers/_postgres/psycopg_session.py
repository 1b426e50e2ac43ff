"""Connections of psycopg that the driver has opened, and how a statement is run on any connection of psycopg."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from typing import Any, Awaitable, Callable, Mapping, Optional, Sequence

from ...core.tasks import start_call
from .connections import CONNECT_SECONDS, QUERY_SECONDS, SCRIPT_SECONDS
from .connections import OnEnd, OnNotification, Row, Session, Values
from .placeholders import arranged, with_percent
from .statements import quote_identifier

_IDLE = 0
"""`pq.TransactionStatus.IDLE`"""
_UNKNOWN = 4
_MAX_LOOKS = 5


class PsycopgSession:
    """A connection of ours. psycopg reads from the socket only during a statement. So between statements the event loop
    watches the socket for notifications and for its end."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._on_notification: Optional[OnNotification] = None
        self._on_end: Optional[OnEnd] = None
        self._turn = asyncio.Lock()
        self._descriptor: int = connection.fileno()
        self._watches = False

    async def fetch(
        self, text: str, values: Values = (), timeout_seconds: Optional[float] = QUERY_SECONDS
    ) -> Sequence[Row]:
        if not values:
            # Without values psycopg takes the text as it is: a percent sign in the schema's name must not be doubled.
            return await self._run(text, None, timeout_seconds)
        sql, order = with_percent(text)
        return await self._run(sql, arranged(order, values), timeout_seconds)

    async def script(self, text: str) -> None:
        await self._run(text, None, SCRIPT_SECONDS)

    async def listen(self, channels: Sequence[str], on_notification: OnNotification) -> None:
        self._on_notification = on_notification
        self._connection.add_notify_handler(lambda each: on_notification(each.channel, each.payload))
        await self.script("; ".join(f"LISTEN {quote_identifier(channel)}" for channel in channels))

    def watch(self, on_end: OnEnd) -> None:
        self._on_end = on_end
        if not self._turn.locked():
            self._start_watching()

    @property
    def server_pid(self) -> Optional[int]:
        pid: int = self._connection.info.backend_pid
        return pid

    @property
    def in_transaction(self) -> bool:
        return int(self._connection.info.transaction_status) not in (_IDLE, _UNKNOWN)

    @property
    def is_open(self) -> bool:
        """Looks at the socket: psycopg does not notice by itself that the server has ended an idle connection."""
        if self._connection.closed or self._turn.locked():
            return not self._connection.closed
        try:
            # The server's last words come before the end of the stream, so one look is not enough.
            for _ in range(_MAX_LOOKS):
                if not _is_readable(self._descriptor):
                    return True
                self._connection.pgconn.consume_input()
        except Exception:
            pass
        return False

    def terminate(self) -> None:
        """A statement in flight fails, because its socket is shut down under it."""
        self._forget_watcher()
        if self._turn.locked():
            shut_down(self._connection)
        else:
            self._connection.pgconn.finish()

    async def close(self) -> None:
        self._forget_watcher()
        if self._turn.locked():
            shut_down(self._connection)
        else:
            await self._connection.close()

    async def _run(self, sql: str, values: Optional[list[Optional[str]]], seconds: Optional[float]) -> Sequence[Row]:
        async with self._turn:
            self._stop_watching()
            # Several statements at once cannot be prepared.
            prepare = None if values else False
            work = start_call(execute(self._connection, sql, values, prepare))
            try:
                # Never cancelled: psycopg would leave the connection in the middle of an answer.
                done, _ = await asyncio.wait({work}, timeout=seconds)
            except asyncio.CancelledError:
                shut_down(self._connection)
                work.add_done_callback(ignore_outcome)
                raise
            if not done:
                shut_down(self._connection)
                await asyncio.wait({work}, timeout=1)
                work.add_done_callback(ignore_outcome)
                raise asyncio.TimeoutError("PostgreSQL did not answer in time")
            try:
                return work.result()
            finally:
                self._start_watching()

    def _start_watching(self) -> None:
        if self._on_end is None and self._on_notification is None:
            return
        if self._connection.closed:
            self._ended(ConnectionError("the connection has ended"))
            return
        self._watches = True
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        # What came with the last answer is in a buffer already, and does not make the socket readable.
        self._deliver()

    def _stop_watching(self) -> None:
        if self._watches:
            self._watches = False
            asyncio.get_running_loop().remove_reader(self._descriptor)

    def _read(self) -> None:
        try:
            self._connection.pgconn.consume_input()
            self._deliver()
        except Exception as error:
            self._stop_watching()
            self._ended(error)

    def _deliver(self) -> None:
        while True:
            found = self._connection.pgconn.notifies()
            if found is None:
                return
            if self._on_notification is not None:
                self._on_notification(found.relname.decode("utf-8"), found.extra.decode("utf-8"))

    def _ended(self, cause: BaseException) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(cause)

    def _forget_watcher(self) -> None:
        self._on_end = self._on_notification = None
        self._stop_watching()


async def execute(
    connection: Any, sql: str, values: Optional[list[Optional[str]]], prepare: Optional[bool] = False
) -> Sequence[Row]:
    """`prepare`: None: as the connection is set. Not on a connection of the caller: the statements would stay there,
    and a pooler in between would mix them up with those of other clients."""
    cursor = plain_cursor(connection, psycopg_module().AsyncCursor)
    await cursor.execute(sql, values, prepare=prepare)
    if cursor.description is None:
        return []
    rows: Sequence[Row] = await cursor.fetchall()
    return rows


def execute_in_thread(connection: Any, sql: str, values: list[Optional[str]]) -> Sequence[Row]:
    cursor = plain_cursor(connection, psycopg_module().Cursor)
    cursor.execute(sql, values, prepare=False)
    rows: Sequence[Row] = cursor.fetchall()
    return rows


def shut_down(connection: Any) -> None:
    """Ends the socket, so that a statement in flight fails at once, in this thread or in another. psycopg's own `close`
    does not wake it."""
    try:
        copy = socket.socket(fileno=os.dup(connection.fileno()))
    except Exception:
        # It has no socket any more.
        return
    try:
        copy.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    finally:
        copy.close()


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return len(poll.poll(0)) > 0


def ignore_outcome(work: "asyncio.Future[Any]") -> None:
    if not work.cancelled():
        work.exception()


def opener(settings: Mapping[str, Any], prepares: Optional[bool] = None) -> Callable[[], Awaitable[Session]]:
    """Opens connections with these settings. `prepares`: None: unless a pooler is in between."""
    settings = {"connect_timeout": round(CONNECT_SECONDS), **settings}

    async def open_session() -> Session:
        nonlocal prepares
        connection = await psycopg_module().AsyncConnection.connect(
            **{**settings, "autocommit": True, "prepare_threshold": None}
        )
        session = PsycopgSession(connection)
        if prepares is None:
            try:
                # A pooler sends a process id of its own.
                rows = await session.fetch("SELECT pg_backend_pid() AS pid")
                prepares = rows[0]["pid"] == session.server_pid
            except BaseException:
                session.terminate()
                raise
        # At once: each of the few statements is sent many times.
        connection.prepare_threshold = 0 if prepares else None
        return session

    return open_session


def plain_cursor(connection: Any, kind: Any) -> Any:
    """A cursor whose rows are dictionaries of texts and booleans, even if the application has other rows, cursors, or
    values on its connection."""
    from psycopg.rows import dict_row
    from psycopg.types.bool import BoolLoader
    from psycopg.types.string import TextLoader

    cursor = kind(connection, row_factory=dict_row)
    cursor.adapters.register_loader("bool", BoolLoader)
    cursor.adapters.register_loader("text", TextLoader)
    return cursor


def psycopg_module() -> Any:
    import psycopg

    return psycopg
