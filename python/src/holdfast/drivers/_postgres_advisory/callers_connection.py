"""The one connection of a driver that a caller has passed.

It has one session, and the server grants a session a lock that it already has. So two drivers on one connection would
both hold one name, and so would a driver and a transaction.
"""

from __future__ import annotations

from typing import Any, Optional
from weakref import WeakSet

from ...errors import InvalidArgumentError
from .._postgres.clients import is_a
from .._postgres.connections import DedicatedConnection
from .._postgres.url import PostgresTarget, postgres_place
from .._shared.worker_threads import WorkerThreads

_occupied: "WeakSet[Any]" = WeakSet()
_RULE = (
    "a Pool or Connection of asyncpg, an AsyncConnection or Connection of psycopg with autocommit=True, a pool of "
    "psycopg_pool, or an Engine or AsyncEngine of SQLAlchemy"
)


def is_occupied(connection: Any) -> bool:
    return connection in _occupied


def callers_connection(client: Any) -> Optional["CallersConnection"]:
    """None for a client beside which the driver opens connections of its own.

    Raises `InvalidArgumentError` for a connection that cannot have a driver.
    """
    reason = None
    if is_a(client, "asyncpg", "PoolConnectionProxy"):
        # When it is given back, the pool runs pg_advisory_unlock_all on it.
        reason = "A connection that was borrowed from a pool loses its locks when it is given back: pass the pool"
    elif is_a(client, "sqlalchemy", "Session", "AsyncSession", "Connection", "AsyncConnection"):
        reason = "Pass its Engine, or take a lock that lasts as long as its transaction, with lock_in_transaction"
    elif is_a(client, "psycopg", "AsyncConnection", "Connection") and not client.autocommit:
        reason = "This connection is not in autocommit mode"
    elif is_occupied(client):
        reason = "This connection has another postgres-advisory driver. Close that one first, share it, or pass a pool"
    if reason is not None:
        raise InvalidArgumentError("client", client, f"{_RULE}. {reason}")
    is_connection = is_a(client, "asyncpg", "Connection") or is_a(client, "psycopg", "AsyncConnection", "Connection")
    return CallersConnection(client) if is_connection else None


class CallersConnection:
    """Occupies the connection until it is closed."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.place: Optional[str] = None
        if not is_a(connection, "asyncpg", "Connection"):
            info = connection.info
            self.place = postgres_place(PostgresTarget(info.host, info.port, info.dbname))
        _occupied.add(connection)

    async def dedicate(self, *, prepares: bool = False) -> DedicatedConnection:
        if is_a(self._connection, "asyncpg", "Connection"):
            from .._postgres.asyncpg_connection import AsyncpgConnection

            return AsyncpgConnection(self._connection, is_callers=True)
        from .._postgres.psycopg_connection import PsycopgConnection

        is_sync = is_a(self._connection, "psycopg", "Connection")
        threads = WorkerThreads("holdfast-psycopg", 1) if is_sync else None
        return PsycopgConnection(self._connection, is_callers=True, threads=threads)

    async def close(self) -> None:
        _occupied.discard(self._connection)
