"""One connection to one server, for all commands of a driver, in the order in which they are sent.

The order matters: a claim that asks first has the first place in the queue, and the release of a claim that was given
up must not overtake the claim. A pool, which sends each command over any of its connections, has no order.

A command is never sent twice. If its connection ends before the answer, the outcome is unknown, and that is the answer.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any, Optional, Protocol, Sequence, Union

from .dial import Dial
from .failures import is_reply

Command = Sequence[Union[str, bytes]]


class Wire(Protocol):
    @property
    def dial(self) -> Dial: ...

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Sends the commands one after the other and returns their replies. A reply that is an error of the server is
        returned as an exception. Raises if the connection ends or no answer comes in time: the outcome is unknown."""

    def drop(self) -> None:
        """Connects anew for the next command. Commands in flight fail."""

    async def close(self) -> None:
        """Closes the connection at once."""


class AsyncWire:
    """On `redis.asyncio`: commands are written as they come, and replies are read by one task."""

    def __init__(self, dial: Dial, timeout_seconds: float) -> None:
        self.dial = dial
        self._timeout_seconds = timeout_seconds
        self._session: Optional[_Session] = None
        self._connecting: Optional[asyncio.Task[_Session]] = None
        self._closed = False

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        loop = asyncio.get_running_loop()
        session = self._session
        if session is None or session.ended or session.loop is not loop or session.process != os.getpid():
            session = await self._connected(loop)
        return await session.exchange(commands)

    async def _connected(self, loop: asyncio.AbstractEventLoop) -> _Session:
        if self._closed:
            raise ConnectionError("the connection was closed")
        if self._connecting is None or self._connecting.get_loop() is not loop:
            self._connecting = loop.create_task(self._connect(loop))
            self._connecting.add_done_callback(retrieve)
        connecting = self._connecting
        try:
            # Shielded: several calls wait for one connection, and none of them may take it away from the others.
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            # Closing has cancelled the connection, not this call. The core would take it for the end of its own task.
            if self._closed and connecting.cancelled():
                raise ConnectionError("the connection was closed") from None
            raise

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> _Session:
        try:
            connection = self.dial.connection(self._timeout_seconds, None)
            try:
                await asyncio.wait_for(connection.connect(), self._timeout_seconds)
                # Closing may have cancelled this task when the connection was already there, which has no effect.
                # Nothing would ever end the connection.
                if self._closed:
                    raise ConnectionError("the connection was closed")
            except BaseException:
                await hang_up(connection)
                raise
            self._session = _Session(connection, loop, self._timeout_seconds)
            return self._session
        finally:
            self._connecting = None

    def drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.end(ConnectionError("the connection was closed"))

    async def close(self) -> None:
        self._closed = True
        loop = asyncio.get_running_loop()
        session, connecting = self._session, self._connecting
        self.drop()
        if connecting is not None and connecting.get_loop() is loop:
            connecting.cancel()
            await asyncio.wait({connecting}, timeout=1)
        if session is not None and session.loop is loop:
            await session.gone()


class _Session:
    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop, timeout_seconds: float) -> None:
        self.loop = loop
        self.process = os.getpid()
        """Of no use after a fork: two processes would read each other's replies from one connection."""
        self.ended: Optional[BaseException] = None
        self._connection = connection
        self._timeout_seconds = timeout_seconds
        self._unanswered: deque[_Unanswered] = deque()
        self._alarm: Optional[asyncio.TimerHandle] = None
        self._reader = loop.create_task(self._read())

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        if self.ended is not None:
            raise self.ended
        # First: if this fails, nothing is sent, and there is no answer to wait for.
        packed = [pack(commands)]
        entry = _Unanswered(len(commands), self.loop.create_future(), self.loop.time() + self._timeout_seconds)
        self._unanswered.append(entry)
        if self._alarm is None:
            self._alarm = self.loop.call_at(entry.deadline, self._check)
        try:
            # Without a timeout in its settings, the connection writes everything before it waits for anything. So
            # commands leave in the order of `_unanswered`.
            await self._connection.send_packed_command(packed, check_health=False)
        except BaseException as error:
            self.end(error)
            raise
        return await entry.replies

    async def _read(self) -> None:
        try:
            while True:
                try:
                    reply = await self._connection.read_response()
                except Exception as error:
                    if not is_reply(error):
                        raise
                    reply = error
                if not self._unanswered:
                    raise ConnectionError("the server sent something that was not asked for")
                entry = self._unanswered[0]
                entry.got.append(reply)
                if len(entry.got) == entry.count:
                    self._unanswered.popleft()
                    if not entry.replies.done():
                        entry.replies.set_result(entry.got)
        except BaseException as error:
            self._finish(error)
            if not isinstance(error, Exception):
                raise
        finally:
            await hang_up(self._connection)

    def _check(self) -> None:
        """Ends the connection if the oldest command has had no answer for too long. What was sent later can have none
        either, because answers come in order."""
        self._alarm = None
        if not self._unanswered:
            return
        deadline = self._unanswered[0].deadline
        if self.loop.time() >= deadline:
            self.end(TimeoutError(f"no answer within {self._timeout_seconds:g} s"))
        else:
            self._alarm = self.loop.call_at(deadline, self._check)

    def end(self, cause: BaseException) -> None:
        if self._finish(cause):
            self._reader.cancel()

    async def gone(self) -> None:
        """Returns when nothing of it is left. Otherwise an event loop that is closed now would complain."""
        await asyncio.wait({self._reader}, timeout=1)

    def _finish(self, cause: BaseException) -> bool:
        """Never to be used again: a reply that comes later would be taken for the reply to another command. Returns
        whether there was anything to end."""
        if self.ended is not None:
            return False
        ended = cause if isinstance(cause, Exception) else ConnectionError("the connection was closed")
        self.ended = ended
        if self.loop.is_closed():
            return False
        if self._alarm is not None:
            self._alarm.cancel()
        unanswered, self._unanswered = self._unanswered, deque()
        for entry in unanswered:
            if not entry.replies.done():
                entry.replies.set_exception(ended)
                entry.replies.exception()  # Retrieved here: the caller may have failed while it was writing.
        abort(self._connection)
        return True


class _Unanswered:
    __slots__ = ("count", "replies", "deadline", "got")

    def __init__(self, count: int, replies: asyncio.Future[list[Any]], deadline: float) -> None:
        self.count = count
        self.replies = replies
        self.deadline = deadline
        self.got: list[Any] = []


def pack(commands: Sequence[Command]) -> bytes:
    """In the Redis protocol, as one piece. redis-py's own function takes a tenth of the time of a whole call."""
    parts = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for part in command:
            data = part.encode() if isinstance(part, str) else part
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def retrieve(task: asyncio.Future[Any]) -> None:
    """For a task whose error its waiters have: none of them may be left."""
    if not task.cancelled():
        task.exception()


def abort(connection: Any) -> None:
    """Otherwise closing would wait until everything that was written has been sent, which may be never."""
    transport = getattr(getattr(connection, "_writer", None), "transport", None)
    if transport is not None:
        transport.abort()


async def hang_up(connection: Any) -> None:
    """Closes a connection of `redis.asyncio`. Never raises, and waits for nothing that the other side has to do."""
    abort(connection)
    try:
        await asyncio.wait_for(connection.disconnect(), 1)
    except Exception:
        pass
