"""The connection of a driver to one server, for all of its commands, in the order in which they are sent.

The order matters: a claim that asks first has the first place in the queue, and the release of a claim that was given
up must not overtake the claim. A pool, which sends each command over any of its connections, has no order.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Optional, Sequence

from ...core.tasks import ignore_outcome, start_task
from .connection import Command, Connection, opened
from .dial import Dial


class Wire:
    """Connects when it is needed, and again after its connection has ended."""

    def __init__(self, dial: Dial, timeout_seconds: float) -> None:
        self._dial = dial
        self._timeout_seconds = timeout_seconds
        self._connection: Optional[Connection] = None
        self._connecting: Optional[asyncio.Task[Connection]] = None
        self._closed = False

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """See `Connection.exchange`."""
        loop, found = asyncio.get_running_loop(), self._connection
        if found is None or found.ended or found.loop is not loop or found.process != os.getpid():
            found = await self._connected(loop)
        return await found.exchange(commands)

    async def _connected(self, loop: asyncio.AbstractEventLoop) -> Connection:
        if self._closed:
            raise ConnectionError("the connection was closed")
        if self._connecting is None or self._connecting.get_loop() is not loop:
            self._connecting = start_task(self._connect())
            self._connecting.add_done_callback(ignore_outcome)
        connecting = self._connecting
        try:
            # Shielded: several calls wait for one connection, and none of them may take it away from the others.
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            # Closing has cancelled the connection, not this call. The core would take it for the end of its own task.
            if self._closed and connecting.cancelled():
                raise ConnectionError("the connection was closed") from None
            raise

    async def _connect(self) -> Connection:
        connection = Connection(self._timeout_seconds)
        try:
            await opened(connection, self._dial)
            # Closing may have cancelled this task when the connection was already there, which has no effect.
            if self._closed:
                connection.close()
            self._connection = connection
            return connection
        finally:
            self._connecting = None

    def drop(self) -> None:
        """Connects anew for the next command. Commands in flight fail."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """Closes the connection at once."""
        self._closed = True
        loop = asyncio.get_running_loop()
        connection, connecting = self._connection, self._connecting
        self.drop()
        if connecting is not None and connecting.get_loop() is loop:
            connecting.cancel()
            await asyncio.wait({connecting}, timeout=1)
        if connection is not None and connection.loop is loop:
            await connection.gone()
