"""A connection that listens to channels. It ends with its connection and never connects again by itself.

redis-py's own `PubSub` connects and subscribes again without a word. That would hide that messages were missed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from typing import Any, Callable, Optional, Protocol

from ...core.tasks import start_task
from .dial import Dial
from .failures import is_reply
from .thread_wire import shut_down
from .wire import abort, hang_up

OnMessage = Callable[[str, str], None]
"""Called with channel and text."""
OnClosed = Callable[[Exception], None]
"""Called once, if the connection ends by itself."""


class Subscriber(Protocol):
    async def subscribe(self, channel: str, sharded: bool) -> None:
        """Returns when the server has confirmed it."""

    def end(self) -> None:
        """Closes the connection at once. Never raises."""

    async def gone(self) -> None:
        """Returns when nothing of it is left."""


async def open_subscriber(
    dial: Dial, on_message: OnMessage, on_closed: OnClosed, timeout_seconds: float
) -> Subscriber:
    loop = asyncio.get_running_loop()
    subscriber = (_AsyncSubscriber if dial.is_async else _ThreadSubscriber)(loop, on_message, on_closed)
    await subscriber.open(dial.connection(timeout_seconds, None), timeout_seconds)
    return subscriber


class _Subscriber:
    def __init__(self, loop: asyncio.AbstractEventLoop, on_message: OnMessage, on_closed: OnClosed) -> None:
        self._loop = loop
        self._on_message = on_message
        self._on_closed = on_closed
        self._unconfirmed: deque[asyncio.Future[None]] = deque()
        self._ended = False
        self._connection: Any = None
        self._process = os.getpid()

    async def open(self, connection: Any, timeout_seconds: float) -> None:
        raise NotImplementedError

    async def subscribe(self, channel: str, sharded: bool) -> None:
        if self._ended:
            raise ConnectionError("the subscription has ended")
        confirmed = self._loop.create_future()
        self._unconfirmed.append(confirmed)
        await self._send("SSUBSCRIBE" if sharded else "SUBSCRIBE", channel)
        await confirmed

    async def _send(self, command: str, channel: str) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self._ended = True
        for each in self._unconfirmed:
            if not each.done():
                each.set_exception(ConnectionError("the subscription has ended"))
                each.exception()

    async def gone(self) -> None:
        return None

    def _received(self, reply: Any) -> None:
        if self._ended:
            return
        if isinstance(reply, Exception):
            # The answer to a subscription: answers come in the order of the requests.
            if self._unconfirmed:
                self._confirm(reply)
            else:
                self._lost(reply)
            return
        kind, channel, content = (_text(each) for each in reply[:3])
        if kind in ("message", "smessage"):
            self._on_message(channel, content)
        elif kind in ("subscribe", "ssubscribe") and self._unconfirmed:
            self._confirm(None)
        elif kind == "sunsubscribe":
            self._lost(ConnectionError("the slot moved to another node"))

    def _confirm(self, error: Optional[Exception]) -> None:
        confirmed = self._unconfirmed.popleft()
        if confirmed.done():
            return
        if error is None:
            confirmed.set_result(None)
        else:
            confirmed.set_exception(error)

    def _lost(self, cause: Exception) -> None:
        if self._ended:
            return
        self.end()
        self._on_closed(cause)


class _AsyncSubscriber(_Subscriber):
    _reader: Optional[asyncio.Task[None]] = None

    async def open(self, connection: Any, timeout_seconds: float) -> None:
        self._connection = connection
        try:
            await asyncio.wait_for(connection.connect(), timeout_seconds)
        except BaseException:
            await hang_up(connection)
            raise
        self._reader = start_task(self._read())

    async def _send(self, command: str, channel: str) -> None:
        packed = self._connection.pack_command(command, channel)
        await self._connection.send_packed_command(packed, check_health=False)

    async def _read(self) -> None:
        try:
            while not self._ended:
                try:
                    reply = await self._connection.read_response()
                except Exception as error:
                    if not is_reply(error):
                        raise
                    reply = error
                self._received(reply)
        except Exception as error:
            self._lost(error)
        finally:
            # In a forked process that ends the copy of its event loop, the connection is the parent's.
            if self._process == os.getpid():
                await hang_up(self._connection)

    def end(self) -> None:
        super().end()
        if self._process != os.getpid():
            return
        abort(self._connection)
        # The task that calls this may be the reader itself. It ends by its own loop, and the other one by this.
        if self._reader is not None and asyncio.current_task() is not self._reader:
            self._reader.cancel()

    async def gone(self) -> None:
        if self._reader is not None:
            await asyncio.wait({self._reader}, timeout=1)


class _ThreadSubscriber(_Subscriber):
    async def open(self, connection: Any, timeout_seconds: float) -> None:
        self._connection = connection
        opened: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, args=(opened,), name="holdfast-redis-listen", daemon=True).start()
        try:
            await asyncio.wait_for(opened, timeout_seconds)
        except BaseException:
            self.end()
            raise

    def _run(self, opened: asyncio.Future[None]) -> None:
        try:
            try:
                self._connection.connect()
            except Exception as error:
                self._loop.call_soon_threadsafe(_fail, opened, error)
            else:
                self._loop.call_soon_threadsafe(_succeed, opened)
                self._read()
        except RuntimeError:
            pass  # The event loop was closed, and no listener is left.
        finally:
            try:
                self._connection.disconnect()
            except Exception:
                pass

    async def _send(self, command: str, channel: str) -> None:
        # Two threads use the connection, but only one of them sends and only one of them reads.
        packed = self._connection.pack_command(command, channel)
        self._connection.send_packed_command(packed, check_health=False)

    def _read(self) -> None:
        try:
            while not self._ended:
                try:
                    reply = self._connection.read_response()
                except Exception as error:
                    if not is_reply(error):
                        raise
                    reply = error
                self._loop.call_soon_threadsafe(self._received, reply)
        except Exception as error:
            self._loop.call_soon_threadsafe(self._lost, error)

    def end(self) -> None:
        super().end()
        if self._process == os.getpid():
            shut_down(self._connection)


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
