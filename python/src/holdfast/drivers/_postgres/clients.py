"""From a client of the caller, or from a URL, to connections."""

from __future__ import annotations

import importlib.util
from typing import Any

from ...errors import InvalidArgumentError, MissingClientError
from .beside_pool import BesidePool
from .connections import Connections
from .url import PostgresTarget

_RULE = (
    "a Pool or a Connection of asyncpg, a pool or a connection of psycopg 3 (asyncio or synchronous), or an Engine or "
    "AsyncEngine of SQLAlchemy"
)
_MAX_THREADS = 4


def connections_of(client: Any) -> Connections:
    """Raises `InvalidArgumentError` for anything that is not a known client."""
    # By name, so that only the package that is used is imported.
    if is_a(client, "asyncpg", "Pool"):
        from .asyncpg_client import AsyncpgPool

        return BesidePool(AsyncpgPool(client), "Pool of asyncpg")
    if is_a(client, "asyncpg", "Connection", "PoolConnectionProxy"):
        from .asyncpg_client import beside_asyncpg_connection

        return beside_asyncpg_connection(client)
    if is_a(client, "psycopg", "AsyncConnection", "Connection"):
        from .psycopg_client import beside_psycopg_connection

        return beside_psycopg_connection(client)
    if is_a(client, "psycopg_pool", "AsyncConnectionPool", "ConnectionPool"):
        from .psycopg_client import PsycopgPool

        is_async = is_a(client, "psycopg_pool", "AsyncConnectionPool")
        return BesidePool(PsycopgPool(client, None if is_async else _threads(_MAX_THREADS)), "pool of psycopg")
    if is_a(client, "sqlalchemy", "AsyncEngine", "Engine"):
        from .sqlalchemy_client import engine_connections

        return engine_connections(client)
    raise InvalidArgumentError("client", client, _RULE)


def open_connections(target: PostgresTarget, used_by: str = "the postgres driver") -> Connections:
    """With asyncpg or, without it, with psycopg."""
    if importlib.util.find_spec("asyncpg") is not None:
        from .asyncpg_client import open_asyncpg

        return open_asyncpg(target)
    if importlib.util.find_spec("psycopg") is not None:
        from .psycopg_client import open_psycopg

        return open_psycopg(target)
    raise MissingClientError(used_by, ["asyncpg", "psycopg"])


def is_a(client: object, package: str, *names: str) -> bool:
    """Whether its class, or a class that it is derived from, has one of these names in the package."""
    return any(each.__name__ in names and each.__module__.split(".")[0] == package for each in type(client).__mro__)


def _threads(size: int) -> Any:
    from .._shared.worker_threads import WorkerThreads

    return WorkerThreads("holdfast-postgres", size)
