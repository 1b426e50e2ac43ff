"""One connection of a synchronous client, used by one thread of the driver's own. See wire.py, and `is_for_loop` in
dial.py."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import threading
from typing import Any, NamedTuple, Optional, Sequence

from .dial import Dial
from .failures import is_reply, is_timeout
from .wire import Command, pack


class _Job(NamedTuple):
    packed: bytes
    size: int
    """The number of its commands."""
    loop: asyncio.AbstractEventLoop
    replies: asyncio.Future[list[Any]]


class ThreadWire:
    """What was asked for while the thread was waiting for answers goes out together with its next turn. If no answer
    comes, it fails with the commands that were sent: a server that does not answer delays no call by more than one
    timeout, however many calls there are."""

    def __init__(self, dial: Dial, timeout_seconds: float) -> None:
        self.dial = dial
        self._timeout_seconds = timeout_seconds
        self._jobs: queue.SimpleQueue[Optional[_Job]] = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._connection: Any = None
        self._fresh = False
        self._process = os.getpid()
        self._closed = False

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        # A call of several steps may come here after `close`. The thread that is about to end would not answer it, and
        # nothing would ever end another one.
        if self._closed:
            raise ConnectionError("the connection was closed")
        if self._process != os.getpid():
            self._forget_parent()
        loop = asyncio.get_running_loop()
        # Packed here: what cannot be sent fails its own call, and not those that go out together with it.
        job = _Job(pack(commands), len(commands), loop, loop.create_future())
        self._jobs.put(job)
        if self._thread is None or not self._thread.is_alive():
            # A daemon: a server that does not answer must not keep the process from ending.
            self._thread = threading.Thread(target=self._work, name="holdfast-redis", daemon=True)
            self._thread.start()
        return await job.replies

    def _forget_parent(self) -> None:
        """After a fork: two processes would read each other's replies from one connection. The thread has no copy."""
        self._process = os.getpid()
        self._jobs = queue.SimpleQueue()
        self._thread = None
        # redis-py closes it without ending it for the parent.
        self._disconnect()

    def drop(self) -> None:
        self._fresh = True

    async def close(self) -> None:
        self._closed = True
        if self._process != os.getpid():
            return
        if self._thread is not None:
            self._jobs.put(None)
        shut_down(self._connection)

    def _work(self) -> None:
        while True:
            jobs = [self._jobs.get()]
            while not self._jobs.empty() and len(jobs) < _MOST_AT_ONCE:
                jobs.append(self._jobs.get())
            asked = [job for job in jobs if job is not None]
            if asked:
                self._answer(asked)
            if len(asked) < len(jobs):
                self._disconnect()
                return

    def _answer(self, jobs: Sequence[_Job]) -> None:
        try:
            replies = self._converse([job.packed for job in jobs], sum(job.size for job in jobs))
        except BaseException as error:
            self._disconnect()
            cause = error if isinstance(error, Exception) else ConnectionError("the connection was closed")
            for job in jobs:
                _settle(job, None, cause)
            if self._closed or is_timeout(cause):
                self._fail_waiting(cause)
            return
        at = 0
        for job in jobs:
            _settle(job, replies[at : at + job.size], None)
            at += job.size

    def _fail_waiting(self, cause: Exception) -> None:
        for _ in range(self._jobs.qsize()):
            job = self._jobs.get()
            if job is None:
                self._jobs.put(None)
            else:
                _settle(job, None, cause)

    def _converse(self, packed: Sequence[bytes], count: int) -> list[Any]:
        if self._fresh:
            self._fresh = False
            self._disconnect()
        connection = self._connection
        if connection is None:
            connection = self.dial.connection(self._timeout_seconds, self._timeout_seconds)
            connection.connect()
            self._connection = connection
        elif _has_ended(connection):
            # The server closed it while it was idle. Nothing has been sent, so another one can be used.
            connection.disconnect()
            connection.connect()
        connection.send_packed_command([b"".join(packed)], check_health=False)
        return [_reply(connection) for _ in range(count)]

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.disconnect()
        except Exception:
            pass


_MOST_AT_ONCE = 100


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except Exception as error:
        if not is_reply(error):
            raise
        return error


def _has_ended(connection: Any) -> bool:
    """Whether an idle connection was closed by the server, or has data that was not asked for."""
    try:
        return bool(connection.can_read(timeout=0))
    except Exception:
        return True


def shut_down(connection: Any) -> None:
    """Ends a connection that another thread reads from. That thread cleans up: redis-py's `disconnect` would take the
    parser away from under it."""
    sock = getattr(connection, "_sock", None)
    try:
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def _settle(job: _Job, replies: Optional[list[Any]], error: Optional[Exception]) -> None:
    def settle() -> None:
        if job.replies.done():
            return
        if error is not None:
            job.replies.set_exception(error)
        else:
            job.replies.set_result(replies or [])

    try:
        job.loop.call_soon_threadsafe(settle)
    except RuntimeError:
        pass  # The event loop was closed, and no caller waits any more.
