"""The connection of a driver to one server, for all of its commands, in the order in which they are sent.

The order matters: a claim that asks first has the first place in the queue, and the release of a claim that was given
up must not overtake the claim. A pool, which sends each command over any of its connections, has no order.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Optional, Sequence

from ...core.tasks import start_task
from .connection import Command, Connection, opened
from .dial import Dial


class Wire:
    """Connects when it is needed, and again after its connection has ended."""

    def __init__(self, dial: Dial, timeout_seconds: float) -> None:
        self._dial = dial
        self._timeout_seconds = timeout_seconds
        self._connection: Optional[Connection] = None
        self._connecting: Optional[asyncio.Task[Connection]] = None
        self._waiting: list[_Waiting] = []
        """The commands that wait for the connection, in their order."""
        self._closed = False

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """See `Connection.exchange`. A call that is cancelled while it waits for the connection sends nothing."""
        loop, found = asyncio.get_running_loop(), self._connection
        if found is None or found.ended or found.loop is not loop or found.process != os.getpid():
            return await (await self._after_connecting(commands, loop))
        return await found.exchange(commands)

    def _after_connecting(self, commands: Sequence[Command], loop: asyncio.AbstractEventLoop) -> _Sent:
        if self._closed:
            raise ConnectionError("the connection was closed")
        if self._connecting is None or self._connecting.get_loop() is not loop:
            waiting = self._waiting = []
            self._connecting = start_task(opened(Connection(self._timeout_seconds), self._dial))
            self._connecting.add_done_callback(lambda connecting: self._connected(connecting, waiting))
        sent: _Sent = loop.create_future()
        self._waiting.append((commands, sent))
        return sent

    def _connected(self, connecting: asyncio.Task[Connection], waiting: Sequence[_Waiting]) -> None:
        """Sends what waits in the step in which the connection can be used: the next command must not overtake it."""
        if self._connecting is connecting:
            self._connecting = None
        connection: Optional[Connection] = None
        error: Optional[Exception] = None
        if connecting.cancelled():
            error = ConnectionError("the connection was closed" if self._closed else "connecting was cancelled")
        elif (failed := connecting.exception()) is not None:
            # Any other exception ends the event loop, and is raised once.
            error = failed if isinstance(failed, Exception) else ConnectionError("connecting was interrupted")
        else:
            connection = self._connection = connecting.result()
            # Closing may have cancelled the task when the connection was already there, which has no effect.
            if self._closed:
                connection.close()
        for commands, sent in waiting:
            if sent.done():
                continue
            try:
                if connection is None:
                    raise error or ConnectionError("not connected")
                sent.set_result(connection.exchange(commands))
            except Exception as failure:
                sent.set_exception(failure)

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
            connection = self._connection or connection
        if connection is not None and connection.loop is loop:
            await connection.gone()


_Sent = asyncio.Future[asyncio.Future[list[Any]]]
"""What was sent, as a future for its replies."""
_Waiting = tuple[Sequence[Command], _Sent]
