"""Connections with the settings of an Engine of SQLAlchemy, as its URL, `connect_args`, `creator` and events make them.

The Engine's own way to open a connection is used, because its URL alone may lead to another place.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import Any, Awaitable, Callable, Dict, Optional, TypeVar

from ...errors import InvalidArgumentError, MissingClientError, StoreError
from .._postgres.belonging import assert_own_loop
from .._postgres.clients import is_a
from .._postgres.url import PostgresTarget, postgres_place
from .._shared.worker_threads import WorkerThreads
from . import deadlines
from .asyncpg_connections import AsyncpgConnection, detect_vanished_server
from .connections import Connection, Events
from .psycopg_connections import PsycopgConnections

T = TypeVar("T")
_MAX_THREADS = 4


class SqlalchemyConnections:
    def __init__(self, engine: Any) -> None:
        if engine.dialect.name != "postgresql":
            rule = "an Engine of SQLAlchemy on PostgreSQL"
            raise InvalidArgumentError("client", engine, f"{rule}. This one is on {engine.dialect.name}")
        self._engine = engine
        url = engine.url
        target = PostgresTarget(url.host or "localhost", url.port or 5432, url.database or "")
        self.place: Optional[str] = postgres_place(target)
        self.is_callers = False
        # Not `asyncio.to_thread`: the end of the event loop, and of the process, waits for its threads, and a server
        # that does not answer would prevent both.
        self._threads = WorkerThreads("holdfast-sqlalchemy", _MAX_THREADS)

    async def dedicate(self, events: Events) -> Connection:
        is_async = is_a(self._engine, "sqlalchemy", "AsyncEngine")
        opening = self._engine.raw_connection() if is_async else self._in_thread(self._engine.raw_connection)
        pooled = await _in_time(opening)
        raw = pooled.driver_connection
        if is_a(raw, "asyncpg", "Connection"):
            try:
                assert_own_loop(raw)
            except StoreError:
                pooled.close()
                raise
            # It is ours from now on. The pool opens another one in its place.
            pooled.detach()
            detect_vanished_server(raw)
            return AsyncpgConnection(raw, events, is_callers=False)
        try:
            settings = _settings_of(raw)
        finally:
            # It belongs to the event loop or the thread in which it was opened.
            if is_async:
                pooled.close()
            else:
                await self._in_thread(pooled.close)
        if find_spec("psycopg") is None:
            raise MissingClientError("the postgres-advisory driver on this Engine", ["psycopg"])
        import psycopg

        return await PsycopgConnections(psycopg.AsyncConnection.connect, settings, self.place).dedicate(events)

    async def close(self) -> None:
        self._threads.close()

    def _in_thread(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._threads.run(work, timeout_seconds=None)


async def _in_time(opening: Awaitable[Any]) -> Any:
    """The application may use all connections of the Engine's pool for long."""
    task = asyncio.ensure_future(opening)
    done, _ = await asyncio.wait({task}, timeout=deadlines.QUERY_SECONDS)
    if done:
        return task.result()
    task.add_done_callback(lambda late: None if late.cancelled() or late.exception() else late.result().close())
    raise StoreError(f"the Engine of SQLAlchemy had no connection left for {deadlines.QUERY_SECONDS:g} s")


def _settings_of(raw: Any) -> Dict[str, Any]:
    """What libpq was given to open this connection."""
    if is_a(raw, "psycopg", "Connection", "AsyncConnection"):
        parameters = raw.info.get_parameters()
    elif is_a(raw, "psycopg2", "connection"):
        parameters = raw.info.dsn_parameters
    else:
        rule = "an Engine of SQLAlchemy with asyncpg, psycopg or psycopg2"
        raise InvalidArgumentError("client", raw, rule)
    password = raw.info.password
    return {**parameters, **({"password": password} if password else {})}
