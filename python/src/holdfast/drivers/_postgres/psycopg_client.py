"""Clients of the package psycopg (version 3), asyncio and synchronous."""

from __future__ import annotations

import asyncio
from typing import Any, Mapping, Optional, Sequence

from ...errors import StoreError
from .._shared.worker_threads import WorkerThreads
from .belonging import assert_own_process
from .connections import QUERY_SECONDS, Row, Session, Values
from .errors import IN_TRANSACTION
from .own_pool import OwnPool
from .placeholders import arranged, with_percent
from .psycopg_session import execute, execute_in_thread, ignore_outcome, opener, psycopg_module, shut_down
from .url import PostgresTarget, postgres_place, psycopg_settings

_IDLE = 0
"""`pq.TransactionStatus.IDLE`"""

NOT_AUTOCOMMIT = (
    "a connection of psycopg with autocommit=True: without it, every statement begins a transaction, and a lock taken "
    "there would change only with its COMMIT. Or pass a pool"
)


def open_psycopg(target: PostgresTarget) -> OwnPool:
    """A pool for a URL. Sends nothing before the first call."""
    settings = psycopg_settings(target)
    return OwnPool(opener(settings, target.prepares), postgres_place(target))


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
        assert_own_process(self._connection)
        self._refuse_transaction()
        sql, order = with_percent(text)
        arguments = arranged(order, values)
        if self._threads is not None:
            return await self._threads.run(
                lambda: execute_in_thread(self._connection, sql, arguments), timeout_seconds=QUERY_SECONDS
            )
        work = asyncio.ensure_future(execute(self._connection, sql, arguments))
        done, _ = await asyncio.wait({work}, timeout=QUERY_SECONDS)
        if not done:
            work.add_done_callback(ignore_outcome)
            raise asyncio.TimeoutError("PostgreSQL did not answer in time")
        return work.result()

    call = query

    async def dedicate(self) -> Session:
        self._refuse_transaction()
        info = self._connection.info
        return await opener({**info.get_parameters(), "password": info.password or None})()

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
        assert_own_process(self._pool)
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
        return await opener(_settings_of(self._pool))()

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
                work = asyncio.ensure_future(execute(connection, sql, values))
                done, _ = await asyncio.wait({work}, timeout=QUERY_SECONDS)
                if not done:
                    # The pool drops the connection when it gets it back.
                    shut_down(connection)
                    await asyncio.wait({work}, timeout=1)
                    work.add_done_callback(ignore_outcome)
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
                return execute_in_thread(connection, sql, values)
            finally:
                lent.clear()
                if not autocommit and not connection.closed:
                    connection.autocommit = False


def _refuse_unless_idle(connection: Any) -> None:
    if int(connection.info.transaction_status) != _IDLE:
        raise StoreError(IN_TRANSACTION)


def _settings_of(pool: Any) -> Mapping[str, Any]:
    """How the pool opens its connections."""
    conninfo, settings = getattr(pool, "conninfo", "") or "", getattr(pool, "kwargs", None) or {}
    # What is about rows and statements of the application is left out.
    others = ("autocommit", "row_factory", "cursor_factory", "context", "prepare_threshold")
    own = {name: value for name, value in settings.items() if name not in others}
    return {**psycopg_module().conninfo.conninfo_to_dict(conninfo if isinstance(conninfo, str) else ""), **own}


def _place_of(connection: Any) -> Optional[str]:
    info = connection.info
    try:
        return postgres_place(PostgresTarget(info.host, info.port, info.dbname))
    except Exception:  # It is closed.
        return None


def _place_of_settings(settings: Mapping[str, Any]) -> Optional[str]:
    host, port, database = settings.get("host"), settings.get("port") or 5432, settings.get("dbname") or ""
    return None if not host else postgres_place(PostgresTarget(str(host), int(port), str(database)))
