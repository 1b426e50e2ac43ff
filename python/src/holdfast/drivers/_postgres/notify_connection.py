"""The connection of a driver that receives notifications. It is open while there are listeners."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from dataclasses import dataclass
from typing import Awaitable, Callable, Iterable, Optional, Sequence, Set

from ...core.driver import Claim, DriverListener, LeaseRef, Refusal, StopListening
from ...core.limits import MAX_HOLDER_ID_LENGTH
from ...core.store_answers import trimmed
from ...core.tasks import start_task
from ...errors import ClosedError, StoreError
from .._shared.waiting_claims import WaitingClaims
from .calls import AcquireAnswer
from . import deadlines
from .connections import Connections, DedicatedConnection
from .errors import store_error_from
from .notifications import FORCED_CHANNEL, WakeEvent, parse_events, parse_forced

_PING_SECONDS = 5.0
_DELIVERY_SECONDS = 3.0


@dataclass(frozen=True, eq=False)
class WaitingCall:
    """A call that asks for claims which wait."""

    id: str
    """New with every call: an event that it is part of was sent after the server had run this call."""
    address: str
    """What the call passes as the channel."""
    sent: float


class _Subscription:
    """One connection that listens. The one before it may still be closing, and must not affect this one."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[DedicatedConnection] = asyncio.get_running_loop().create_future()
        self.stopped = asyncio.Event()


class NotifyConnection:
    def __init__(
        self,
        connections: Connections,
        channel: str,
        notify: Callable[[str], Awaitable[object]],
        prepare: Callable[[], Awaitable[None]],
        listen_key: str,
    ) -> None:
        """`channel` is where the server sends what concerns the waiters of this driver. No other driver uses it.
        `notify` sends a payload there over another connection. `prepare` creates the tables if they are missing.
        `listen_key` is the statement that returns the key of the proofs."""
        self._connections = connections
        self._channel = channel
        self._notify = notify
        self._prepare = prepare
        self._listen_key = listen_key
        self._listeners: Set[DriverListener] = set()
        self._claims: WaitingClaims[WaitingCall] = WaitingClaims()
        self._key = ""
        """Of the proofs. Read again with every ping: it changes if the table was emptied."""
        self._current: Optional[_Subscription] = None
        self._on_test_message: Optional[Callable[[str], None]] = None
        self._tasks: Set[asyncio.Future[None]] = set()
        self._process = os.getpid()
        self._closed = False

    def sends(self, claims: Sequence[Claim]) -> WaitingCall:
        """A request for these claims, some of which wait, is about to be sent."""
        self._forget_parent()
        call_id = secrets.token_urlsafe(18)
        polls = "" if self._is_listening() else ":polls"
        call = WaitingCall(call_id, f"{self._channel}:{call_id}{polls}", time.monotonic())
        self._claims.sends(claims, call)
        return call

    def _is_listening(self) -> bool:
        opened = None if self._current is None else self._current.opened
        return opened is not None and opened.done() and not opened.cancelled() and opened.exception() is None

    def answered(self, call: WaitingCall, claims: Sequence[Claim], answers: Sequence[AcquireAnswer]) -> None:
        """The answers to it. Only a claim that was refused goes on waiting."""
        for claim, answer in zip(claims, answers):
            if not isinstance(answer, Refusal):
                self._claims.forget(claim.claim_id, call)

    def forget(self, leases: Iterable[LeaseRef]) -> None:
        """These claims no longer wait."""
        for lease in leases:
            self._claims.forget(lease.claim_id)

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
            await asyncio.wait(self._tasks, timeout=deadlines.CLOSE_SECONDS)

    def _forget_parent(self) -> None:
        """After a fork: the connection is the parent's, and so are the claims that wait. To close it here would end it
        for the parent."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._current = None
            self._tasks = set()
            self._listeners.clear()
            self._claims = WaitingClaims()

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
            connection = await self._open(subscription)
        except asyncio.CancelledError:
            # The event loop ends.
            subscription.opened.cancel()
            raise
        except Exception as error:
            subscription.opened.set_exception(error)
            return
        subscription.opened.set_result(connection)
        while True:
            try:
                await asyncio.wait_for(subscription.stopped.wait(), _PING_SECONDS)
                return
            except asyncio.TimeoutError:
                pass
            try:
                await self._read_key(connection)
            except Exception as error:
                if not subscription.stopped.is_set():
                    self._disconnected(subscription, error)
                    await _close_quietly(connection)
                return

    async def _read_key(self, connection: DedicatedConnection) -> None:
        rows = await connection.fetch(self._listen_key)
        key = rows[0].get("key") if rows else None
        if not isinstance(key, str) or key == "":
            raise StoreError("permission denied for the sequences holdfast_key_1 and holdfast_key_2. Waiters poll")
        self._key = key

    async def _open(self, subscription: _Subscription) -> DedicatedConnection:
        # This may be the first call of the driver.
        await self._prepare()
        connection = await self._connections.dedicate()
        connection.watch(lambda cause: self._disconnected(subscription, cause))
        try:
            await self._read_key(connection)
            await connection.listen([self._channel, FORCED_CHANNEL], self._on_notification)
            await self._test_delivery()
        except BaseException:
            await _close_quietly(connection)
            raise
        return connection

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
        if channel == FORCED_CHANNEL:
            self._on_forced(payload)
        elif channel == self._channel:
            if payload.startswith("["):
                for event in parse_events(payload):
                    self._on_event(event)
            elif self._on_test_message is not None:
                self._on_test_message(payload)

    def _on_event(self, event: WakeEvent) -> None:
        """Every role that can connect can send to every channel. An event that is about no claim of ours, or that is
        not proved, is ignored. An event of the call before the newest one only makes the claim ask: its grant may have
        ended. But the server may have run the two calls in the other order, or decided the newest one before the change
        that the event is about."""
        waiting = self._claims.find(event.claim_id)
        if waiting is None:
            return
        previous = waiting.previous
        is_newest = event.is_proved_by(self._key, waiting.call.id)
        if not is_newest and (previous is None or not event.is_proved_by(self._key, previous.id)):
            return
        for listener in list(self._listeners):
            if event.grant is None or not is_newest:
                listener.wake(waiting.claim.lock_name, event.claim_id)
            else:
                listener.granted(event.claim_id, trimmed(event.grant, waiting.claim))

    def _on_forced(self, payload: str) -> None:
        """Only a hint: for a lease that it watches, the core asks the store, with one request at a time."""
        lost, by = parse_forced(payload)
        for claim_id in lost:
            for listener in list(self._listeners):
                listener.lost(claim_id, StoreError(f"it was force-released by {by[:MAX_HOLDER_ID_LENGTH]}"))

    def _disconnected(self, subscription: _Subscription, cause: BaseException) -> None:
        if self._current is not subscription:
            return
        self._current = None
        subscription.stopped.set()
        listeners = list(self._listeners)
        self._listeners.clear()
        error = store_error_from(cause, place=self._connections.place, is_pool=self._connections.is_pool)
        for listener in listeners:
            listener.disconnected(error)

    async def _stop(self) -> None:
        current, self._current = self._current, None
        if current is None:
            return
        try:
            connection = await asyncio.shield(current.opened)
        except Exception:
            # One that failed to open needs no closing.
            return
        current.stopped.set()
        await _close_quietly(connection)


async def _close_quietly(connection: DedicatedConnection) -> None:
    """The connection is not used any more. An error while it closes, such as that it is broken, changes nothing."""
    try:
        await connection.close()
    except Exception:
        pass
