"""Clients of the package asyncpg."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Awaitable, Callable, Mapping, Optional, Sequence

from ...core.secrets import redacted_url
from ...core.tasks import start_task
from ...errors import InvalidArgumentError, StoreError
from . import deadlines
from .asyncpg_connection import AsyncpgConnection, unwrapped
from .belonging import assert_own_loop
from .connections import DedicatedConnection, Row, Values
from .errors import IN_TRANSACTION
from .kept_connection import KeptConnection, is_open, lends_at_once
from .own_pool import Open, OwnPool
from .url import PostgresTarget, asyncpg_settings, postgres_place


class AsyncpgPool:
    """The caller's pool."""

    is_pool = True

    def __init__(self, pool: Any, place: Optional[str] = None) -> None:
        self._pool = pool
        self._is_checked = False
        self._process = os.getpid()
        self._releases: set[asyncio.Future[None]] = set()
        self._kept = KeptConnection(pool, self._give_back)
        arguments, settings = _connect_arguments(pool) or ((), {})
        self.place = place or _place_of_settings(arguments, settings)

    async def query(self, text: str, values: Values) -> Sequence[Row]:
        assert_own_loop(self._pool)
        lent = self._kept.take() or self._kept.lent(await self._take())
        connection = lent.connection
        try:
            # The pool of an engine has connections of several event loops.
            assert_own_loop(unwrapped(connection))
            if connection.is_in_transaction():
                raise StoreError(IN_TRANSACTION)
            if not self._is_checked:
                await _refuse_cache_behind_pooler(connection)
                self._is_checked = True
            rows: Sequence[Row] = await connection.fetch(text, *values, timeout=deadlines.QUERY_SECONDS)
        except BaseException as error:
            if isinstance(error, asyncio.TimeoutError) or not is_open(connection):
                # Its answer may still come. The pool opens another connection.
                _terminate(connection)
            self._give_back(connection)
            raise
        self._kept.keep(lent)
        return rows

    urgent = query

    async def dedicate(self, *, prepares: bool = False) -> DedicatedConnection:
        """A new connection beside the pool: a pinned one would be missing in the pool from then on."""
        connect_beside = getattr(self._pool, "connect_beside", None)
        if connect_beside is not None:
            return AsyncpgConnection(await connect_beside())
        found = _connect_arguments(self._pool)
        if found is None:
            reason = "this version of asyncpg hides the settings of a Pool: pass a URL to the driver"
            raise StoreError(reason, retryable=False)
        arguments, settings = found
        connect = getattr(self._pool, "_connect", None) or _asyncpg().connect
        settings = {"timeout": deadlines.CONNECT_SECONDS, **settings, **({} if prepares else _PLAIN)}
        return AsyncpgConnection(await connect(*arguments, **settings))

    async def close(self) -> None:
        if self._process != os.getpid():
            # After a fork: a connection that is kept is the parent's, and so is its socket.
            return
        self._kept.close()
        if self._releases:
            await asyncio.wait(self._releases)

    async def _take(self) -> Any:
        # With a timeout, asyncpg starts a task. That is a tenth of the time of a call.
        return await self._pool.acquire(timeout=None if lends_at_once(self._pool) else deadlines.QUERY_SECONDS)

    def _give_back(self, connection: Any) -> None:
        # The pool resets the connection, which takes a round trip. The answer does not wait for it.
        release = start_task(self._release(connection))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)

    async def _release(self, connection: Any) -> None:
        try:
            await self._pool.release(connection, timeout=deadlines.QUERY_SECONDS)
        except Exception:
            # The pool has dropped the connection.
            pass


def _terminate(connection: Any) -> None:
    """Also one that its server has ended: asyncpg sometimes forgets to count it as given back."""
    try:
        connection.terminate()
    except Exception:
        pass  # It is back in its pool already.


async def _refuse_cache_behind_pooler(connection: Any) -> None:
    """asyncpg counts the names of its prepared statements in each process. Behind a pooler, a statement of another
    process may have the same name, and would be executed instead: on another schema, that would be another lock."""
    size = getattr(getattr(connection, "_config", None), "statement_cache_size", 0)
    if size and not await _is_direct(connection):
        raise StoreError(
            "there is a pooler between this client and PostgreSQL, and its connections would mix up prepared "
            "statements of different processes: open the client with statement_cache_size=0",
            retryable=False,
        )


async def _is_direct(connection: Any) -> bool:
    """A pooler sends a process id of its own. Asked in the simple protocol, which prepares nothing. Its answer is a
    count of rows."""
    same = f"SELECT WHERE pg_backend_pid() = {int(connection.get_server_pid())}"
    return bool(await connection.execute(same, timeout=deadlines.QUERY_SECONDS) == "SELECT 1")


def open_asyncpg(target: PostgresTarget) -> OwnPool:
    """A pool for a URL. Sends nothing before the first call."""
    settings = asyncpg_settings(target)
    settings.setdefault("timeout", deadlines.CONNECT_SECONDS)
    return OwnPool(_opener(settings, False if target.prepares is False else None), postgres_place(target))


def beside_asyncpg_connection(connection: Any) -> OwnPool:
    """A pool with the settings of the caller's connection. Sends nothing before the first call."""
    connection = unwrapped(connection)
    address: Any = getattr(connection, "_addr", None)
    parameters: Any = getattr(connection, "_params", None)
    if address is None or not hasattr(parameters, "server_settings"):
        rule = "a Pool of asyncpg: this version hides the settings of a Connection. Or pass a URL to the driver"
        raise InvalidArgumentError("client", connection, rule)
    if isinstance(address, tuple):
        host, port = str(address[0]), int(address[1])
    else:
        # The path of a Unix socket: /var/run/postgresql/.s.PGSQL.5432
        host, _, name = str(address).rpartition("/")
        port = int(name.rpartition(".")[2])
    mode = getattr(getattr(parameters, "sslmode", None), "name", "")
    settings = {
        "host": host,
        "port": port,
        "user": parameters.user,
        "password": parameters.password,
        "database": parameters.database,
        # These two try again, with TLS or without it. A context alone would not.
        "ssl": mode if mode in ("allow", "prefer") else parameters.ssl or False,
        "direct_tls": bool(getattr(parameters, "direct_tls", False)),
        "server_settings": parameters.server_settings,
        "timeout": deadlines.CONNECT_SECONDS,
    }
    return OwnPool(_opener(settings), postgres_place(PostgresTarget(host, port, parameters.database or "")))


_PLAIN: Mapping[str, Any] = {"statement_cache_size": 0, "command_timeout": None}
"""For statements that differ nearly every time, so that a cache would only cost, and of which one waits for days."""


def _opener(settings: Mapping[str, Any], is_direct: Optional[bool] = None) -> Open:
    """Opens connections with these settings. `is_direct`: whether statements may be prepared. None: unless a pooler is
    in between."""

    async def open_connection(*, prepares: bool = False) -> DedicatedConnection:
        nonlocal is_direct
        # Without a cache asyncpg gives statements no name, and sends each of them in one transaction of a pooler.
        connection = await _asyncpg().connect(**settings, **({} if prepares and is_direct else _PLAIN))
        if prepares and is_direct is None:
            try:
                is_direct = await _is_direct(connection)
            except BaseException:
                connection.terminate()
                raise
            if is_direct:
                await AsyncpgConnection(connection).close()
                return await open_connection(prepares=True)
        return AsyncpgConnection(connection)

    return open_connection


def _asyncpg() -> Any:
    import asyncpg

    return asyncpg


def _connect_arguments(pool: Any) -> Optional[tuple[Sequence[Any], Mapping[str, Any]]]:
    """How the pool opens its connections. asyncpg has no public way to ask it."""
    arguments, settings = getattr(pool, "_connect_args", None), getattr(pool, "_connect_kwargs", None)
    if isinstance(arguments, (list, tuple)) and isinstance(settings, dict):
        return arguments, settings
    return None


def _place_of_settings(arguments: Sequence[Any], settings: Mapping[str, Any]) -> Optional[str]:
    host, port, database = (settings.get(name) for name in ("host", "port", "database"))
    if isinstance(host, str):
        port = port if isinstance(port, int) else 5432
        return postgres_place(PostgresTarget(host, port, database if isinstance(database, str) else ""))
    dsn = arguments[0] if arguments else settings.get("dsn")
    if isinstance(dsn, str):
        # The caller may not have encoded the password, so where it ends is a guess.
        return str(redacted_url(dsn)).replace("…@", "")
    return None
