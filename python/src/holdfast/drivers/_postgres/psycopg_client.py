"""Clients of the package psycopg (version 3), asyncio and synchronous."""

from __future__ import annotations

import asyncio
from typing import Any, Mapping, Optional, Sequence

from ...core.secrets import message_of
from ...core.tasks import ignore_outcome, start_call
from ...errors import InvalidArgumentError, StoreError
from .._shared.worker_threads import WorkerThreads
from .belonging import assert_own_process
from . import deadlines
from .connections import DedicatedConnection, Row, Values
from .errors import IN_TRANSACTION
from .own_pool import OwnPool
from .placeholders import arranged, with_percent
from .psycopg_connection import execute, execute_in_thread, opener, psycopg_module, shut_down
from .url import PostgresTarget, postgres_place, psycopg_settings

_IDLE = 0
"""`pq.TransactionStatus.IDLE`"""

def open_psycopg(target: PostgresTarget) -> OwnPool:
    """A pool for a URL. Sends nothing before the first call."""
    settings = psycopg_settings(target)
    return OwnPool(opener(settings, target.prepares), postgres_place(target))


def beside_psycopg_connection(connection: Any) -> OwnPool:
    """A pool with the settings of the caller's connection, asyncio or synchronous. Sends nothing before the first
    call."""
    info = connection.info
    try:
        settings = dict(info.get_parameters())
        # The server that it has reached, if it was given several.
        settings.update(host=info.host, port=info.port, password=info.password or None)
        if "hostaddr" in settings:
            settings["hostaddr"] = info.hostaddr
        place = postgres_place(PostgresTarget(info.host, info.port, info.dbname))
    except Exception as error:  # psycopg answers no question about a closed one.
        raise InvalidArgumentError("client", connection, f"an open connection: {message_of(error)}") from None
    return OwnPool(opener(settings), place)


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
                    lambda: self._lend_in_thread(sql, arguments, lent), timeout_seconds=deadlines.QUERY_SECONDS
                )
            except asyncio.TimeoutError:
                # The thread must not wait for ever. The pool drops the connection when it gets it back.
                for connection in lent:
                    shut_down(connection)
                raise
        return await self._lend(sql, arguments)

    urgent = query

    async def dedicate(self, *, prepares: bool = False) -> DedicatedConnection:
        """A new connection beside the pool: a pinned one would be missing in the pool from then on."""
        return await opener(_settings_of(self._pool))(prepares=prepares)

    async def close(self) -> None:
        if self._threads is not None:
            self._threads.close()

    async def _lend(self, sql: str, values: list[Optional[str]]) -> Sequence[Row]:
        async with self._pool.connection(timeout=deadlines.QUERY_SECONDS) as connection:
            _refuse_unless_idle(connection)
            autocommit = connection.autocommit
            if not autocommit:
                await connection.set_autocommit(True)
            try:
                work = start_call(execute(connection, sql, values))
                done, _ = await asyncio.wait({work}, timeout=deadlines.QUERY_SECONDS)
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
        with self._pool.connection(timeout=deadlines.QUERY_SECONDS) as connection:
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


def _place_of_settings(settings: Mapping[str, Any]) -> Optional[str]:
    host, port, database = settings.get("host"), settings.get("port") or 5432, settings.get("dbname") or ""
    return None if not host else postgres_place(PostgresTarget(str(host), int(port), str(database)))
