"""The connections of a client of the caller, or of a URL. No client is imported before it is needed."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

from ...errors import InvalidArgumentError, MissingClientError
from .._postgres.clients import is_a
from .._postgres.url import asyncpg_settings, postgres_place, postgres_url, psycopg_settings
from .._shared.url import url_parts
from .asyncpg_connections import AsyncpgCallersConnection, AsyncpgConnections
from .connections import Connections
from .psycopg_connections import PsycopgCallersConnection, PsycopgConnections
from .sqlalchemy_connections import SqlalchemyConnections

_RULE = (
    "a Pool or Connection of asyncpg, an AsyncConnection or Connection of psycopg with autocommit=True, a pool of "
    "psycopg_pool, or an Engine or AsyncEngine of SQLAlchemy"
)


def connections_for_url(url: str) -> Connections:
    """With asyncpg or, without it, with psycopg."""
    target, _ = postgres_url(url)
    for parameter in url_parts(url, "").parameters:
        if parameter.name.startswith("holdfast_"):
            raise InvalidArgumentError("url parameter", parameter.name, "left out: advisory locks have no tables")
    place = postgres_place(target)
    if find_spec("asyncpg") is not None:
        import asyncpg

        return AsyncpgConnections(asyncpg.connect, asyncpg_settings(target), place)
    if find_spec("psycopg") is not None:
        import psycopg

        return PsycopgConnections(psycopg.AsyncConnection.connect, psycopg_settings(target), place)
    raise MissingClientError("the postgres-advisory driver", ["asyncpg", "psycopg"])


def connections_of(client: Any) -> Connections:
    if is_a(client, "asyncpg", "Pool"):
        return _beside_asyncpg_pool(client)
    if is_a(client, "asyncpg", "PoolConnectionProxy"):
        # When it is given back, the pool runs pg_advisory_unlock_all on it.
        reason = "A connection that was borrowed from a pool loses its locks when it is given back: pass the pool"
        raise InvalidArgumentError("client", client, f"{_RULE}. {reason}")
    if is_a(client, "asyncpg", "Connection"):
        return AsyncpgCallersConnection(client)
    if is_a(client, "psycopg", "AsyncConnection", "Connection"):
        if not client.autocommit:
            raise InvalidArgumentError("client", client, f"{_RULE}. This connection is not in autocommit mode")
        return PsycopgCallersConnection(client, is_sync=is_a(client, "psycopg", "Connection"))
    if is_a(client, "psycopg_pool", "AsyncConnectionPool", "ConnectionPool"):
        return _beside_psycopg_pool(client)
    if is_a(client, "sqlalchemy", "Engine", "AsyncEngine"):
        return SqlalchemyConnections(client)
    if is_a(client, "sqlalchemy", "Session", "AsyncSession", "Connection", "AsyncConnection"):
        reason = "Pass its Engine, or take a lock that lasts as long as its transaction, with lock_in_transaction"
        raise InvalidArgumentError("client", client, f"{_RULE}. {reason}")
    raise InvalidArgumentError("client", client, _RULE)


def _beside_asyncpg_pool(pool: Any) -> Connections:
    """New connections with the pool's settings: a pinned one would be missing in the pool from then on.

    asyncpg has no public way to ask a pool for its settings.
    """
    arguments, settings = getattr(pool, "_connect_args", None), getattr(pool, "_connect_kwargs", None)
    if not (isinstance(arguments, (list, tuple)) and isinstance(settings, dict)):
        raise InvalidArgumentError("client", pool, f"{_RULE}. This version of asyncpg hides the settings of a Pool")
    import asyncpg

    connect = getattr(pool, "_connect", None) or asyncpg.connect
    return AsyncpgConnections(partial(connect, *arguments), settings, None)


def _beside_psycopg_pool(pool: Any) -> Connections:
    """Also for a synchronous pool, the new connections are asynchronous: they need no threads."""
    import psycopg

    if not isinstance(pool.conninfo, str) or not isinstance(pool.kwargs or {}, dict):
        rule = f"{_RULE}. A pool whose settings are computed for each connection cannot be used: pass a URL"
        raise InvalidArgumentError("client", pool, rule)
    # What is about rows and statements of the application is left out.
    own = ("autocommit", "row_factory", "cursor_factory", "context", "prepare_threshold")
    settings = {name: value for name, value in (pool.kwargs or {}).items() if name not in own}
    return PsycopgConnections(partial(psycopg.AsyncConnection.connect, pool.conninfo), settings, None)
