"""All requests of an event loop to one driver."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import Callable, Optional, Sequence, Union, cast

from ..errors import HoldfastError, StoreError, UnsupportedError
from .batch import Batch, Receiver
from .calls import Calls
from .clock import Clock, Instant, Random, backoff_ms
from .driver import (
    Claim,
    Driver,
    ForcingDriver,
    Grant,
    InspectPage,
    InspectQuery,
    LeaseRecord,
    LeaseRef,
    RateAnswer,
    RateRequest,
    Refusal,
    RenewAnswer,
    Renewal,
)
from .in_flight import InFlight
from .limits import MAX_FORCING_MS, MAX_RELEASE_TRIES
from .store_answers import checked_page, is_grant, is_rate_answer, is_refusal
from .wake_ups import Reported, WakeUps

AcquireAnswer = Union[Grant, Refusal]

OnFailure = Callable[[Exception], None]


def is_outage(error: object) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, StoreError) and error.retryable


def unsupported(driver: Driver, what: str) -> UnsupportedError:
    """The error for an operation that the driver does not support, with the driver's reason if it gives one."""
    reason = driver.capabilities.reasons.get(what)
    ending = "" if reason is None else f": {reason}"
    return UnsupportedError(f"the {driver.name} driver does not support {_MISSING[what]}{ending}")


_MISSING = {
    "shared": "shared mode",
    "limit": "limits, which semaphores need",
    "rate": "rate limits",
    "force": "taking a lock from its holder",
}


class StoreClient:
    """Sends requests in lists, with a deadline for every call, one subscription for all waiters, and releases that are
    repeated until the store answers."""

    def __init__(self, driver: Driver, clock: Clock, random: Random, call_timeout_ms: float) -> None:
        self.driver = driver
        self.clock = clock
        self.random = random
        self.call_timeout_ms = call_timeout_ms
        self.loop = asyncio.get_running_loop()
        self.thread_id = threading.get_ident()
        self.users = 0
        self.purpose = ""
        self.sends = True
        self.ends_with_session = driver.capabilities.expiry == "session"
        self.background = InFlight()
        """Releases that no caller waits for."""
        self._postponed: set[Callable[[], None]] = set()
        self._calls = Calls(driver, clock, call_timeout_ms)
        self.wake_ups = WakeUps(driver, clock, random, self._calls)
        calls = self._calls
        self._acquires: Batch[Claim, AcquireAnswer] = Batch(
            "acquire", calls, clock, driver.acquire, self._is_acquire_answer, inseparable=_in_one_group
        )
        self._renewals: Batch[Renewal, RenewAnswer] = Batch("renew", calls, clock, driver.renew, _is_renew_answer)
        # A store without wake-ups tells no one, so the process at least wakes its own waiters.
        after = None if driver.capabilities.wake else self._wake_own
        self._releases: Batch[LeaseRef, bool] = Batch(
            "release", calls, clock, driver.release, _is_release_answer, after=after
        )
        self._consumes: Batch[RateRequest, RateAnswer] = Batch(
            "consume", calls, clock, self._consume, _is_rate_answer
        )
        self.spawn = calls.start
        self.acquire: Callable[[Claim, Receiver[AcquireAnswer]], None] = self._acquires.add
        self.renew: Callable[[Renewal, Receiver[RenewAnswer]], None] = self._renewals.add
        self.release: Callable[[LeaseRef, Receiver[bool]], None] = self._releases.add

    def ask(self, claim: Claim) -> asyncio.Future[AcquireAnswer]:
        """Sends a claim once. After an error it is unknown whether the store granted it."""
        return self._acquires.ask(claim)

    def end(self, lease: LeaseRef) -> asyncio.Future[bool]:
        """Sends a release once."""
        return self._releases.ask(lease)

    def confirm(self, renewal: Renewal) -> asyncio.Future[RenewAnswer]:
        """Sends a renewal once."""
        return self._renewals.ask(renewal)

    def lease_of(self, claim_id: str) -> Optional[Reported]:
        """The lease of this claim, if an instance on the driver has it."""
        for client in _clients_of(self.driver):
            lease = client.wake_ups.leases.get(claim_id)
            if lease is not None:
                return lease
        return None

    def consume(self, request: RateRequest) -> asyncio.Future[RateAnswer]:
        return self._consumes.ask(request)

    async def inspect(self, query: InspectQuery) -> InspectPage:
        what = "inspect"
        future: asyncio.Future[InspectPage] = self.loop.create_future()

        def fail(error: HoldfastError) -> None:
            if not future.done():
                future.set_exception(error)

        async def run() -> None:
            if self._calls.failed_with is not None:
                fail(self._calls.failed_with)
                return
            call = self._calls.begin(what, self.clock.monotonic() * 1_000, fail)
            try:
                page = checked_page(self.driver.name, await self.driver.inspect(query))
            except BaseException as error:
                self._calls.end(call)
                fail(self._calls.as_error(what, error))
                if isinstance(error, Exception):
                    return
                raise
            if self._calls.end(call) and not future.done():
                future.set_result(page)

        self._calls.start(run(), lambda: fail(self._calls.as_error(what, asyncio.CancelledError())))
        return await future

    async def force_release(
        self, leases: Sequence[LeaseRecord], *, by: str, end_session: bool
    ) -> Sequence[Union[bool, HoldfastError]]:
        """See `ForcingDriver`."""
        what, driver = "end leases by force", cast(ForcingDriver, self.driver)
        future: asyncio.Future[Sequence[Union[bool, HoldfastError]]] = self.loop.create_future()

        def fail(error: HoldfastError) -> None:
            if not future.done():
                future.set_exception(error)

        async def run() -> None:
            try:
                answers = await driver.force_release(leases, by=by, end_session=end_session)
            except Exception as error:
                fail(self._calls.as_error(what, error))
                return
            if not future.done():
                future.set_result(
                    [self._calls.as_error(what, each) if isinstance(each, Exception) else each for each in answers]
                )

        if self._calls.failed_with is not None:
            raise self._calls.failed_with
        late = StoreError(f"the {self.driver.name} store did not {what} within {MAX_FORCING_MS / 1_000:g} s")
        timer = self.clock.call_later(MAX_FORCING_MS, lambda: fail(late))
        self._calls.start(run(), lambda: fail(self._calls.as_error(what, asyncio.CancelledError())))
        try:
            return await future
        finally:
            timer.cancel()

    def withdraw(self, claim: Claim) -> None:
        """Ends every lease and place in the queue that the claim has or will get, in the background. No cancellation of
        the caller stops it."""
        self.release_until_answered(LeaseRef(claim.lock_name, claim.claim_id))

    def release_until_answered(
        self, lease: LeaseRef, done: Optional[Callable[[], None]] = None, failed: Optional[OnFailure] = None
    ) -> None:
        """Sends a release in the background until the store answers it, the error is permanent, or
        `MAX_RELEASE_TRIES` is reached. Then calls `done`. Calls `failed` at each try that fails."""
        _BackgroundRelease(self, lease, done, failed).send()

    def release_later(self, lease: LeaseRef, delay_ms: float, failed: OnFailure) -> None:
        """For stores without expiry: this process ends the lease after `delay_ms`, if it is still alive."""

        def release() -> None:
            self._postponed.discard(release)
            timer.cancel()
            self.release_until_answered(lease, None, failed)

        timer = self.clock.call_later(delay_ms, release)
        self._postponed.add(release)

    async def close(self) -> None:
        for release in list(self._postponed):
            release()
        await self.background.idle()
        await self.wake_ups.close()
        self._calls.close()

    def fail_all(self, error: HoldfastError) -> None:
        """Fails every request in flight and every later one, for a store that does not answer."""
        self._calls.fail_all(error)

    def stop_sending(self, error: HoldfastError) -> None:
        """Every later request fails, and is not sent. For requests in flight, nothing changes."""
        self.sends = False
        self._calls.failed_with = error

    async def _consume(self, requests: Sequence[RateRequest]) -> Sequence[Union[RateAnswer, Exception]]:
        if not self.driver.capabilities.rate:
            raise unsupported(self.driver, "rate")
        return await self.driver.consume(requests)

    def _is_acquire_answer(self, answer: object) -> bool:
        if isinstance(answer, Grant):
            return is_grant(answer, self.driver.capabilities.fencing)
        return isinstance(answer, Refusal) and is_refusal(answer)

    def _wake_own(self, leases: Sequence[LeaseRef]) -> None:
        for lease in leases:
            self.wake_ups.wake(lease.lock_name)


class _BackgroundRelease:
    __slots__ = ("_store", "_lease", "_done", "_failed", "_tries")

    def __init__(
        self, store: StoreClient, lease: LeaseRef, done: Optional[Callable[[], None]], failed: Optional[OnFailure]
    ) -> None:
        self._store = store
        self._lease = lease
        self._done = done
        self._failed = failed
        self._tries = 0
        store.background.begin()

    def send(self) -> None:
        self._tries += 1
        self._store.release(self._lease, self)

    def answered(self, answer: bool, sent: Instant, now: Instant) -> None:
        self._end()

    def failed(self, error: HoldfastError, sent: Instant) -> None:
        store = self._store
        if not store.sends:
            self._end()
            return
        if self._failed is not None:
            self._failed(error)
        if self._tries >= MAX_RELEASE_TRIES or not is_outage(error):
            self._end()
            return
        store.clock.call_later(backoff_ms(50, 2_000, self._tries, store.random), self.send)

    def late(self, answer: bool) -> None:
        pass

    def _end(self) -> None:
        self._store.background.end()
        if self._done is not None:
            self._done()


_clients: "weakref.WeakKeyDictionary[Driver, list[weakref.ref[StoreClient]]]" = weakref.WeakKeyDictionary()
"""Nothing here keeps a client alive: with it, its leases and its calls in flight, and so an instance that was dropped
without `close`, could never be collected."""


# A child process uses a driver in an event loop of its own. The parent's is never closed there.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clients.clear)


def open_store_client(
    driver: Driver, clock: Clock, random: Random, call_timeout_ms: float, purpose: str = "locks"
) -> StoreClient:
    """Instances that use one driver with the same settings share one client, so that their requests of one turn of the
    event loop go out in one list. `purpose`: requests for different purposes are never in one list.

    Raises `UnsupportedError` while the driver is used in another event loop: its connections belong to that one.
    """
    loop = asyncio.get_running_loop()
    shared = [each for each in _clients_of(driver) if not each.loop.is_closed()]
    if any(each.loop is not loop for each in shared):
        raise UnsupportedError(
            f"this {driver.name} driver is used in another event loop. Create one for each event loop"
        )
    for client in shared:
        if client.clock is clock and client.call_timeout_ms == call_timeout_ms and client.purpose == purpose:
            client.users += 1
            return client
    client = StoreClient(driver, clock, random, call_timeout_ms)
    client.users = 1
    client.purpose = purpose
    _know(driver, [*shared, client])
    return client


async def close_store_client(client: StoreClient) -> None:
    client.users -= 1
    if client.users > 0:
        return
    forget_store_client(client)
    await client.close()


def forget_store_client(client: StoreClient) -> None:
    """Its driver may be used in another event loop from now on."""
    _know(client.driver, [each for each in _clients_of(client.driver) if each is not client])


def _clients_of(driver: Driver) -> list[StoreClient]:
    try:
        known = _clients.get(driver, [])
    except TypeError:
        return []
    return [client for client in (each() for each in known) if client is not None]


def _know(driver: Driver, clients: Sequence[StoreClient]) -> None:
    try:
        _clients[driver] = [weakref.ref(each) for each in clients]
    except TypeError:
        pass  # A driver of someone else that has no hash or takes no weak reference.


def fail_store_client(client: StoreClient, error: HoldfastError) -> None:
    """Fails all requests of the client, unless other instances use it: those may still wait for answers."""
    if client.users <= 1:
        client.fail_all(error)


def _in_one_group(before: Claim, after: Claim) -> bool:
    return before.group is not None and before.group == after.group


def _is_renew_answer(answer: object) -> bool:
    return answer in ("renewed", "held", "lost")


def _is_release_answer(answer: object) -> bool:
    return isinstance(answer, bool)


def _is_rate_answer(answer: object) -> bool:
    return isinstance(answer, RateAnswer) and is_rate_answer(answer)


__all__ = [
    "AcquireAnswer",
    "StoreClient",
    "close_store_client",
    "fail_store_client",
    "forget_store_client",
    "is_outage",
    "open_store_client",
    "unsupported",
]
