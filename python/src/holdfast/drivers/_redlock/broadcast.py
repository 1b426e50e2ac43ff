"""Notifies the waiters of a Redlock that a lock was released, and passes on forced releases.

The nodes have no queue, so the message goes to every subscriber. Each node publishes it in the same step as the
release, and a client subscribes to at least a quorum. Waiters are woken when the message has arrived from a quorum of
the nodes. Before that, a claim would be refused, and would not ask again until its next poll. If it does not arrive
from a quorum, because nodes are down or not subscribed to, waiters are woken a little later.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence

from ...core.driver import DriverListener, LeaseRef, StopListening
from ...core.tasks import ignore_outcome, start_task
from ...errors import ClosedError, StoreError
from .._redis.connection import Subscriber
from .._redis.failures import store_error
from .._redis.keys import FORCED_CHANNEL, RELEASED_CHANNEL
from .._redis.records import json_text
from .._redis.subscription import subscribe_to_forced, tell_forced
from .node import VotingNode

_MAX_REMEMBERED = 1_000
_SUBSCRIBE_AGAIN_SECONDS = 1.0
_PATIENCE_SECONDS = 0.15
"""How long to wait for the message from a quorum. A claim that asks earlier is refused. If a node is further away than
this, a hand-off takes one more request."""


@dataclass(eq=False)
class _Session:
    subscribers: set[Subscriber] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    all: list[Subscriber] = field(default_factory=list)
    """Also those that are not subscribed yet."""
    over: bool = False

    def end(self) -> None:
        self.over = True
        for task in self.tasks:
            task.cancel()
        for subscriber in self.all:
            subscriber.close()

    async def gone(self) -> None:
        """Returns when nothing of it is left. Otherwise an event loop that is closed now would complain."""
        if self.tasks:
            await asyncio.wait(set(self.tasks), timeout=1)
        await asyncio.gather(*(each.gone() for each in self.all))


@dataclass
class _Received:
    """A message, and the nodes from which it arrived."""

    timer: asyncio.TimerHandle
    """Wakes the waiters if the message does not arrive from a quorum."""
    senders: set[VotingNode] = field(default_factory=set)


def message_of(lease: LeaseRef, call_id: str) -> str:
    """`call_id` is new with each call to release: a repeated release wakes waiters again."""
    return json_text([lease.lock_name, lease.claim_id, call_id])


class ReleaseBroadcast:
    def __init__(self, nodes: Sequence[VotingNode], quorum: int, timeout_seconds: float) -> None:
        self._nodes = nodes
        self._quorum = quorum
        self._timeout_seconds = timeout_seconds
        self._listeners: list[DriverListener] = []
        self._received: dict[str, _Received] = {}
        self._session: Optional[_Session] = None
        self._starting: Optional[asyncio.Task[_Session]] = None
        self._newest: Optional[_Session] = None
        self._owner: Optional[tuple[asyncio.AbstractEventLoop, int]] = None
        """The event loop and the process of the subscriptions."""
        self._closed = False

    async def listen(self, listener: DriverListener) -> StopListening:
        self._forget_foreign()
        while self._session is None:
            if self._closed:
                raise ClosedError("the redlock driver is closed")
            if self._starting is None:
                self._starting = start_task(self._start())
            starting = self._starting
            try:
                session = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # `end` has cancelled the start, not this call. The core would take it for the end of its own task.
                if not starting.cancelled():
                    raise
                continue
            finally:
                if self._starting is starting:
                    self._starting = None
            # It may have ended before this caller came to its turn.
            if not session.over:
                self._session = session
        self._listeners.append(listener)

        async def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if not self._listeners:
                self.end()

        return stop

    def end(self) -> None:
        session, self._session = self._session, None
        self._listeners = []
        for received in self._received.values():
            received.timer.cancel()
        self._received.clear()
        starting, self._starting = self._starting, None
        if starting is not None and not starting.cancel() and not starting.cancelled() and not starting.exception():
            # It has started, but the caller that waits for it has not had its turn yet.
            session = starting.result()
        if session is not None:
            session.end()

    async def close(self) -> None:
        self._closed = True
        self._forget_foreign()
        self.end()
        newest = self._newest
        if newest is not None:
            # One that is being started ends only with its task, which comes to its turn later.
            newest.end()
            await newest.gone()

    def _forget_foreign(self) -> None:
        """Forgets subscriptions whose event loop is gone, and after a fork those of the parent: to end them here would
        end them there."""
        owner = (asyncio.get_running_loop(), os.getpid())
        before, self._owner = self._owner, owner
        if before is not None and before != owner and (before[0].is_closed() or before[1] != owner[1]):
            self._session = self._starting = self._newest = None
            self._listeners = []
            self._received = {}

    async def _start(self) -> _Session:
        session = self._newest = _Session()
        enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failures: list[BaseException] = []

        def tried(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                failures.append(error)
            if enough.done():
                return
            if len(session.subscribers) >= self._quorum:
                enough.set_result(None)
            elif len(failures) > len(self._nodes) - self._quorum:
                enough.set_exception(failures[0])

        for node in self._nodes:
            self._in_background(session, self._subscribe(session, node)).add_done_callback(tried)
        try:
            await enough
        except BaseException:
            session.end()
            raise
        return session

    def _in_background(self, session: _Session, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = start_task(work)
        session.tasks.add(task)

        def done(ended: asyncio.Task[None]) -> None:
            session.tasks.discard(ended)
            if not ended.cancelled():
                ended.exception()

        task.add_done_callback(done)
        return task

    async def _subscribe(self, session: _Session, node: VotingNode) -> None:
        """Raises if it fails. Another attempt is scheduled all the same: while the other nodes are a quorum, nothing
        else would subscribe to this one again."""
        opening = start_task(self._open(session, node))
        # It may fail when its own end was asked for, and then no one waits for it.
        opening.add_done_callback(ignore_outcome)
        try:
            await asyncio.wait_for(opening, self._timeout_seconds)
            return
        except Exception as error:
            failure = store_error("subscribe", error, node.place)
        if not session.over:
            self._in_background(session, self._subscribe_later(session, node))
        raise failure

    async def _subscribe_later(self, session: _Session, node: VotingNode) -> None:
        await asyncio.sleep(_SUBSCRIBE_AGAIN_SECONDS)
        await self._subscribe(session, node)

    async def _open(self, session: _Session, node: VotingNode) -> None:
        def ended(cause: Exception) -> None:
            session.subscribers.remove(subscriber)
            session.all.remove(subscriber)
            if len(session.subscribers) < self._quorum:
                self._lost(session, store_error("listen", cause, node.place))
            elif not session.over:
                self._in_background(session, self._subscribe_later(session, node))

        (server,) = await node.driver.link.nodes()
        subscriber = await server.subscriber(lambda channel, text: self._received_on(channel, node, text))
        session.all.append(subscriber)
        try:
            await asyncio.gather(subscriber.subscribe(RELEASED_CHANNEL, False), subscribe_to_forced(subscriber))
            if session.over or subscriber.ended is not None:
                raise StoreError("the subscription ended while it was opened")
        except BaseException:
            subscriber.close()
            session.all.remove(subscriber)
            await subscriber.gone()
            raise
        subscriber.on_end = ended
        session.subscribers.add(subscriber)

    def _lost(self, session: _Session, cause: Exception) -> None:
        if session.over:
            return
        listeners = self._listeners
        session.end()
        if self._session is session:
            self.end()
        for listener in listeners:
            listener.disconnected(cause)

    def _received_on(self, channel: str, node: VotingNode, text: str) -> None:
        if channel == FORCED_CHANNEL:
            tell_forced(text, self._listeners)
        else:
            self._message(node, text)

    def _message(self, node: VotingNode, text: str) -> None:
        lock_name = _lock_name_in(text)
        if lock_name is None:
            return
        received = self._received.get(text)
        if received is None:
            timer = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._wake, lock_name)
            received = self._received[text] = _Received(timer)
            if len(self._received) > _MAX_REMEMBERED:
                del self._received[next(iter(self._received))]
        if node in received.senders:
            return
        received.senders.add(node)
        if len(received.senders) == self._quorum:
            received.timer.cancel()
            self._wake(lock_name)

    def _wake(self, lock_name: str) -> None:
        for listener in list(self._listeners):
            listener.wake(lock_name)


def _lock_name_in(text: str) -> Optional[str]:
    """None for a message of another format: any client can publish on the channel."""
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parts[0] if isinstance(parts, list) and parts and isinstance(parts[0], str) else None
