"""The connection of a driver that receives notifications. It is open while there are listeners."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import Awaitable, Callable, Mapping, Optional, Set

from ...core.driver import DriverListener, Grant, StopListening
from ...core.tasks import start_task
from ...errors import ClosedError, StoreError
from .arrays import text_array
from .calls import grants_in
from .connections import CLOSE_SECONDS, Connections, Session
from .errors import store_error_from
from .hint_queue import Hint, HintQueue
from .notifications import STOLEN_CHANNEL, parse_events, parse_theft

_PING_SECONDS = 5.0
_PONG_SECONDS = 10.0
_DELIVERY_SECONDS = 3.0


class _Subscription:
    """One connection that listens. The one before it may still be closing, and must not affect this one."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self.stopped = asyncio.Event()


class NotifyConnection:
    def __init__(
        self,
        connections: Connections,
        channel: str,
        notify: Callable[[str], Awaitable[object]],
        granted: str,
    ) -> None:
        """`channel` is where the server sends what concerns the waiters of this driver. No other driver uses it.
        `notify` sends a payload there over another connection. `granted` is the statement that says which claims hold
        their lock."""
        self._connections = connections
        self._channel = channel
        self._notify = notify
        self._granted = granted
        self._listeners: Set[DriverListener] = set()
        self._hints = HintQueue(self._listeners, self._confirm)
        self._current: Optional[_Subscription] = None
        self._on_test_message: Optional[Callable[[str], None]] = None
        self._tasks: Set[asyncio.Future[None]] = set()
        self._process = os.getpid()
        self._closed = False

    async def listen(self, listener: DriverListener) -> StopListening:
        if self._closed:
            raise ClosedError("the postgres driver is closed")
        self._forget_parent()
        current = self._current or self._subscribe()
        # Added before the connection is open, so that it misses nothing.
        self._listeners.add(listener)
        failure: Optional[BaseException] = None
        try:
            # Another listener may wait for the same connection, so that a cancellation must not end it.
            await asyncio.shield(current.opened)
        except Exception as error:
            failure = error
        if failure is not None:
            self._listeners.discard(listener)
            if self._current is current:
                self._current = None
            raise store_error_from(failure, place=self._connections.place, is_pool=self._connections.is_pool)

        async def stop() -> None:
            self._listeners.discard(listener)
            if not self._listeners:
                await self._stop()

        return stop

    async def close(self) -> None:
        self._closed = True
        self._forget_parent()
        self._listeners.clear()
        await self._stop()
        if self._tasks:
            # The event loop may end after this.
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)

    def _forget_parent(self) -> None:
        """After a fork: the connection is the parent's. To close it here would end it for the parent."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._current = None
            self._tasks = set()
            self._listeners.clear()
            self._hints = HintQueue(self._listeners, self._confirm)

    def _subscribe(self) -> _Subscription:
        subscription = self._current = _Subscription()
        # A failure is reported to the caller of `listen`, who may have given up meanwhile.
        subscription.opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())
        task = start_task(self._open_and_ping(subscription))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return subscription

    async def _open_and_ping(self, subscription: _Subscription) -> None:
        """A connection without traffic cannot be told from a half-open one, and idle timeouts would end it."""
        try:
            session = await self._open(subscription)
        except asyncio.CancelledError:
            # The event loop ends.
            subscription.opened.cancel()
            raise
        except Exception as error:
            subscription.opened.set_exception(error)
            return
        subscription.opened.set_result(session)
        while True:
            try:
                # A ping in flight is never cancelled: the connection may be the caller's.
                await asyncio.wait_for(subscription.stopped.wait(), _PING_SECONDS)
                return
            except asyncio.TimeoutError:
                pass
            try:
                await session.fetch("SELECT 1", (), _PONG_SECONDS)
            except Exception as error:
                if not subscription.stopped.is_set():
                    self._disconnected(subscription, error)
                    await _close_quietly(session)
                return

    async def _open(self, subscription: _Subscription) -> Session:
        session = await self._connections.dedicate()
        session.watch(lambda cause: self._disconnected(subscription, cause))
        try:
            await session.listen([self._channel, STOLEN_CHANNEL], self._on_notification)
            await self._test_delivery()
        except BaseException:
            await _close_quietly(session)
            raise
        return session

    async def _test_delivery(self) -> None:
        """A pooler in transaction mode accepts LISTEN, but no notification ever arrives."""
        # Random, so that no other client can send it and hide that nothing arrives.
        payload = f"hello {secrets.token_hex(12)}"
        arrived = asyncio.Event()

        def receive(received: str) -> None:
            if received == payload:
                arrived.set()

        self._on_test_message = receive
        try:
            await self._notify(payload)
            # Only from here: on a busy client the request above may have waited for others.
            await asyncio.wait_for(arrived.wait(), _DELIVERY_SECONDS)
            return
        except asyncio.TimeoutError:
            pass
        finally:
            self._on_test_message = None
        raise StoreError(
            "notifications do not arrive, probably because of a pooler in transaction mode in between. Waiters poll. "
            "Connect the driver to PostgreSQL directly to have them woken"
        )

    def _on_notification(self, channel: str, payload: str) -> None:
        if channel == STOLEN_CHANNEL:
            lost, by = parse_theft(payload)
            for claim_id in lost:
                self._hints.add(claim_id, Hint("lost", by))
        elif channel == self._channel:
            if payload.startswith("["):
                for kind, claim_id, lock_name in parse_events(payload):
                    self._hints.add(claim_id, Hint(kind, lock_name))
            elif self._on_test_message is not None:
                self._on_test_message(payload)

    async def _confirm(self, claims: Mapping[str, str]) -> Mapping[str, Grant]:
        """Uses the connection that listens, so that it does not have to wait for a free one of the pool."""
        if self._current is None:
            return {}
        session = await asyncio.shield(self._current.opened)
        rows = await session.fetch(self._granted, [text_array(claims.values()), text_array(claims.keys())])
        return grants_in(rows[0])

    def _disconnected(self, subscription: _Subscription, cause: BaseException) -> None:
        if self._current is not subscription:
            return
        self._current = None
        subscription.stopped.set()
        self._hints.clear()
        listeners = list(self._listeners)
        self._listeners.clear()
        error = store_error_from(cause, place=self._connections.place, is_pool=self._connections.is_pool)
        for listener in listeners:
            listener.disconnected(error)

    async def _stop(self) -> None:
        current, self._current = self._current, None
        self._hints.clear()
        if current is None:
            return
        try:
            session = await asyncio.shield(current.opened)
        except Exception:
            # One that failed to open needs no closing.
            return
        current.stopped.set()
        await _close_quietly(session)


async def _close_quietly(session: Session) -> None:
    """The connection is not used any more. An error while it closes, such as that it is broken, changes nothing."""
    try:
        await session.close()
    except Exception:
        pass
