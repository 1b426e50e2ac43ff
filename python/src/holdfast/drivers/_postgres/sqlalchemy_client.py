"""An `AsyncEngine` of SQLAlchemy on asyncpg, as a pool of asyncpg."""

from __future__ import annotations

import asyncio
from typing import Any, Optional

from ...core.tasks import start_task
from ...errors import InvalidArgumentError
from .asyncpg_client import AsyncpgPool
from .url import PostgresTarget, postgres_place

_RULE = "an AsyncEngine on asyncpg (postgresql+asyncpg://…). For other engines, pass a URL or a client to the driver"


def engine_connections(engine: Any) -> AsyncpgPool:
    if getattr(getattr(engine, "dialect", None), "driver", None) != "asyncpg":
        raise InvalidArgumentError("client", engine, _RULE)
    return AsyncpgPool(_EnginePool(engine), _place_of(engine.url))


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
        pooled = await greenlet_spawn(self._beside.connect)
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
