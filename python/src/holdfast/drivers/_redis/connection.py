"""One connection to one server.

Commands are written as they come, and replies are matched to them in their order. A command is never sent twice. If its
connection ends before the answer, the outcome is unknown, and that is the answer.

redis-py does not read and write here: its reader takes a third of the time of a whole call, and it sends a release
again after a lost reply, and returns the answer to the second copy, which says that there was no lease.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any, Callable, Optional, Sequence, TypeVar, cast

from ...core.tasks import start_task
from .dial import Dial
from .replies import Replies

Command = Sequence[str]
C = TypeVar("C", bound="Connection")
_TURNS_TO_READ = 3


async def opened(connection: C, dial: Dial) -> C:
    """Connects, logs in and selects the database."""
    try:
        async with asyncio.timeout(min(connection.timeout_seconds, dial.connect_seconds)):
            await dial.connect(connection)
            login = await dial.login()
            for reply in await connection.exchange(login) if login else []:
                if isinstance(reply, Exception):
                    raise reply
            # What the server says without being asked, such as that it has too many connections, must not be taken
            # for the reply to the first command.
            for _ in range(_TURNS_TO_READ):
                await asyncio.sleep(0)
        if connection.ended is not None:
            raise connection.ended
        return connection
    except BaseException:
        connection.close()
        await connection.gone()
        raise


class Connection(asyncio.Protocol):
    def __init__(self, timeout_seconds: float) -> None:
        """Made in the event loop that uses it, and opened with `opened`."""
        self.loop = asyncio.get_running_loop()
        self.process = os.getpid()
        """Of no use after a fork: two processes would read each other's replies from one connection."""
        self.timeout_seconds = timeout_seconds
        self.ended: Optional[Exception] = None
        self.on_end: Optional[Callable[[Exception], None]] = None
        """Called once, if the connection ends by itself."""
        self._transport: Optional[asyncio.Transport] = None
        self._replies = Replies()
        self._unanswered: deque[_Unanswered] = deque()
        self._alarm: Optional[asyncio.TimerHandle] = None
        self._lost = asyncio.Event()
        self._lost.set()
        self._guard: Optional[asyncio.Task[None]] = None

    def exchange(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        """Sends the commands one after the other and returns their replies. A reply that is an error of the server is
        returned as an exception. Raises if the connection ends or no answer comes in time: the outcome is unknown."""
        if self.ended is not None or self._transport is None:
            raise self.ended or ConnectionError("not connected")
        # First: if this fails, nothing is sent, and there is no answer to wait for.
        packed = pack(commands)
        entry = _Unanswered(len(commands), self.loop.create_future(), self.loop.time() + self.timeout_seconds)
        self._unanswered.append(entry)
        if self._alarm is None:
            self._alarm = self.loop.call_at(entry.deadline, self._check)
        try:
            # It never waits. So commands leave in the order of `_unanswered`.
            self._transport.write(packed)
        except Exception as error:
            self.end(error)
            raise
        return entry.replies

    def end(self, cause: Exception) -> None:
        """Never to be used again: a reply that comes later would be taken for the reply to another command."""
        if self.ended is not None:
            return
        self.ended = cause
        # In a forked process the event loop is a copy. But its epoll instance is the parent's, and the parent would
        # never read from its connection again.
        if self.loop.is_closed() or self.process != os.getpid():
            return
        if self._alarm is not None:
            self._alarm.cancel()
        unanswered, self._unanswered = self._unanswered, deque()
        for entry in unanswered:
            if not entry.replies.done():
                entry.replies.set_exception(self.ended)
                entry.replies.exception()  # Retrieved here: the caller may have failed while it was writing.
        if self._transport is not None:
            # Its `close` would wait until everything that was written has been sent, which may be never.
            self._transport.abort()
        if self.on_end is not None:
            self.on_end(self.ended)

    def close(self) -> None:
        """Ends it at once, without a call of `on_end`."""
        self.on_end = None
        self.end(ConnectionError("the connection was closed"))

    async def gone(self) -> None:
        """Returns when nothing of it is left. Otherwise an event loop that is closed now would complain."""
        if self._guard is not None and self.process == os.getpid():
            await asyncio.wait({self._guard}, timeout=1)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._lost.clear()
        self._guard = start_task(self._end_with_the_loop())
        if self.ended is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.ended is not None:
            return
        try:
            for reply in self._replies.feed(data):
                self.received(reply)
        except Exception as error:
            self.end(error)

    def connection_lost(self, error: Optional[Exception]) -> None:
        self.end(error or ConnectionError("Connection closed by server."))
        self._lost.set()

    def received(self, reply: Any) -> None:
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

    async def _end_with_the_loop(self) -> None:
        """An event loop that ends cancels all tasks, perhaps before anyone has closed the driver."""
        try:
            await self._lost.wait()
        except asyncio.CancelledError:
            self.close()
            if self.process == os.getpid():
                await self._lost.wait()
            raise

    def _check(self) -> None:
        """Ends the connection if the oldest command has had no answer for too long. What was sent later can have none
        either, because answers come in order."""
        self._alarm = None
        if not self._unanswered:
            return
        deadline = self._unanswered[0].deadline
        if self.loop.time() >= deadline:
            self.end(TimeoutError(f"no answer within {self.timeout_seconds:g} s"))
        else:
            self._alarm = self.loop.call_at(deadline, self._check)


class Subscriber(Connection):
    """Listens to channels. It ends with its connection and never connects again by itself: that would hide that
    messages were missed."""

    def __init__(self, timeout_seconds: float, on_message: Callable[[str, str], None]) -> None:
        """`on_message` gets channel and text."""
        super().__init__(timeout_seconds)
        self._on_message = on_message

    async def subscribe(self, channel: str, sharded: bool) -> None:
        """Returns when the server has confirmed it."""
        [reply] = await self.exchange([("SSUBSCRIBE" if sharded else "SUBSCRIBE", channel)])
        if isinstance(reply, Exception):
            raise reply

    def received(self, reply: Any) -> None:
        kind = reply[0] if isinstance(reply, list) and len(reply) > 2 else None
        if kind in (b"message", b"smessage"):
            channel, text = (each.decode("utf-8", "replace") for each in reply[1:3])
            self._on_message(channel, text)
        elif kind == b"sunsubscribe":
            raise ConnectionError("the slot moved to another node")
        else:
            super().received(reply)


class _Unanswered:
    __slots__ = ("count", "replies", "deadline", "got")

    def __init__(self, count: int, replies: asyncio.Future[list[Any]], deadline: float) -> None:
        self.count = count
        self.replies = replies
        self.deadline = deadline
        self.got: list[Any] = []


def pack(commands: Sequence[Command]) -> bytes:
    """In the Redis protocol, as one piece.

    All parts are plain `str`: what is measured and what is sent must be the same. Bytes that are no UTF-8 are in them
    as lone surrogates, which names cannot have."""
    text = "".join([f"*{len(command)}\r\n" + "".join([_part(part) for part in command]) for command in commands])
    return text.encode("utf-8", "surrogateescape")


def _part(part: str) -> str:
    size = len(part) if part.isascii() else len(part.encode("utf-8", "surrogateescape"))
    return f"${size}\r\n{part}\r\n"
