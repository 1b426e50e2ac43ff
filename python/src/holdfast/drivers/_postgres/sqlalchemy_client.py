"""Engines of SQLAlchemy: connections as the engine makes them, with its URL, `connect_args`, `creator` and events."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import Any, Optional

from ...core.tasks import start_task
from ...errors import InvalidArgumentError, MissingClientError
from .._shared.worker_threads import WorkerThreads
from . import deadlines
from .asyncpg_client import AsyncpgPool
from .beside_pool import BesidePool
from .connections import Connections, DedicatedConnection
from .own_pool import Open, OwnPool
from .url import PostgresTarget, postgres_place

_RULE = "an Engine or AsyncEngine of SQLAlchemy on PostgreSQL, with asyncpg, psycopg or psycopg2"


def engine_connections(engine: Any) -> Connections:
    """An engine on asyncpg lends its connections. Of any other one, only the settings are used."""
    if engine.dialect.name != "postgresql":
        raise InvalidArgumentError("client", engine, f"{_RULE}. This one is on {engine.dialect.name}")
    place = _place_of(engine.url)
    if engine.dialect.driver == "asyncpg":
        return BesidePool(AsyncpgPool(_EnginePool(engine), place), "pool of SQLAlchemy")
    return OwnPool(_opener(engine), place)


def _opener(engine: Any) -> Open:
    """Opens connections with psycopg, as the engine opens its own. It is asked once, because its URL alone may lead to
    another place."""
    opener: Optional[Open] = None

    async def open_connection(*, prepares: bool = False) -> DedicatedConnection:
        nonlocal opener
        if opener is None:
            if find_spec("psycopg") is None:
                raise MissingClientError("the driver on this Engine", ["psycopg"])
            from . import psycopg_connection

            opener = psycopg_connection.opener(await _settings_of(engine))
        return await opener(prepares=prepares)

    return open_connection


async def _settings_of(engine: Any) -> "dict[str, Any]":
    if hasattr(engine, "sync_engine"):
        from sqlalchemy.util import greenlet_spawn

        reading = greenlet_spawn(_read_settings, engine.sync_engine)
        settings: dict[str, Any] = await asyncio.wait_for(reading, deadlines.QUERY_SECONDS)
        return settings
    # Not `asyncio.to_thread`: the end of the event loop, and of the process, waits for its threads, and a server that
    # does not answer would prevent both.
    threads = WorkerThreads("holdfast-sqlalchemy", 1)
    try:
        return await threads.run(lambda: _read_settings(engine), timeout_seconds=deadlines.QUERY_SECONDS)
    finally:
        threads.close()


def _read_settings(engine: Any) -> "dict[str, Any]":
    """What libpq was given to open a connection. Not one of the engine's pool: the application may use all of them."""
    pooled = engine.pool.recreate().connect()
    try:
        raw = getattr(pooled, "driver_connection", None) or pooled.connection
        info: Any = getattr(raw, "info", None)
        if hasattr(info, "get_parameters"):
            settings = dict(info.get_parameters())
        elif hasattr(info, "dsn_parameters"):
            settings = dict(info.dsn_parameters)
        else:
            raise InvalidArgumentError("client", engine, _RULE)
        return {**settings, **({"password": info.password} if info.password else {})}
    finally:
        pooled.detach()
        pooled.close()


class _EnginePool:
    """Lends the connections of asyncpg under those of the engine's pool. SQLAlchemy begins a transaction with the first
    statement that it sends itself, so none is open on them."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._wrappers: dict[int, Any] = {}
        self._late: set[asyncio.Future[None]] = set()
        self._beside: Any = None

    async def acquire(self, timeout: float) -> Any:
        connecting = start_task(self._connect())
        is_given_up = True
        try:
            done, _ = await asyncio.wait({connecting}, timeout=timeout)
            is_given_up = not done
        finally:
            # Also if the caller was cancelled. It is given back when it is there.
            if is_given_up:
                connecting.add_done_callback(self._give_back)
        if is_given_up:
            raise asyncio.TimeoutError("no connection in time")
        return connecting.result()

    async def _connect(self) -> Any:
        wrapper = await self._engine.connect()
        try:
            connection = (await wrapper.get_raw_connection()).driver_connection
        except BaseException:
            await wrapper.close()
            raise
        self._wrappers[id(connection)] = wrapper
        return connection

    def _give_back(self, connected: asyncio.Future[Any]) -> None:
        if not connected.cancelled() and connected.exception() is None:
            self._late.add(late := start_task(self.release(connected.result(), 0)))
            late.add_done_callback(self._late.discard)

    async def connect_beside(self) -> Any:
        """A new connection, made as the engine makes those of its pool. It is not one of them."""
        from sqlalchemy.util import greenlet_spawn

        if self._beside is None:
            self._beside = self._engine.sync_engine.pool.recreate()
        pooled = await asyncio.wait_for(greenlet_spawn(self._beside.connect), deadlines.QUERY_SECONDS)
        connection = pooled.driver_connection
        pooled.detach()
        return connection

    async def release(self, connection: Any, timeout: float) -> None:
        wrapper = self._wrappers.pop(id(connection))
        if connection.is_closed():
            await wrapper.invalidate()
        await wrapper.close()


def _place_of(url: Any) -> Optional[str]:
    host, port, database = url.host, url.port or 5432, url.database or ""
    return None if not host else postgres_place(PostgresTarget(host, port, database))
