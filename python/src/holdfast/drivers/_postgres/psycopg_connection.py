"""Connections of psycopg that nothing else of this package uses, and how a statement is run on any of them."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from typing import Any, Mapping, Optional, Sequence

from ...core.tasks import ignore_outcome, start_call, start_task
from .._shared.worker_threads import WorkerThreads
from . import deadlines
from .connections import DedicatedConnection, NotSentError, OnEnd, OnNotification, Row, Values, wait_for_caller
from .own_pool import Open
from .placeholders import arranged, with_percent
from .statements import quote_identifier

_IN_TRANSACTION = (2, 3)
"""`pq.TransactionStatus.INTRANS` and `INERROR`. While a statement is in flight, the status says only that."""
_MAX_LOOKS = 5
_LOOK_AGAIN_SECONDS = 0.02
_ENDING_SECONDS = 1.0
"""How long a statement may take to notice that its socket was shut down."""
_NOT_AUTOCOMMIT = (
    "the connection that was passed to the driver is not in autocommit mode: each statement would begin a transaction, "
    "which stays open. Connect with autocommit=True, or pass a URL or a pool"
)


class PsycopgConnection:
    """psycopg reads from the socket only during a statement. So between statements the event loop watches the socket
    for notifications and for its end."""

    def __init__(
        self, connection: Any, *, is_callers: bool = False, threads: Optional[WorkerThreads] = None
    ) -> None:
        """`threads`: one thread, for a synchronous connection. It is ended with this object."""
        self.is_callers = is_callers
        self._connection = connection
        self._threads = threads
        self._on_notification: Optional[OnNotification] = None
        self._on_end: Optional[OnEnd] = None
        self._turn = asyncio.Lock()
        # psycopg registers the descriptor with the event loop for each statement of the caller. So ours is another one.
        self._descriptor: int = os.dup(connection.fileno()) if is_callers else connection.fileno()
        self._watches = False
        self._reading: Optional[asyncio.Task[None]] = None

    async def fetch(self, text: str, values: Values = (), *, waits: bool = False) -> Sequence[Row]:
        seconds = None if waits else deadlines.QUERY_SECONDS
        if not values:
            # Without values psycopg takes the text as it is: a percent sign in the schema's name must not be doubled.
            return await self._run(text, None, seconds)
        sql, order = with_percent(text)
        return await self._run(sql, arranged(order, values), seconds)

    async def script(self, text: str) -> None:
        await self._run(text, None, deadlines.SCRIPT_SECONDS)

    async def listen(self, channels: Sequence[str], on_notification: OnNotification) -> None:
        self._on_notification = on_notification
        self._connection.add_notify_handler(lambda each: on_notification(each.channel, each.payload))
        await self.script("; ".join(f"LISTEN {quote_identifier(channel)}" for channel in channels))

    def watch(self, on_end: OnEnd) -> None:
        self._on_end = on_end
        self._start_watching()

    @property
    def server_pid(self) -> Optional[int]:
        pid: int = self._connection.info.backend_pid
        return pid

    @property
    def in_transaction(self) -> bool:
        return int(self._connection.info.transaction_status) in _IN_TRANSACTION

    @property
    def is_open(self) -> bool:
        """Looks at the socket: psycopg does not notice by itself that the server has ended an idle connection."""
        if self._connection.closed or self.is_callers or self._turn.locked():
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
        if self.is_callers:
            self._leave()
        elif self._turn.locked():
            shut_down(self._connection)
        else:
            await self._connection.close()

    def _leave(self) -> None:
        """Ends what was made for a connection of the caller."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._threads is not None:
            self._threads.close()

    async def _run(self, sql: str, values: Optional[list[Optional[str]]], seconds: Optional[float]) -> Sequence[Row]:
        async with self._turn:
            if self.is_callers:
                await self._wait_for_caller()
            self._stop_watching()
            # Several statements at once cannot be prepared.
            prepare = None if values and not self.is_callers else False
            work = start_call(self._execute(sql, values, prepare))
            try:
                # Never cancelled: psycopg would leave the connection in the middle of an answer.
                done, _ = await asyncio.wait({work}, timeout=seconds)
            except asyncio.CancelledError:
                work.add_done_callback(ignore_outcome)
                if not self.is_callers:
                    shut_down(self._connection)
                    await _ended(work)
                raise
            if not done:
                shut_down(self._connection)
                await asyncio.wait({work}, timeout=_ENDING_SECONDS)
                work.add_done_callback(ignore_outcome)
                raise asyncio.TimeoutError("PostgreSQL did not answer in time")
        try:
            return work.result()
        finally:
            self._start_watching()

    async def _wait_for_caller(self) -> None:
        if not self._connection.autocommit:
            raise NotSentError(_NOT_AUTOCOMMIT, retryable=False)
        until = asyncio.get_running_loop().time() + deadlines.QUERY_SECONDS
        while self._connection.lock.locked():
            await wait_for_caller(until)

    async def _execute(
        self, sql: str, values: Optional[list[Optional[str]]], prepare: Optional[bool]
    ) -> Sequence[Row]:
        if self._threads is None:
            return await execute(self._connection, sql, values, prepare)
        return await self._threads.run(
            lambda: execute_in_thread(self._connection, sql, values), timeout_seconds=None
        )

    def _start_watching(self) -> None:
        if self._watches or self._turn.locked() or (self._on_end is None and self._on_notification is None):
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
        """The server has sent something unasked: a notice, a notification, or that it ends the connection."""
        if self.is_callers and self._connection.lock.locked():
            # A statement of the caller reads it.
            self._stop_watching()
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_SECONDS, self._start_watching)
        elif self._threads is not None:
            self._stop_watching()
            self._reading = start_task(self._read_in_thread(self._threads))
        else:
            try:
                self._connection.pgconn.consume_input()
                self._deliver()
            except Exception as error:
                self._ended(error)

    async def _read_in_thread(self, threads: WorkerThreads) -> None:
        def read() -> None:
            with self._connection.lock:
                self._connection.pgconn.consume_input()

        try:
            await threads.run(read, timeout_seconds=None)
        except Exception as error:
            self._ended(error)
        else:
            self._start_watching()

    def _deliver(self) -> None:
        while self._on_notification is not None:
            found = self._connection.pgconn.notifies()
            if found is None:
                return
            self._on_notification(found.relname.decode("utf-8"), found.extra.decode("utf-8"))

    def _ended(self, cause: BaseException) -> None:
        self._stop_watching()
        if self.is_callers:
            self._leave()
        else:
            self._connection.pgconn.finish()
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(cause)

    def _forget_watcher(self) -> None:
        self._on_end = self._on_notification = None
        self._stop_watching()


async def _ended(work: asyncio.Future[Any]) -> None:
    """Psycopg watches the socket until its statement has ended. If the socket were closed before, the event loop would
    refuse every later connection whose socket has the same number. For a caller that was cancelled, and may be again.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + _ENDING_SECONDS
    while not work.done() and loop.time() < until:
        try:
            await asyncio.wait({work}, timeout=until - loop.time())
        except asyncio.CancelledError:
            pass


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


def execute_in_thread(connection: Any, sql: str, values: Optional[list[Optional[str]]]) -> Sequence[Row]:
    cursor = plain_cursor(connection, psycopg_module().Cursor)
    cursor.execute(sql, values, prepare=False)
    if cursor.description is None:
        return []
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


def opener(settings: Mapping[str, Any], is_direct: Optional[bool] = None) -> Open:
    """`is_direct`: whether statements may be prepared. None: unless a pooler is in between."""
    # A connection that waits in the server's queue sends nothing. Only keep-alives notice that the server is gone.
    keep_alive = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
    plain = {"autocommit": True, "prepare_threshold": None}
    settings = {"connect_timeout": round(deadlines.CONNECT_SECONDS), **keep_alive, **settings, **plain}

    async def open_connection(*, prepares: bool = False) -> DedicatedConnection:
        nonlocal is_direct
        connection = await psycopg_module().AsyncConnection.connect(**settings)
        made = PsycopgConnection(connection)
        if prepares and is_direct is None:
            try:
                # A pooler sends a process id of its own.
                rows = await made.fetch("SELECT pg_backend_pid() AS pid")
                is_direct = rows[0]["pid"] == made.server_pid
            except BaseException:
                made.terminate()
                raise
        # At once: each of the few statements is sent many times.
        connection.prepare_threshold = 0 if prepares and is_direct else None
        return made

    return open_connection


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
