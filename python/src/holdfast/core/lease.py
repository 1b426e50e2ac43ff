"""A lease, as its holder sees it."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Callable, Generator, Mapping, Optional, Sequence, Union

from ..errors import HoldfastError, LeaseLostError, NotHeldError
from .arguments import Seconds, ttl_ms_from
from .claim_ids import Chain
from .clock import Clock, Instant, Random
from .driver import Claim, Grant, LeaseRef, Renewal
from .emitter import Emitter
from .events import HandedOver, LossReason, Lost, Released, ReleaseFailed
from .hand_over import HandOver, assert_can_hand_over, write_hand_over
from .in_flight import InFlight, InFlightOnce
from .limits import MIN_HINT_PAUSE_MS
from .lock_info import LockInfo
from .renewer import NOT_IN_STORE, NOT_RENEWED, Cover, Renewer
from .scheduler import Scheduler

if TYPE_CHECKING:
    from .store_client import StoreClient


log = logging.getLogger("holdfast")


class LeaseContext:
    """What a lease and a claim need from the instance that holds it."""

    __slots__ = ("clock", "random", "store", "scheduler", "in_flight", "events", "thread")

    def __init__(
        self,
        store: StoreClient,
        scheduler: Scheduler,
        in_flight: InFlight,
        events: Emitter,
        thread: Optional[Cover] = None,
    ) -> None:
        self.clock: Clock = store.clock
        self.random: Random = store.random
        self.store = store
        self.scheduler = scheduler
        self.in_flight = in_flight
        self.events = events
        self.thread = thread
        """Renews leases while the event loop is blocked."""


class OwnClaim:
    """A claim of this process."""

    __slots__ = ("claim", "events", "abandoned", "_withdrawal")

    def __init__(self, claim: Claim, events: Emitter) -> None:
        self.claim = claim
        self.events = events
        self._withdrawal: Optional[asyncio.Future[None]] = None
        self.abandoned = False
        """Whether this process wants nothing of the claim in the store any more: it was given up, or its lease was
        released or lost. A grant that arrives after that is released."""

    def will_withdraw(self, store: StoreClient) -> None:
        self.abandoned = True
        if self._withdrawal is None:
            self._withdrawal = store.loop.create_future()

    def withdraw(self, store: StoreClient, lease: Optional[LeaseRef] = None) -> None:
        """Ends in the background what the claim has in the store, or only its lease."""
        self.will_withdraw(store)
        wanted = lease or LeaseRef(self.claim.lock_name, self.claim.claim_id)
        store.release_until_answered(wanted, self.withdrawn, self.release_failed)

    def withdrawn(self) -> None:
        if self._withdrawal is not None and not self._withdrawal.done():
            self._withdrawal.set_result(None)

    @property
    def event_base(self) -> tuple[str, str, str]:
        return self.claim.lock_name, self.claim.holder_id, self.claim.claim_id

    def release_failed(self, error: Exception) -> None:
        """Each time."""
        if self.events.hears(ReleaseFailed):
            self.events.emit(ReleaseFailed(*self.event_base, error))

    async def wait_withdrawn(self) -> None:
        """The caller may be the last step of a program, and nothing is sent after its end: a waiter that stays in the
        queue delays the others. With a store that does not answer, it does not wait long. A cancellation does not
        shorten this: a program that ends cancels tasks that were cancelled before."""
        withdrawal = self._withdrawal
        if withdrawal is None:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + _WITHDRAWAL_SECONDS
        cancelled: Optional[asyncio.CancelledError] = None
        while not withdrawal.done() and loop.time() < until:
            try:
                await asyncio.wait({withdrawal}, timeout=until - loop.time())
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


class LostEvent:
    """Is set when a lease was lost. A lease that was released was not lost.

    `await lease.lost` returns the `LeaseLostError`. Like waiting for any event, it goes on until then, also if the
    lease is released: cancel the task that waits.
    """

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        return self.error is not None

    @property
    def error(self) -> Optional[LeaseLostError]:
        """Why the lease was lost, or None."""
        self._lease.held  # notices a loss that no timer has reported yet
        return self._lease.loss_error

    async def wait(self) -> LeaseLostError:
        error = self.error
        if error is not None:
            return error
        future: asyncio.Future[LeaseLostError] = asyncio.get_running_loop().create_future()

        def set_result(reason: LeaseLostError) -> None:
            if not future.done():
                future.set_result(reason)

        self._lease.add_loss_callback(set_result)
        try:
            return await future
        finally:
            self._lease.remove_loss_callback(set_result)

    def __await__(self) -> Generator[Any, None, LeaseLostError]:
        return self.wait().__await__()

    def __repr__(self) -> str:
        return f"<LostEvent {'set' if self.is_set() else 'not set'}>"


class Lease:
    """A granted claim. It ends by release, expiry or loss.

    `held` and `assert_held()` are synchronous and correct in the first statement after a stall. Pass `fencing_token` to
    the resource that the lock protects: only that protects it from a process that was paused.
    """

    __slots__ = ("_loss_callbacks", "__weakref__")

    def __init__(self) -> None:
        self._loss_callbacks: Optional[list[Callable[[LeaseLostError], None]]] = None

    @property
    def lock_name(self) -> str:
        raise NotImplementedError

    @property
    def holder_id(self) -> str:
        raise NotImplementedError

    @property
    def fencing_token(self) -> int:
        """Rises with every grant of the lock name. A protected resource rejects a smaller one."""
        raise NotImplementedError

    @property
    def acquired_at(self) -> datetime:
        """On the store's clock, in UTC."""
        raise NotImplementedError

    @property
    def expires_at(self) -> datetime:
        """On the store's clock as far as this process knows it; never too late. To decide whether to go on, use
        `held`."""
        raise NotImplementedError

    @property
    def metadata(self) -> Optional[Mapping[str, Any]]:
        raise NotImplementedError

    @property
    def held(self) -> bool:
        """Whether the lease can be relied on now."""
        raise NotImplementedError

    def peek_held(self) -> bool:
        """Like `held`, but reports nothing, so that another thread may call it."""
        raise NotImplementedError

    @property
    def remaining_seconds(self) -> float:
        """How long the lease can be relied on unless it is renewed. 0 if it is not held."""
        raise NotImplementedError

    @property
    def loss_error(self) -> Optional[LeaseLostError]:
        """Why the lease was lost, if that was noticed."""
        raise NotImplementedError

    def assert_held(self) -> None:
        """Raises `LeaseLostError` if the lease was lost, and `NotHeldError` if it was released or handed over."""
        raise NotImplementedError

    async def extend(self, seconds: Seconds) -> bool:
        """Sets the lease to end `seconds` from now: they are not added to what is left. False if it is no longer held.

        Raises `StoreError` if it is unknown whether it was extended.
        """
        raise NotImplementedError

    async def release(self) -> bool:
        """True if the lease was still held. No cancellation stops the release itself.

        Raises `StoreError` if the store did not answer. The release is then sent again in the background.
        """
        return await self.answer_to(self.begin_release())

    async def answer_to(self, releasing: asyncio.Future[bool]) -> bool:
        """Waits for the answer to a release that was sent. A caller that is cancelled still waits, a moment, until the
        release has reached the store: the cancellation may come from the end of the event loop, after which nothing is
        sent."""
        try:
            return await releasing
        except asyncio.CancelledError:
            await self.wait_released()
            raise

    async def wait_released(self) -> None:
        """Waits until the store has answered the release of this lease, but not long. Raises nothing for it."""
        raise NotImplementedError

    async def serialize(self) -> str:
        """Hands the lease over to another process, of either language: `DistributedLock.restore` turns the text into a
        lease with the same fencing token. From the call on this process does not hold the lease, and neither renews
        nor releases it. The lease expires after its TTL unless it is restored before that.

        **The text is a secret**: with it, a process can extend and release the lease. Restore it only once: two
        processes that restore the same text both hold the lock.

        A caller that is cancelled gets no text, and the lease is released.

        Raises `LeaseLostError` or `NotHeldError` if the lease is not held; `UnsupportedError` inside a block, which
        releases the lock when it ends; for a lock that was entered again; for a shared lease; and for a driver whose
        leases end with their connection.
        """
        raise NotImplementedError

    def begin_release(self) -> asyncio.Future[bool]:
        """Sends the release in this step. A cancellation of the future only ends the wait for the answer."""
        raise NotImplementedError

    def begin_dispose(self) -> asyncio.Future[bool]:
        """Like `begin_release`, at the end of a block: the lock is free after it. If the lease was released inside the
        block and that was not awaited, this waits for the same answer."""
        return self.pending_release() or self.begin_release()

    def pending_release(self) -> Optional[asyncio.Future[bool]]:
        """The answer to a release of this lease that is in flight. None if there is none."""
        raise NotImplementedError

    @property
    def lost(self) -> LostEvent:
        """Is set when the lease is lost: `await lease.lost`, `lease.lost.is_set()`."""
        return LostEvent(self)

    @property
    def info(self) -> LockInfo:
        """What a log or a response shows of the lease."""
        return LockInfo(
            self.lock_name, self.holder_id, self.acquired_at, self.expires_at, self.fencing_token, self.metadata
        )

    def add_loss_callback(self, callback: Callable[[LeaseLostError], None]) -> None:
        """Calls `callback` in the event loop when the lease is lost, or at once if it was."""
        error = None if self.held else self.loss_error
        if error is not None:
            callback(error)
            return
        if self._loss_callbacks is None:
            self._loss_callbacks = []
        self._loss_callbacks.append(callback)

    def remove_loss_callback(self, callback: Callable[[LeaseLostError], None]) -> None:
        if self._loss_callbacks is not None and callback in self._loss_callbacks:
            self._loss_callbacks.remove(callback)

    def _report_loss(self, error: LeaseLostError) -> None:
        callbacks, self._loss_callbacks = self._loss_callbacks, None
        for callback in callbacks or ():
            try:
                callback(error)
            except Exception:
                log.exception('a callback for the loss of "%s" failed', self.lock_name)

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Releases the lease. An error of the release would hide an error of the block that ends."""
        try:
            await self.answer_to(self.begin_dispose())
        except HoldfastError:
            pass

    def __repr__(self) -> str:
        state = "held" if self.peek_held() else "not held"
        return f"<Lease {self.lock_name!r} of {self.holder_id}, token {self.fencing_token}, {state}>"


class HeldLease(Lease):
    """One lease of an instance."""

    __slots__ = (
        "context",
        "own",
        "claim",
        "users",
        "uses",
        "_token",
        "_acquired_at_ms",
        "_store_at_ms",
        "_granted_ms",
        "_first_end_ms",
        "_answered_ms",
        "_min_hold_ms",
        "_max_hold_ms",
        "_on_end",
        "_renewer",
        "_ended",
        "_stop_request",
        "_stop_watching",
        "_unconfirmed_loss",
        "_hinted_at_ms",
        "_hint_timer",
        "_chain",
        "_releasing",
        "_release_unanswered",
        "has_expired",
    )

    def __init__(
        self,
        context: LeaseContext,
        own: OwnClaim,
        grant: Grant,
        sent: Instant,
        answered: Instant,
        *,
        unanswered_ms: float = math.inf,
        heartbeat: bool = False,
        min_hold_ms: float = 0,
        max_hold_ms: float = math.inf,
        shared_chain: Optional[Chain] = None,
        store_at_ms: Optional[float] = None,
        on_end: Callable[[HeldLease], None],
    ) -> None:
        """`on_end` is called once, when the lease has ended by release, loss or hand-over. `store_at_ms`: only for a
        restored lease, a lower bound of the store's clock when its renewal was sent."""
        self._loss_callbacks = None
        self.context = context
        self.own = own
        self.claim = own.claim
        self.users = 0
        """How many blocks run under the lease and rely on it until they have ended."""
        self.uses = 1
        """How many callers keep it, with `reacquire="extend"`. The last one releases it."""
        self._token = grant.fencing_token
        self._acquired_at_ms = grant.acquired_at_ms
        # Any other lease has the store's clock at its grant: a lower bound when the answer arrived.
        self._store_at_ms = grant.acquired_at_ms if store_at_ms is None else store_at_ms
        self._granted_ms = grant.ttl_ms
        self._first_end_ms = sent.monotonic_ms + grant.ttl_ms
        self._answered_ms = answered.monotonic_ms
        self._min_hold_ms = min_hold_ms
        self._max_hold_ms = max_hold_ms
        self._on_end = on_end
        self._ended: Union[None, str, LeaseLostError] = None
        self._stop_request: Optional[LeaseLostError] = None
        self._stop_watching: Optional[Callable[[], None]] = None
        self._unconfirmed_loss: Optional[Exception] = None
        self._hinted_at_ms = -math.inf
        self._hint_timer: Optional[asyncio.TimerHandle] = None
        self._chain = shared_chain
        self._releasing: Optional[list[asyncio.Future[bool]]] = None
        """Who waits for the answer to the release. None before it was sent, and when it was answered."""
        self.has_expired = False
        """It was lost because its time was over."""
        self._release_unanswered = False
        """Also while a release that has failed is repeated in the background."""
        context.store.wake_ups.leases[own.claim.claim_id] = self
        if self._ends_with_session:
            # The driver knows it from its own connection.
            self._stop_watching = context.store.wake_ups.listen_for_loss(context.events)
        self._renewer = Renewer(self, sent, answered, grant.ttl_ms, unanswered_ms, heartbeat, max_hold_ms)
        self._renewer.begin()

    @property
    def ref(self) -> LeaseRef:
        return LeaseRef(self.claim.lock_name, self.claim.claim_id, self._token)

    @property
    def event_base(self) -> tuple[str, str, str, int]:
        return *self.own.event_base, self._token

    @property
    def chain(self) -> Chain:
        """Made when first read: most leases have no claim made under them."""
        if self._chain is None:
            self._chain = Chain(self.claim.claim_id, self.context.random)
        return self._chain

    @property
    def ttl_ms(self) -> float:
        return self.claim.ttl_ms

    @property
    def lock_name(self) -> str:
        return self.claim.lock_name

    @property
    def holder_id(self) -> str:
        return self.claim.holder_id

    @property
    def fencing_token(self) -> int:
        return self._token

    @property
    def metadata(self) -> Optional[Mapping[str, Any]]:
        return self.claim.metadata

    @property
    def acquired_at(self) -> datetime:
        return _datetime(self._acquired_at_ms)

    @property
    def expires_at(self) -> datetime:
        ends_at_ms = self._renewer.deadline.ends_at_ms
        is_first_end = abs(ends_at_ms - self._first_end_ms) < 0.01
        # When the grant arrived, the store's clock showed `acquired_at` or later.
        reference_ms = self._first_end_ms - self._granted_ms if is_first_end else self._answered_ms
        return _datetime(self._store_at_ms + ends_at_ms - reference_ms)

    @property
    def held(self) -> bool:
        if self._ended is not None:
            return False
        if not self._renewer.deadline.at.is_past(self.context.clock.now()):
            return True
        self._lose_where_it_lives()
        return False

    def peek_held(self) -> bool:
        return self._ended is None and not self._renewer.deadline.at.is_past(self.context.clock.now())

    @property
    def ended(self) -> bool:
        """Whether its end was noticed, by release, loss or hand-over. `held` also notices it."""
        return self._ended is not None

    @property
    def is_handed_over(self) -> bool:
        return self._ended == _HANDED_OVER

    @property
    def remaining_seconds(self) -> float:
        if not self.held:
            return 0.0
        now = self.context.clock.now()
        deadline = self._renewer.deadline.at
        return max(0.0, deadline.due_at_ms(now) - now.monotonic_ms) / 1_000

    @property
    def loss_error(self) -> Optional[LeaseLostError]:
        if isinstance(self._ended, LeaseLostError):
            return self._ended
        if self._ended is None and self._stop_request is None and not self.peek_held():
            # Another thread asks before the event loop's thread has noticed it.
            return self._loss(self._renewer.loss)
        return self._stop_request

    def assert_held(self) -> None:
        if self.held:
            return
        error = self.loss_error
        if error is None:
            raise NotHeldError(self.lock_name, str(self._ended))
        # Without the traceback of the last time: it would grow with every check.
        raise error.with_traceback(None)

    async def extend(self, seconds: Seconds) -> bool:
        return await self._extend(ttl_ms_from("seconds", seconds), never_shorten=False)

    async def lengthen(self, ttl_ms: float) -> bool:
        """Like `extend`, for one of several users of the lease: it never shortens the lease."""
        return await self._extend(ttl_ms, never_shorten=True)

    async def _extend(self, ttl_ms: float, *, never_shorten: bool) -> bool:
        self._notice_closed_loop()
        if not self.held:
            return False
        return await self._renewer.extend(ttl_ms, never_shorten=never_shorten) and self.held

    def begin_confirm(self) -> asyncio.Future[bool]:
        """For one of several uses that ends while the lease is held: asks the store whether it still has the lease. If
        not, the lease is lost. True if it was there, or if the last use has released it meanwhile."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(answer: Optional[bool], error: Optional[HoldfastError]) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            elif answer is None:
                # The store was not asked, because the last use has ended it before.
                future.set_result(isinstance(self._ended, str))
            else:
                future.set_result(answer or self._ended == "released")

        self._renewer.confirm(done)
        return future

    def start_heartbeat(self) -> None:
        """Renews the lease regularly from now on, although it was acquired without a heartbeat."""
        if self.held:
            self._renewer.start_heartbeat()

    async def serialize(self) -> str:
        self.assert_held()
        return await self.hand_over(is_entered=False)

    async def hand_over(self, *, is_entered: bool) -> str:
        """`is_entered`: for a use inside the block of the lease. The caller has checked that it is held."""
        self._notice_closed_loop()
        context = self.context
        assert_can_hand_over(
            context.store.driver,
            self.claim,
            runs_block=self.users > 0 and not is_entered,
            is_shared=is_entered or self.uses > 1,
        )
        held_ms = context.clock.monotonic() * 1_000 - self._answered_ms
        # From here on this process must not rely on the lease: two holders at once are what a lock must prevent.
        self._end(_HANDED_OVER)
        context.in_flight.begin()
        try:
            # A renewal of this process that arrives after the first one of the other process would set another end than
            # the one that the other process relies on.
            await self._renewer.settled()
        except asyncio.CancelledError:
            await self.withdraw()
            raise
        finally:
            context.in_flight.end()
        if context.events.hears(HandedOver):
            context.events.emit(HandedOver(*self.event_base, held_ms))
        claim = self.claim
        return write_hand_over(
            HandOver(
                claim.lock_name,
                claim.claim_id,
                self._token,
                claim.holder_id,
                self._acquired_at_ms,
                self._store_at_ms + held_ms,
                math.ceil(claim.ttl_ms),
                claim.metadata,
                self._renewer.deadline.unanswered_ms,
                self._min_hold_ms - held_ms,
                self._max_hold_ms - held_ms,
            )
        )

    async def withdraw(self) -> None:
        """Ends a lease in the store that was handed over to a caller who does not get the text."""
        self.own.withdraw(self.context.store, self.ref)
        await self.own.wait_withdrawn()

    def begin_release(self) -> asyncio.Future[bool]:
        return self._release(self._min_hold_ms, "released")

    def begin_revoke(self, reason: str, cause: Optional[BaseException] = None) -> asyncio.Future[bool]:
        """Releases the lease although blocks may still run under it: for them it is lost."""
        return self._release(self._min_hold_ms, self._loss(reason, cause))

    def begin_discard(self) -> asyncio.Future[bool]:
        """Releases a lease that was never used, without `min_hold_seconds`. The future need not be awaited."""
        future = self._release(0, "released")
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def discard_in_background(self) -> None:
        """Like `begin_discard`, for a caller that was cancelled and cannot wait."""
        if self._ended is None:
            self._end("released")
            self.emit_released(self._held_ms)
            self.own.withdraw(self.context.store, self.ref)

    def pending_release(self) -> Optional[asyncio.Future[bool]]:
        if self._releasing is None:
            return None
        future: asyncio.Future[bool] = self.context.store.loop.create_future()
        self._releasing.append(future)
        return future

    def _release(self, min_hold_ms: float, how: Union[str, LeaseLostError]) -> asyncio.Future[bool]:
        """Ends the lease in this process at once. The future, which may be cancelled, only waits for the store."""
        context = self.context
        self._notice_closed_loop()
        loop = context.store.loop
        future: asyncio.Future[bool] = (asyncio.get_running_loop() if loop.is_closed() else loop).create_future()
        now = context.clock.now()
        if self._ended is None and self._renewer.deadline.at.is_past(now):
            self.lose(self._renewer.loss)
        if self._ended is not None:
            future.set_result(False)
            return future
        held_ms = now.monotonic_ms - self._answered_ms
        delay_ms = math.ceil(min_hold_ms - held_ms) if min_hold_ms else 0
        deadline = self._renewer.deadline.at
        # From here on this process must not rely on the lease, even if the call fails.
        self._end(how)
        self._releasing = [future]
        self._release_unanswered = True
        if isinstance(how, LeaseLostError):
            self._report_loss(how)
        if delay_ms > 0:
            context.in_flight.begin()
            ended = InFlightOnce(context.in_flight)

            def cancelled() -> None:
                # The program has cancelled all tasks. The lease expires after its TTL.
                ended.end()
                self.release_reached_store()
                for each in self._released():
                    each.cancel()

            context.store.spawn(self._release_later(delay_ms, held_ms, deadline, ended), cancelled)
        else:
            # Not set above: a late answer to the claim's own request must not release what `min_hold_seconds` keeps.
            self.own.abandoned = True
            context.in_flight.begin()
            context.store.release(self.ref, _Releasing(self, deadline, held_ms))
        return future

    async def _release_later(
        self, delay_ms: float, held_ms: float, deadline: Instant, ended: InFlightOnce
    ) -> None:
        """Sets the lease to end after `delay_ms`: the store then ends it even if this process no longer exists. If that
        fails, the lease expires after its TTL."""
        store = self.context.store
        try:
            # A renewal that arrives later would set another end.
            await self._renewer.settled()
            renewal = Renewal(self.claim.lock_name, self.claim.claim_id, self._token, delay_ms)
            answer = await store.confirm(renewal)
            if answer == "lost":
                self.not_in_store(deadline, self.context.clock.now(), held_ms)
            else:
                if answer == "held":
                    # A store without expiry cannot end the lease itself: this process does it.
                    store.release_later(self.ref, delay_ms, self.own.release_failed)
                self.emit_released(held_ms)
            self.release_answered(answer != "lost")
        except HoldfastError as error:
            self.own.release_failed(error)
            self.release_answered(error)
        finally:
            ended.end()
            self.release_reached_store()

    def release_reached_store(self) -> None:
        """Or is given up."""
        self._release_unanswered = False
        self.own.withdrawn()

    async def wait_released(self) -> None:
        if self._release_unanswered:
            self.own.will_withdraw(self.context.store)
            await self.own.wait_withdrawn()

    def release_answered(self, answer: Union[bool, HoldfastError]) -> None:
        for future in self._released():
            if future.done():
                continue
            if isinstance(answer, bool):
                future.set_result(answer)
            else:
                future.set_exception(answer)

    def _released(self) -> Sequence[asyncio.Future[bool]]:
        waiting, self._releasing = self._releasing, None
        return waiting or ()

    def emit_released(self, held_ms: float) -> None:
        if self.context.events.hears(Released):
            self.context.events.emit(Released(*self.event_base, held_ms))

    def not_in_store(self, deadline: Instant, answered: Instant, held_ms: float) -> None:
        """The store answered a release that it no longer had the lease. If the answer came before the lease's own end,
        the store had ended the lease early, and another holder may have worked at the same time. A later answer proves
        nothing: the release may have arrived after that end, when the work was already over."""
        if deadline.is_past(answered):
            self.emit_released(held_ms)
            return
        error = self._loss("the store no longer had it when it was released")
        self._ended = error
        self._emit_lost("missing" if self._unconfirmed_loss is None else "force-released", error)
        self._report_loss(error)

    def ask_to_stop(self, reason: str) -> None:
        """Reports a loss while the lease is still held and renewed: blocks have time to stop before it is released."""
        if self._ended is None and self._stop_request is None:
            self._stop_request = self._loss(reason)
            self._report_loss(self._stop_request)

    def lose(
        self, reason: str, cause: Optional[BaseException] = None, kind: Optional[LossReason] = None
    ) -> None:
        """The lease has ended without a release."""
        if self._ended is not None:
            return
        kind = kind or self._kind_of(reason)
        error = self._loss(reason, cause)
        self.has_expired = reason == NOT_RENEWED
        self._end(error)
        self.own.abandoned = True
        # The store may still have the lease: for the length of the margin, or for ever if it ends with a session. This
        # process no longer relies on it.
        self.context.store.release_until_answered(self.ref)
        self._emit_lost(kind, error)
        self._report_loss(error)

    def _kind_of(self, reason: str) -> LossReason:
        if reason == NOT_IN_STORE:
            return "missing" if self._unconfirmed_loss is None else "force-released"
        return "expired" if reason == NOT_RENEWED else "failed"

    def _emit_lost(self, kind: LossReason, error: LeaseLostError) -> None:
        """Before it is reported to what runs under the lease: a log should say why that ends."""
        events = self.context.events
        if events.hears(Lost):
            events.emit(Lost(*self.event_base, self._held_ms, kind, error))

    @property
    def _held_ms(self) -> float:
        return self.context.clock.now().monotonic_ms - self._answered_ms

    def _lose_where_it_lives(self) -> None:
        """Its time has passed. Only the event loop's own thread may report that. `held` is also asked by a thread that
        works under the lease, and after the event loop was closed."""
        store = self.context.store
        if store.loop.is_closed():
            self.lose_silently(self._renewer.loss, self._kind_of(self._renewer.loss))
        elif threading.get_ident() == store.thread_id:
            self.lose(self._renewer.loss)
        else:
            try:
                store.loop.call_soon_threadsafe(self.lose, self._renewer.loss)
            except RuntimeError:
                pass  # It was closed just now.

    def _notice_closed_loop(self) -> None:
        """With its event loop, its connection is gone: it can neither be renewed nor released."""
        if self.context.store.loop.is_closed():
            self.lose_silently("its event loop was closed", "session")

    def lose_silently(self, reason: str, kind: Optional[LossReason]) -> None:
        """The lease belongs to another process or to an event loop that is gone: nothing may be sent for it. `kind`:
        None in a forked process, where it is not lost."""
        if self._ended is None:
            self._ended = error = self._loss(reason)
            if kind is not None:
                self._emit_lost(kind, error)

    def _loss(self, reason: str, cause: Optional[BaseException] = None) -> LeaseLostError:
        confirmed = self._unconfirmed_loss if reason == NOT_IN_STORE else None
        error = LeaseLostError(self.claim.lock_name, self._token, reason if confirmed is None else str(confirmed))
        error.__cause__ = cause or confirmed
        return error

    def on_loss_message(self, cause: Exception) -> None:
        """The driver knows from its own connection that a session has ended. Any other message may be forged or
        outdated: the store is asked, and the lease is lost only if the store confirms it."""
        if self._ends_with_session:
            self.lose(str(cause), cause, "session")
            return
        self._unconfirmed_loss = cause
        # Any client may be able to send messages: a flood of them must not become a flood of renewals.
        if self._hint_timer is not None:
            return
        clock = self.context.clock
        rest_ms = self._hinted_at_ms + MIN_HINT_PAUSE_MS - clock.monotonic() * 1_000
        if rest_ms <= 0:
            self._ask_after_hint()
        else:
            self._hint_timer = clock.call_later(rest_ms, self._ask_after_hint)

    def _ask_after_hint(self) -> None:
        self._hint_timer = None
        self._hinted_at_ms = self.context.clock.monotonic() * 1_000
        self._renewer.check()

    def loss_refuted(self) -> None:
        """The store still has the lease, although a message has said that it was ended."""
        self._unconfirmed_loss = None

    @property
    def _ends_with_session(self) -> bool:
        return self.context.store.ends_with_session

    def _end(self, how: Union[str, LeaseLostError]) -> None:
        self._ended = how
        self.context.store.wake_ups.leases.pop(self.claim.claim_id, None)
        if self._hint_timer is not None:
            self._hint_timer.cancel()
        if self._stop_watching is not None:
            self._stop_watching()
        self._renewer.end()
        self._on_end(self)


class _Releasing:
    """Receives the answer to a release."""

    __slots__ = ("_lease", "_deadline", "_held_ms")

    def __init__(self, lease: HeldLease, deadline: Instant, held_ms: float) -> None:
        self._lease = lease
        self._deadline = deadline
        self._held_ms = held_ms

    def answered(self, answer: bool, sent: Instant, now: Instant) -> None:
        if answer:
            self._lease.emit_released(self._held_ms)
        else:
            self._lease.not_in_store(self._deadline, now, self._held_ms)
        self._lease.release_answered(answer)
        self._lease.release_reached_store()
        self._lease.context.in_flight.end()

    def failed(self, error: HoldfastError, sent: Instant) -> None:
        # The outcome is unknown. The lease must not stay until its TTL ends only because one call failed.
        lease = self._lease
        lease.context.store.release_until_answered(lease.ref, lease.release_reached_store, lease.own.release_failed)
        lease.own.release_failed(error)
        lease.release_answered(error)
        self._lease.context.in_flight.end()

    def late(self, answer: bool) -> None:
        pass


_WITHDRAWAL_SECONDS = 0.25
_HANDED_OVER = "handed over"


def _datetime(ms: float) -> datetime:
    """A store whose clock is beyond the last year that Python has is shown in that year."""
    try:
        return datetime.fromtimestamp(ms / 1_000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return datetime.max.replace(tzinfo=timezone.utc)
