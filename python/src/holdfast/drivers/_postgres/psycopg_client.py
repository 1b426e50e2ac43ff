"""Clients of the package psycopg (version 3), asyncio and synchronous."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from typing import Any, Mapping, Optional, Sequence

from ...errors import StoreError
from .._shared.worker_threads import WorkerThreads
from .connections import CONNECT_SECONDS, QUERY_SECONDS, SCRIPT_SECONDS
from .connections import OnEnd, OnNotification, Row, Session, Values
from .errors import IN_TRANSACTION
from .own_pool import OwnPool
from .placeholders import arranged, with_percent
from .statements import quote_identifier
from .url import PostgresTarget, postgres_place, psycopg_settings

_IDLE = 0
"""`pq.TransactionStatus.IDLE`"""
_UNKNOWN = 4
_MAX_LOOKS = 5

NOT_AUTOCOMMIT = (
    "a connection of psycopg with autocommit=True: without it, every statement begins a transaction, and a lock taken "
    "there would change only with its COMMIT. Or pass a pool"
)


class PsycopgSession:
    """A connection of ours. psycopg reads from the socket only during a statement. So between statements the event loop
    watches the socket for notifications and for its end."""

    is_callers = False

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
        sql, order = with_percent(text)
        return await self._run(sql, arranged(order, values) if values else None, timeout_seconds)

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
            work = asyncio.ensure_future(_execute(self._connection, sql, values, prepare))
            try:
                # Never cancelled: psycopg would leave the connection in the middle of an answer.
                done, _ = await asyncio.wait({work}, timeout=seconds)
            except asyncio.CancelledError:
                shut_down(self._connection)
                work.add_done_callback(_ignore)
                raise
            if not done:
                shut_down(self._connection)
                await asyncio.wait({work}, timeout=1)
                work.add_done_callback(_ignore)
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


async def _execute(
    connection: Any, sql: str, values: Optional[list[Optional[str]]], prepare: Optional[bool] = False
) -> Sequence[Row]:
    """`prepare`: None: as the connection is set. Not on a connection of the caller: the statements would stay there,
    and a pooler in between would mix them up with those of other clients."""
    cursor = connection.cursor(row_factory=_psycopg().rows.dict_row)
    await cursor.execute(sql, values, prepare=prepare)
    if cursor.description is None:
        return []
    rows: Sequence[Row] = await cursor.fetchall()
    return rows


def _execute_in_thread(connection: Any, sql: str, values: list[Optional[str]]) -> Sequence[Row]:
    cursor = connection.cursor(row_factory=_psycopg().rows.dict_row)
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


def _ignore(work: "asyncio.Future[Any]") -> None:
    if not work.cancelled():
        work.exception()


def open_psycopg(target: PostgresTarget) -> OwnPool:
    """A pool for a URL. Sends nothing before the first call."""
    settings = psycopg_settings(target)
    return OwnPool(_opener(settings, target.prepares), postgres_place(target))


def _opener(settings: Mapping[str, Any], prepares: Optional[bool] = None) -> Any:
    settings = {"connect_timeout": round(CONNECT_SECONDS), **settings}

    async def open_session() -> Session:
        nonlocal prepares
        connection = await _psycopg().AsyncConnection.connect(
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


class PsycopgConnection:
    """The caller's one connection, asyncio or synchronous. Notifications and migrations have connections of their own,
    with the same settings, so that nothing but the calls is done on the caller's."""

    is_pool = False

    def __init__(self, connection: Any, threads: Optional[WorkerThreads]) -> None:
        """`threads` for a synchronous connection."""
        self._connection = connection
        self._threads = threads
        self.place = _place_of(connection)

    async def query(self, text: str, values: Values) -> Sequence[Row]:
        self._refuse_transaction()
        sql, order = with_percent(text)
        arguments = arranged(order, values)
        if self._threads is not None:
            return await self._threads.run(
                lambda: _execute_in_thread(self._connection, sql, arguments), timeout_seconds=QUERY_SECONDS
            )
        work = asyncio.ensure_future(_execute(self._connection, sql, arguments))
        done, _ = await asyncio.wait({work}, timeout=QUERY_SECONDS)
        if not done:
            work.add_done_callback(_ignore)
            raise asyncio.TimeoutError("PostgreSQL did not answer in time")
        return work.result()

    call = query

    async def dedicate(self) -> Session:
        self._refuse_transaction()
        info = self._connection.info
        session: Session = await _opener({**info.get_parameters(), "password": info.password or None})()
        return session

    async def close(self) -> None:
        if self._threads is not None:
            self._threads.close()

    def _refuse_transaction(self) -> None:
        """A call that the server refuses aborts the caller's transaction. A heartbeat must not do that."""
        if not self._connection.autocommit:
            raise StoreError(f"client must be {NOT_AUTOCOMMIT}", retryable=False)
        # While the caller's own statement is in flight, ours waits for it.
        if int(self._connection.info.transaction_status) in (2, 3):
            raise StoreError(IN_TRANSACTION, retryable=False)


class PsycopgPool:
    """The caller's `AsyncConnectionPool` or, with `threads`, `ConnectionPool`."""

    is_pool = True

    def __init__(self, pool: Any, threads: Optional[WorkerThreads]) -> None:
        self._pool = pool
        self._threads = threads
        self.place = _place_of_settings(_settings_of(pool))

    async def query(self, text: str, values: Values) -> Sequence[Row]:
        sql, order = with_percent(text)
        arguments = arranged(order, values)
        if self._threads is not None:
            lent: list[Any] = []
            try:
                return await self._threads.run(
                    lambda: self._lend_in_thread(sql, arguments, lent), timeout_seconds=QUERY_SECONDS
                )
            except asyncio.TimeoutError:
                # The thread must not wait for ever. The pool drops the connection when it gets it back.
                for connection in lent:
                    shut_down(connection)
                raise
        return await self._lend(sql, arguments)

    call = query

    async def dedicate(self) -> Session:
        """A new connection beside the pool: a pinned one would be missing in the pool from then on."""
        session: Session = await _opener(_settings_of(self._pool))()
        return session

    async def close(self) -> None:
        if self._threads is not None:
            self._threads.close()

    async def _lend(self, sql: str, values: list[Optional[str]]) -> Sequence[Row]:
        async with self._pool.connection(timeout=QUERY_SECONDS) as connection:
            _refuse_unless_idle(connection)
            autocommit = connection.autocommit
            if not autocommit:
                await connection.set_autocommit(True)
            try:
                work = asyncio.ensure_future(_execute(connection, sql, values))
                done, _ = await asyncio.wait({work}, timeout=QUERY_SECONDS)
                if not done:
                    # The pool drops the connection when it gets it back.
                    shut_down(connection)
                    await asyncio.wait({work}, timeout=1)
                    work.add_done_callback(_ignore)
                    raise asyncio.TimeoutError("PostgreSQL did not answer in time")
                return work.result()
            finally:
                if not autocommit and not connection.closed:
                    await connection.set_autocommit(False)

    def _lend_in_thread(self, sql: str, values: list[Optional[str]], lent: list[Any]) -> Sequence[Row]:
        with self._pool.connection(timeout=QUERY_SECONDS) as connection:
            _refuse_unless_idle(connection)
            lent.append(connection)
            autocommit = connection.autocommit
            if not autocommit:
                connection.autocommit = True
            try:
                return _execute_in_thread(connection, sql, values)
            finally:
                lent.clear()
                if not autocommit and not connection.closed:
                    connection.autocommit = False


def _refuse_unless_idle(connection: Any) -> None:
    if int(connection.info.transaction_status) != _IDLE:
        raise StoreError(IN_TRANSACTION)


def _psycopg() -> Any:
    import psycopg

    return psycopg


def _settings_of(pool: Any) -> Mapping[str, Any]:
    """How the pool opens its connections."""
    conninfo, settings = getattr(pool, "conninfo", "") or "", getattr(pool, "kwargs", None) or {}
    # What is about rows and statements of the application is left out.
    others = ("autocommit", "row_factory", "cursor_factory", "context", "prepare_threshold")
    own = {name: value for name, value in settings.items() if name not in others}
    return {**_psycopg().conninfo.conninfo_to_dict(conninfo if isinstance(conninfo, str) else ""), **own}


def _place_of(connection: Any) -> Optional[str]:
    info = connection.info
    try:
        return postgres_place(PostgresTarget(info.host, info.port, info.dbname))
    except Exception:  # It is closed.
        return None


def _place_of_settings(settings: Mapping[str, Any]) -> Optional[str]:
    host, port, database = settings.get("host"), settings.get("port") or 5432, settings.get("dbname") or ""
    return None if not host else postgres_place(PostgresTarget(str(host), int(port), str(database)))
