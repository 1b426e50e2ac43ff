"""A connection of a synchronous client that the event loop reads and writes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Optional


class LoopConnection:
    """Looks like a connection of `redis.asyncio`, as far as wire.py needs it.

    redis-py opens the connection in a thread, with the caller's settings, and logs in. Then the event loop takes over
    its socket. A thread that kept it would have to be woken for each call, and to wake the event loop again.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._reader: Optional[asyncio.StreamReader] = None
        self._writer: Optional[asyncio.StreamWriter] = None

    async def connect(self) -> None:
        await _open_in_thread(self._connection)
        sock, self._connection._sock = self._connection._sock, None
        # Without its socket it only forgets what it has read.
        self._connection.disconnect()
        self._reader, self._writer = await asyncio.open_connection(sock=sock)

    async def disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
            await self._writer.wait_closed()


async def _open_in_thread(connection: Any) -> None:
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[None] = loop.create_future()

    def settle(error: Optional[Exception]) -> None:
        if opened.done():
            # The caller has given up.
            connection.disconnect()
        elif error is not None:
            opened.set_exception(error)
        else:
            opened.set_result(None)

    def open_it() -> None:
        error: Optional[Exception] = None
        try:
            connection.connect()
        except Exception as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, error)
        except RuntimeError:
            connection.disconnect()  # The event loop was closed.

    # A daemon: a server that does not answer must not keep the process from ending.
    threading.Thread(target=open_it, name="holdfast-redis-connect", daemon=True).start()
    try:
        await opened
    except BaseException:
        # Cancelled in the moment in which it opened, or it failed in a function of the caller, half open.
        if opened.done() and not opened.cancelled():
            connection.disconnect()
        raise
