"""One connection to one server, for all commands of a driver, in the order in which they are sent.

The order matters: a claim that asks first has the first place in the queue, and the release of a claim that was given
up must not overtake the claim. A pool, which sends each command over any of its connections, has no order.

A command is never sent twice. If its connection ends before the answer, the outcome is unknown, and that is the answer.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any, Optional, Protocol, Sequence

from ...core.tasks import start_task
from .dial import Dial
from .loop_connection import LoopConnection
from .replies import Replies

Command = Sequence[str]


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
    """In the event loop: commands are written as they come, and replies are matched to them in their order."""

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
            self._connecting = start_task(self._connect(loop))
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

    def _connection(self) -> Any:
        if self.dial.is_async:
            return self.dial.connection(self._timeout_seconds, None)
        # With a timeout for the answers to its login.
        return LoopConnection(self.dial.connection(self._timeout_seconds, self._timeout_seconds))

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> _Session:
        try:
            connection = self._connection()
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


class _Session(asyncio.Protocol):
    """redis-py opens the connection, logs in and selects the database. From then on the bytes come here: its own reader
    would take a third of the time of a whole call, and another turn of the event loop."""

    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop, timeout_seconds: float) -> None:
        self.loop = loop
        self.process = os.getpid()
        """Of no use after a fork: two processes would read each other's replies from one connection."""
        self.ended: Optional[BaseException] = None
        self._connection = connection
        self._timeout_seconds = timeout_seconds
        self._replies = Replies()
        self._unanswered: deque[_Unanswered] = deque()
        self._alarm: Optional[asyncio.TimerHandle] = None
        self._over: asyncio.Future[None] = loop.create_future()
        self._cleaner = start_task(self._clean_up())
        reader, self._transport = connection._reader, connection._writer.transport
        self._stream = self._transport.get_protocol()
        self._transport.set_protocol(self)
        # What came before, such as the end of the connection, does not come again.
        if reader._buffer:
            self.data_received(bytes(reader._buffer))
        if reader._eof or self._transport.is_closing():
            self.end(ConnectionError(_CLOSED_BY_SERVER))

    def exchange(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        if self.ended is not None:
            raise self.ended
        # First: if this fails, nothing is sent, and there is no answer to wait for.
        packed = pack(commands)
        entry = _Unanswered(len(commands), self.loop.create_future(), self.loop.time() + self._timeout_seconds)
        self._unanswered.append(entry)
        if self._alarm is None:
            self._alarm = self.loop.call_at(entry.deadline, self._check)
        try:
            # It never waits. So commands leave in the order of `_unanswered`.
            self._transport.write(packed)
        except BaseException as error:
            self.end(error)
            raise
        return entry.replies

    def data_received(self, data: bytes) -> None:
        if self.ended is not None:
            return
        try:
            for reply in self._replies.feed(data):
                self._received(reply)
        except Exception as error:
            self.end(error)

    def _received(self, reply: Any) -> None:
        if not self._unanswered:
            # A server that has too many connections says so without being asked.
            text = str(reply) if isinstance(reply, Exception) else "the server sent something that was not asked for"
            raise ConnectionError(text)
        entry = self._unanswered[0]
        entry.got.append(reply)
        if len(entry.got) == entry.count:
            self._unanswered.popleft()
            if not entry.replies.done():
                entry.replies.set_result(entry.got)

    def connection_lost(self, error: Optional[Exception]) -> None:
        # redis-py waits for it when it closes the connection.
        self._stream.connection_lost(error)
        self.end(error or ConnectionError(_CLOSED_BY_SERVER))

    async def _clean_up(self) -> None:
        """Also if the event loop ends and cancels all tasks, before anyone has closed the driver."""
        try:
            await self._over
        except BaseException as error:
            self.end(error)
            raise
        finally:
            if self.process == os.getpid():
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
        """Never to be used again: a reply that comes later would be taken for the reply to another command."""
        if self.ended is not None:
            return
        ended = cause if isinstance(cause, Exception) else ConnectionError("the connection was closed")
        self.ended = ended
        # In a forked process the event loop is a copy. But its epoll instance is the parent's, and the parent would
        # never read from its connection again.
        if self.loop.is_closed() or self.process != os.getpid():
            return
        if self._alarm is not None:
            self._alarm.cancel()
        unanswered, self._unanswered = self._unanswered, deque()
        for entry in unanswered:
            if not entry.replies.done():
                entry.replies.set_exception(ended)
                entry.replies.exception()  # Retrieved here: the caller may have failed while it was writing.
        abort(self._connection)
        if not self._over.done():
            self._over.set_result(None)

    async def gone(self) -> None:
        """Returns when nothing of it is left. Otherwise an event loop that is closed now would complain."""
        await asyncio.wait({self._cleaner}, timeout=1)


_CLOSED_BY_SERVER = "Connection closed by server."


class _Unanswered:
    __slots__ = ("count", "replies", "deadline", "got")

    def __init__(self, count: int, replies: asyncio.Future[list[Any]], deadline: float) -> None:
        self.count = count
        self.replies = replies
        self.deadline = deadline
        self.got: list[Any] = []


def pack(commands: Sequence[Command]) -> bytes:
    """In the Redis protocol, as one piece. redis-py's own function takes a tenth of the time of a whole call.

    All parts are plain `str`: what is measured and what is sent must be the same. Bytes that are no UTF-8 are in them
    as lone surrogates, which names cannot have."""
    text = "".join([f"*{len(command)}\r\n" + "".join([_part(part) for part in command]) for command in commands])
    return text.encode("utf-8", "surrogateescape")


def _part(part: str) -> str:
    size = len(part) if part.isascii() else len(part.encode("utf-8", "surrogateescape"))
    return f"${size}\r\n{part}\r\n"


def retrieve(task: asyncio.Future[Any]) -> None:
    """For a task whose error its waiters have: none of them may be left."""
    if not task.cancelled():
        task.exception()


def abort(connection: Any) -> None:
    """Otherwise closing would wait until everything that was written has been sent, which may be never."""
    transport = getattr(getattr(connection, "_writer", None), "transport", None)
    if transport is not None:
        try:
            transport.abort()
        except RuntimeError:
            pass  # The event loop was closed, and the socket with it.


async def hang_up(connection: Any) -> None:
    """Closes a connection of `redis.asyncio`. Never raises, and waits for nothing that the other side has to do."""
    abort(connection)
    try:
        await asyncio.wait_for(connection.disconnect(), 1)
    except Exception:
        pass
