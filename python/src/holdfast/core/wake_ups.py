"""One subscription to the store for all waiters and watched leases of an event loop."""

from __future__ import annotations

import asyncio
import logging
from typing import Callable, Optional, Protocol, Union

from ..errors import HoldfastError
from .calls import Calls
from .clock import Clock, Random, backoff_ms
from .driver import Claim, Driver, Grant, Refusal, StopListening
from .emitter import Emitter
from .events import ListenFailed
from .store_answers import is_grant

log = logging.getLogger("holdfast")


class Waiter(Protocol):
    """A waiting claim."""

    @property
    def claim(self) -> Claim: ...

    @property
    def events(self) -> Emitter: ...

    def wake(self) -> None:
        """A hint that another request may succeed."""

    def granted(self, grant: Grant) -> None:
        """The store has granted the claim without a request."""

    def became_first(self, previous: Waiter) -> None:
        """The claim is now the first in this process's own queue, after `previous`, and may send requests."""

    @property
    def last_answer(self) -> Union[Refusal, HoldfastError, None]:
        """What the store last answered to this waiter, or to those that were first in the process's queue before it."""

    @property
    def unanswered_since_ms(self) -> Optional[float]:
        """Since when neither this waiter nor those that were first before it have got an answer. None for a waiter that
        joined as the first, and from its first answer on."""


class Reported(Protocol):
    """A lease of this process, as messages concern it."""

    def on_loss_message(self, cause: Exception) -> None:
        """A message says that the lease was ended by force, or with its session."""


class WakeUps:
    """Opens the subscription with the first waiter, keeps it open for a while after the last one, and reopens it when
    it breaks. A lease needs no subscription where it expires by time: a process that only holds leases is not
    subscribed. If it is, because a claim waits, messages also reach its leases."""

    def __init__(self, driver: Driver, clock: Clock, random: Random, calls: Calls) -> None:
        self._driver = driver
        self.needs_token = driver.capabilities.fencing
        self._clock = clock
        self._random = random
        self._calls = calls
        self._waiters: dict[str, dict[Waiter, None]] = {}
        """The waiters of each lock name, in the order in which they joined."""
        self._waiters_by_claim: dict[str, Waiter] = {}
        self.leases: dict[str, Reported] = {}
        """The leases of this process that have not ended, by claim id."""
        self._listening: dict[object, Emitter] = {}
        """The leases that need the subscription, with the events of their instances."""
        self._state = "closed"
        """`closed`, `opening`, `open`, or `broken`: will be opened again by a timer."""
        self._subscription: Optional[_Subscription] = None
        self._tries = 0
        self._idle_timer: Optional[asyncio.TimerHandle] = None
        self._retry_timer: Optional[asyncio.TimerHandle] = None
        self._ended = False

    @property
    def subscription(self) -> Optional[object]:
        """The subscription that is open. None while wake-ups do not arrive: waiters then have to poll."""
        return self._subscription if self._state == "open" else None

    @property
    def active(self) -> bool:
        return self._state != "closed"

    def join(self, waiter: Waiter) -> bool:
        """Whether the waiter may send requests. Where the store has no queue, only the first one of a process on a lock
        name does, so that its waiters are served in their order."""
        claim = waiter.claim
        queue = self._waiters.setdefault(claim.lock_name, {})
        queue[waiter] = None
        self._waiters_by_claim[claim.claim_id] = waiter
        return self._driver.capabilities.queue or len(queue) == 1

    def leave(self, waiter: Waiter) -> None:
        name = waiter.claim.lock_name
        queue = self._waiters.get(name)
        if queue is None or waiter not in queue:
            return
        was_first = next(iter(queue)) is waiter
        del queue[waiter]
        del self._waiters_by_claim[waiter.claim.claim_id]
        if not queue:
            del self._waiters[name]
        elif was_first and not self._driver.capabilities.queue:
            next(iter(queue)).became_first(waiter)
        self._stop_when_idle()

    def first(self, lock_name: str) -> Optional[Waiter]:
        """The waiter that sends requests for all of this process's waiters on a name, where the store has no queue."""
        return next(iter(self._waiters.get(lock_name, ())), None)

    def listen_for_loss(self, events: Emitter) -> Callable[[], None]:
        """Keeps the subscription open for a lease. Returns a function that ends that."""
        lease = object()
        self._listening[lease] = events
        self.subscribe()

        def stop() -> None:
            self._listening.pop(lease, None)
            self._stop_when_idle()

        return stop

    def subscribe(self) -> None:
        """Opens the subscription unless it is open. When it is, every waiter asks again: a lock may have been released
        before, and that release has sent no wake-up."""
        if self._state != "closed" or self._ended or not self._driver.capabilities.wake:
            return
        self._state = "opening"
        subscription = self._subscription = _Subscription(self)
        cause = self._calls.as_error("listen", asyncio.CancelledError())
        self._calls.start(self._open(subscription), lambda: subscription.disconnected(cause))

    def wake(self, lock_name: str, claim_id: Optional[str] = None) -> None:
        if claim_id is None:
            for waiter in list(self._waiters.get(lock_name, ())):
                waiter.wake()
            return
        waiter_of_claim = self._waiters_by_claim.get(claim_id)
        if waiter_of_claim is not None:
            waiter_of_claim.wake()

    async def close(self) -> None:
        self._ended = True
        for timer in (self._idle_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        await self._end()

    async def _open(self, subscription: _Subscription) -> None:
        call = self._calls.begin("listen", self._clock.monotonic() * 1_000, subscription.disconnected)
        try:
            stop = await self._driver.listen(subscription)
        except BaseException as error:
            if self._calls.end(call):
                subscription.disconnected(self._calls.as_error("listen", error))
            if isinstance(error, Exception):
                return
            raise
        self._calls.end(call)
        # It broke, was late or is not wanted any more.
        if subscription.ended:
            await self._stop(stop)
            return
        subscription.stop = stop
        self._state = "open"
        self._tries = 0
        self._wake_all()

    def _wake_all(self) -> None:
        for lock_name in list(self._waiters):
            self.wake(lock_name)

    def broken(self, subscription: _Subscription, cause: Exception) -> None:
        """Wake-ups may have been missed. Subscribes again after a pause; then every waiter asks again."""
        if subscription is not self._subscription or self._ended:
            return
        self._subscription = None
        self._state = "broken"
        self._tries += 1
        self._retry_timer = self._clock.call_later(backoff_ms(50, 2_000, self._tries, self._random), self._reopen)
        watching = {waiter.events for waiter in self._waiters_by_claim.values()}
        for events in watching.union(self._listening.values()):
            if events.hears(ListenFailed):
                events.emit(ListenFailed(cause))

    def _reopen(self) -> None:
        self._state = "closed"
        if self._waiters or self._listening:
            self.subscribe()

    def _stop_when_idle(self) -> None:
        if self._state == "closed" or self._waiters or self._listening or self._idle_timer is not None:
            return
        self._idle_timer = self._clock.call_later(_IDLE_MS, self._stop_if_idle)

    def _stop_if_idle(self) -> None:
        self._idle_timer = None
        if not self._waiters and not self._listening and not self._ended:
            self._calls.start(self._end())

    async def _end(self) -> None:
        subscription, self._subscription = self._subscription, None
        if self._state != "broken":
            self._state = "closed"
        if subscription is None:
            return
        subscription.ended = True
        if subscription.stop is not None:
            await self._stop(subscription.stop)

    async def _stop(self, stop: StopListening) -> None:
        try:
            await stop()
        except Exception as error:
            log.debug("the %s driver failed to stop listening: %s", self._driver.name, error)

    def waiter(self, claim_id: str) -> Optional[Waiter]:
        return self._waiters_by_claim.get(claim_id)

    def lost(self, claim_id: str, cause: Exception) -> None:
        lease = self.leases.get(claim_id)
        if lease is not None:
            lease.on_loss_message(cause)


class _Subscription:
    """The listener of one `listen`. A message that comes after its end is still passed on: each is only a hint, or has
    been checked by the driver."""

    def __init__(self, wake_ups: WakeUps) -> None:
        self._wake_ups = wake_ups
        self.ended = False
        self.stop: Optional[StopListening] = None

    def wake(self, lock_name: str, claim_id: Optional[str] = None) -> None:
        self._wake_ups.wake(lock_name, claim_id)

    def granted(self, claim_id: str, grant: Grant) -> None:
        waiter = self._wake_ups.waiter(claim_id)
        if waiter is None:
            return
        # What is not valid as an answer is not valid as a message either. It is a hint to ask.
        if is_grant(grant, self._wake_ups.needs_token):
            waiter.granted(grant)
        else:
            waiter.wake()

    def lost(self, claim_id: str, cause: Exception) -> None:
        self._wake_ups.lost(claim_id, cause)

    def disconnected(self, cause: Exception) -> None:
        if not self.ended:
            self.ended = True
            self._wake_ups.broken(self, cause)


_IDLE_MS = 1_000
"""How long a subscription outlives its last waiter, so that a busy lock does not subscribe again for every wait."""
