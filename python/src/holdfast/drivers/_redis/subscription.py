"""One subscription for all claims of a driver that wait.

The client that releases a lock publishes the grant on the channel of the next waiter's client. So a hand-off costs one
message, however many clients wait. On a Cluster that publishes by slot, a message stays within its slot. There, this
client subscribes to each slot in which it waits.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from typing import Awaitable, Callable, Optional, Sequence, TypeVar

from ...core.driver import Claim, DriverListener
from ...core.tasks import ignore_outcome, start_task
from ...errors import HoldfastError, StoreError
from .._shared.waiting_claims import WaitingClaims
from .connection import Subscriber
from .failures import is_forbidden, store_error
from .keys import FORCED_CHANNEL, wake_channel
from .link import Link, Node
from .records import read_forced
from .waiting import WaitingCall, read_wake_up

T = TypeVar("T")
_MOST_HOLDER_ID = 255


@dataclass(eq=False)
class _Session:
    loop: asyncio.AbstractEventLoop
    opened: asyncio.Future[None]
    """Fails if it could not be opened."""
    sharded: bool = False
    is_open: bool = False
    ended: Optional[HoldfastError] = None
    slots: set[int] = field(default_factory=set)
    subscribers: dict[str, asyncio.Future[Subscriber]] = field(default_factory=dict)
    all: list[Subscriber] = field(default_factory=list)
    hears_forced: bool = False


class Subscription:
    """It reports genuine messages and decides nothing else."""

    def __init__(
        self,
        link: Link,
        client_id: str,
        sharded: Callable[[], Awaitable[bool]],
        confirms_grants: bool,
    ) -> None:
        """`sharded`: Cluster only, whether the servers publish by slot. `confirms_grants`: grants are reported as hints
        only, because a grant counts after replicas have confirmed it, and that takes a call."""
        self._link = link
        self._client_id = client_id
        self._sharded = sharded
        self._confirms_grants = confirms_grants
        self._claims: WaitingClaims[WaitingCall] = WaitingClaims()
        self._listeners: list[DriverListener] = []
        self._session: Optional[_Session] = None
        self._ends = 0

    async def sends(self, claims: Sequence[Claim], slot: int) -> WaitingCall:
        """A request for these claims, some of which wait, is about to be sent. Returns its channel and its secret."""
        sharded = self._link.cluster and await self._sharded()
        session = self._session
        is_unheard = session is not None and session.is_open and session.sharded and slot not in session.slots
        channel = self._channel(slot if sharded else None)
        call = WaitingCall(channel, secrets.token_urlsafe(18), slot, time.monotonic(), is_unheard)
        self._claims.sends(claims, call)
        return call

    def forget(self, claim_id: str, call: Optional[WaitingCall] = None) -> None:
        self._claims.forget(claim_id, call)

    async def hear_slot(self, slot: int, claims: Sequence[Claim]) -> None:
        """Subscribes to the slot of claims that were refused before this client was subscribed to it. A grant in
        between was missed, so the claims get a hint to ask again."""
        session = self._session
        if session is None or not session.is_open:
            return
        await self._hear_slot(session, slot)
        for claim in claims:
            self._wake(claim)

    async def listen(self, listener: DriverListener) -> None:
        loop = asyncio.get_running_loop()
        if self._session is not None and self._session.loop is not loop:
            # Its event loop is gone, and its connection with it.
            self._session, self._listeners = None, []
        session = self._session or self._begin(loop)
        await asyncio.shield(session.opened)
        # It may have ended before this caller came to its turn.
        if session.ended is not None:
            raise session.ended
        self._listeners.append(listener)
        if session.sharded:
            slots = {waiting.call.slot for waiting in self._claims.all()}
            await asyncio.gather(*(self._hear_slot(session, slot) for slot in slots))

    def stop(self, listener: DriverListener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
        if not self._listeners:
            self.end()

    def restart(self, cause: HoldfastError) -> None:
        """Ends the subscription, so that the listeners make another one."""
        if self._session is not None:
            self._lost(self._session, cause)

    def end(self) -> None:
        self._ends += 1
        self._listeners.clear()
        if self._session is not None:
            self._lost(self._session, StoreError("the driver stopped listening"))

    async def close(self) -> None:
        session = self._session
        self.end()
        if session is not None:
            await asyncio.gather(*(subscriber.gone() for subscriber in session.all))

    def _channel(self, slot: Optional[int] = None) -> str:
        """New after each `end`. The server learns late that a connection was closed. On the old channel it would count
        the next waiter as subscribed, find out later that it is not, and drop it from the queue."""
        return wake_channel(f"{self._client_id}.{self._ends}", slot)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> _Session:
        session = self._session = _Session(loop, loop.create_future())
        opening = start_task(self._open(session))
        session.opened = opening
        opening.add_done_callback(ignore_outcome)
        return session

    async def _open(self, session: _Session) -> None:
        try:
            session.sharded = self._link.cluster and await self._sharded()
            if not session.sharded:
                nodes = await self._link.nodes()
                subscriber = await self._subscriber_at(session, nodes[0])
                await subscriber.subscribe(self._channel(), False)
                await self._hear_forced(session, subscriber)
            # The connection may have been lost after it was subscribed.
            if session.ended is not None:
                raise session.ended
            session.is_open = True
            return
        except Exception as error:
            cause = store_error("subscribe", error, self._link.place)
        self._lost(session, cause)
        raise cause

    async def _hear_slot(self, session: _Session, slot: int) -> None:
        if slot in session.slots or session.ended is not None:
            return
        try:
            node = await self._link.node_of_slot(slot)
            subscriber = await self._subscriber_at(session, node)
            await subscriber.subscribe(self._channel(slot), True)
            session.slots.add(slot)
            await self._hear_forced(session, subscriber)
        except Exception as error:
            # The slot may have just moved. All listeners subscribe again, when the client knows the new node.
            self._lost(session, store_error("subscribe", error, self._link.place))

    async def _hear_forced(self, session: _Session, subscriber: Subscriber) -> None:
        """Forced releases are published to a whole Cluster, so one node is enough."""
        if not session.hears_forced:
            session.hears_forced = True
            await subscribe_to_forced(subscriber)

    async def _subscriber_at(self, session: _Session, node: Node) -> Subscriber:
        known = session.subscribers.get(node.id)
        if known is None:
            known = session.subscribers[node.id] = start_task(self._open_subscriber(session, node))
        return await asyncio.shield(known)

    async def _open_subscriber(self, session: _Session, node: Node) -> Subscriber:
        def message(channel: str, text: str) -> None:
            if channel == FORCED_CHANNEL:
                tell_forced(text, self._listeners)
            else:
                self._message(channel, text)

        def closed(cause: Exception) -> None:
            self._lost(session, store_error("listen", cause, node.place))

        subscriber = await node.subscriber(message)
        subscriber.on_end = closed
        session.all.append(subscriber)
        # The session ended while this connection was opened.
        if session.ended is not None:
            subscriber.close()
        return subscriber

    def _lost(self, session: _Session, cause: HoldfastError) -> None:
        """Ends a session for good, also one that is still being opened. Its listeners are notified."""
        if session.ended is not None:
            return
        session.ended = cause
        session.is_open = False
        for subscriber in session.all:
            subscriber.close()
        if self._session is not session:
            return
        self._session = None
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.disconnected(cause)

    def _message(self, channel: str, text: str) -> None:
        wake_up = read_wake_up(self._claims, channel, text)
        if wake_up is None:
            return
        if wake_up.grant is None or self._confirms_grants:
            self._wake(wake_up.claim)
            return
        for listener in list(self._listeners):
            listener.granted(wake_up.claim.claim_id, wake_up.grant)

    def _wake(self, claim: Claim) -> None:
        for listener in list(self._listeners):
            listener.wake(claim.lock_name, claim.claim_id)


async def subscribe_to_forced(subscriber: Subscriber) -> None:
    """Without the right to this channel, a client learns of a forced release with its next renewal."""
    try:
        await subscriber.subscribe(FORCED_CHANNEL, False)
    except Exception as error:
        if not is_forbidden(error):
            raise


def tell_forced(text: str, listeners: Sequence[DriverListener]) -> None:
    """Only a hint: a client that has such a lease asks the store."""
    lost, by = read_forced(text)
    for claim_id in lost:
        for listener in list(listeners):
            listener.lost(claim_id, StoreError(f"it was force-released by {by[:_MOST_HOLDER_ID]}"))
