"""Clients of the package asyncpg."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Mapping, Optional, Sequence

from ...core.tasks import start_task
from ...errors import StoreError
from .._shared.secrets import redacted_url
from .asyncpg_session import AsyncpgSession, CallersSession, turn_on, unwrapped
from .belonging import assert_own_loop
from .connections import CONNECT_SECONDS, QUERY_SECONDS, Row, Session, Values
from .errors import IN_TRANSACTION
from .kept_connection import KeptConnection, is_open, lends_at_once
from .own_pool import OwnPool
from .url import PostgresTarget, asyncpg_settings, postgres_place


class AsyncpgConnection:
    """Sends everything on the caller's one connection, one statement after the other."""

    is_pool = False

    def __init__(self, connection: Any) -> None:
        self._session = CallersSession(connection)
        self._connection = connection
        self._is_checked = False
        self.place = _place_of(unwrapped(connection))

    async def query(self, text: str, values: Values) -> Sequence[Row]:
        """A call that the server refuses aborts the caller's transaction. A heartbeat must not do that."""
        assert_own_loop(unwrapped(self._connection))
        async with turn_on(self._connection):
            if self._connection.is_in_transaction():
                raise StoreError(IN_TRANSACTION, retryable=False)
            if not self._is_checked:
                await _refuse_cache_behind_pooler(self._connection)
                self._is_checked = True
            rows: Sequence[Row] = await self._connection.fetch(text, *values, timeout=QUERY_SECONDS)
            return rows

    call = query

    async def dedicate(self) -> Session:
        assert_own_loop(unwrapped(self._connection))
        if self._connection.is_in_transaction():
            raise StoreError(IN_TRANSACTION, retryable=False)
        return CallersSession(self._connection)

    async def close(self) -> None:
        pass


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
            rows: Sequence[Row] = await connection.fetch(text, *values, timeout=QUERY_SECONDS)
        except BaseException as error:
            if isinstance(error, asyncio.TimeoutError) or not is_open(connection):
                # Its answer may still come. The pool opens another connection.
                _terminate(connection)
            self._give_back(connection)
            raise
        self._kept.keep(lent)
        return rows

    call = query

    async def dedicate(self) -> Session:
        """A new connection beside the pool, where possible: a pinned one would be missing in the pool from then on."""
        found = _connect_arguments(self._pool)
        if found is None:
            connection = await self._pool.acquire(timeout=QUERY_SECONDS)
            try:
                assert_own_loop(unwrapped(connection))
            except StoreError:
                self._give_back(connection)
                raise
            return AsyncpgSession(connection, lambda: self._release(connection))
        arguments, settings = found
        connect = getattr(self._pool, "_connect", None) or _asyncpg().connect
        return AsyncpgSession(await connect(*arguments, **settings))

    async def close(self) -> None:
        if self._process != os.getpid():
            # After a fork: a connection that is kept is the parent's, and so is its socket.
            return
        self._kept.close()
        if self._releases:
            await asyncio.wait(self._releases)

    async def _take(self) -> Any:
        # With a timeout, asyncpg starts a task. That is a tenth of the time of a call.
        return await self._pool.acquire(timeout=None if lends_at_once(self._pool) else QUERY_SECONDS)

    def _give_back(self, connection: Any) -> None:
        # The pool resets the connection, which takes a round trip. The answer does not wait for it.
        release = start_task(self._release(connection))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)

    async def _release(self, connection: Any) -> None:
        try:
            await self._pool.release(connection, timeout=QUERY_SECONDS)
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
    return bool(await connection.execute(same, timeout=QUERY_SECONDS) == "SELECT 1")


def open_asyncpg(target: PostgresTarget) -> OwnPool:
    """A pool for a URL. Sends nothing before the first call."""
    settings = asyncpg_settings(target)
    settings.setdefault("timeout", CONNECT_SECONDS)
    prepares: Optional[bool] = False if target.prepares is False else None

    async def open_session() -> Session:
        nonlocal prepares
        # Without a cache asyncpg gives statements no name, and sends each of them in one transaction of a pooler.
        connection = await _asyncpg().connect(**settings, **({} if prepares else {"statement_cache_size": 0}))
        if prepares is None:
            try:
                prepares = await _is_direct(connection)
            except BaseException:
                connection.terminate()
                raise
            if prepares:
                await AsyncpgSession(connection).close()
                return await open_session()
        return AsyncpgSession(connection)

    return OwnPool(open_session, postgres_place(target))


def _asyncpg() -> Any:
    import asyncpg

    return asyncpg


def _connect_arguments(pool: Any) -> Optional[tuple[Sequence[Any], Mapping[str, Any]]]:
    """How the pool opens its connections. asyncpg has no public way to ask it."""
    arguments, settings = getattr(pool, "_connect_args", None), getattr(pool, "_connect_kwargs", None)
    if isinstance(arguments, (list, tuple)) and isinstance(settings, dict):
        return arguments, settings
    return None


def _place_of(connection: Any) -> Optional[str]:
    address, parameters = getattr(connection, "_addr", None), getattr(connection, "_params", None)
    database = getattr(parameters, "database", None) or ""
    if isinstance(address, tuple) and len(address) >= 2:
        return postgres_place(PostgresTarget(str(address[0]), int(address[1]), database))
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
