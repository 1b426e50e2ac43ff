"""The heartbeat of a lease."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import TYPE_CHECKING, Callable, Optional, Protocol, Sequence

from ..errors import HoldfastError, StoreError
from .clock import Instant
from .deadline import LeaseDeadline, RenewalInFlight, SharedDeadline
from .driver import Renewal, RenewAnswer
from .events import RenewalFailed, Renewed
from .limits import MAX_RENEWAL_PAUSE_MS
from .scheduler import Entry

if TYPE_CHECKING:
    from .lease import HeldLease

NOT_RENEWED = "it was not renewed before it expired"
NOT_IN_STORE = "the store no longer has it"

TIMER_GRAIN_MS = 2
"""How late a timer can be, even on an idle machine. Timers fire this much early, so that no loss is reported late."""
_GRID_POINTS = 12
"""Grid points per TTL. Leases with the same TTL are renewed at the same few moments, in one list each."""
_RETRIES_PER_TTL = 9
"""A renewal without an answer is repeated after a ninth of the TTL or sooner: six tries or more before it ends."""
_JITTER = 0.05
_MAX_GRACE_MS = 500
"""How long the event loop may be late before the heartbeat thread renews for it."""

Done = Callable[[Optional[bool], Optional[HoldfastError]], None]
"""Whether the lease is held, or why that is unknown. Neither: the store was not asked."""


class Cover(Protocol):
    """A thread that renews while the event loop is blocked: core/heartbeat_thread.py."""

    def cover(self, renewer: Renewer) -> None: ...

    def moved(self, renewer: Renewer) -> None: ...

    def forget(self, renewer: Renewer) -> None: ...


class Renewer:
    """Sends all renewals of one lease, reports its loss in time, and knows until when it can be relied on."""

    __slots__ = (
        "schedule",
        "deadline",
        "renew_at_ms",
        "loss",
        "_lease",
        "_has_heartbeat",
        "_stops_at_ms",
        "_thread",
        "_lock",
        "_ended",
        "_sent",
        "_extensions_ms",
        "_confirming",
    )

    def __init__(
        self,
        lease: HeldLease,
        sent: Instant,
        answered: Instant,
        granted_ms: float,
        unanswered_ms: float,
        heartbeat: bool,
        max_hold_ms: float,
    ) -> None:
        self.schedule: Optional[Entry] = None
        self._thread = lease.context.thread
        # Reentrant, because the deadline takes it, too.
        self._lock = None if self._thread is None else threading.RLock()
        self.deadline = (
            LeaseDeadline(sent, granted_ms, unanswered_ms)
            if self._lock is None
            else SharedDeadline(self._lock, sent, granted_ms, unanswered_ms)
        )
        self.loss = NOT_RENEWED
        """Why the lease is lost if its deadline has passed."""
        self._lease = lease
        self._ended = False
        self._has_heartbeat = heartbeat
        self._stops_at_ms = sent.monotonic_ms + max_hold_ms
        self._sent: Optional[set[SentRenewal]] = None if self._thread is None else set()
        """Renewals in flight."""
        self._extensions_ms: Optional[list[float]] = None
        """The TTLs of the extensions in flight. A heartbeat that is sent at the same time must not shorten them."""
        self._confirming: Optional[list[Done]] = None
        """While a confirmation is in flight: who waits for the next one."""
        self.renew_at_ms = self._next_renewal(answered)
        """When the next renewal is due, on the monotonic clock."""
        # A grant that arrived late, or that is shorter than the claim's TTL, is renewed once to the full TTL, even
        # without a heartbeat. That happens early enough that the renewal can fail twice.
        ttl_ms = lease.ttl_ms
        full_ttl_at_ms = self.deadline.at.monotonic_ms - min(granted_ms, ttl_ms) * 2 / 3
        if granted_ms < ttl_ms or full_ttl_at_ms < answered.monotonic_ms:
            self.renew_at_ms = min(self.renew_at_ms, full_ttl_at_ms)
        self._reschedule(answered)

    def begin(self) -> None:
        """Call it when the lease is complete."""
        if self._has_heartbeat and self._thread is not None:
            self._thread.cover(self)

    def due(self) -> None:
        lease = self._lease
        now = lease.context.clock.now()
        if not lease.held:
            return
        if self.deadline.at.due_at_ms(now) - now.monotonic_ms <= TIMER_GRAIN_MS:
            # It ends before another timer could fire.
            lease.lose(NOT_RENEWED)
            return
        if now.monotonic_ms >= self._stops_at_ms:
            self.renew_at_ms = math.inf
        if now.monotonic_ms >= self.renew_at_ms:
            self._send_heartbeat(now.monotonic_ms)
        # None if the lease expired while the heartbeat was being sent: a stall can come between any two statements.
        if self.schedule is not None:
            self._reschedule(now)

    async def extend(self, ttl_ms: float, *, never_shorten: bool = False) -> bool:
        """Renews once, for a caller. False if the lease is lost. Raises `StoreError` if that is unknown.

        `never_shorten`: the lease ends no sooner than it would anyway, nor sooner than concurrent extensions ask for.
        """
        extensions = self._extensions_ms = [] if self._extensions_ms is None else self._extensions_ms
        extensions.append(ttl_ms)
        try:
            # A renewal of the heartbeat in flight could arrive after this one and undo what the caller asked for.
            await self.settled(lengthening=True)
            if never_shorten:
                now = self._lease.context.clock.now()
                is_long_enough = self.deadline.at.due_at_ms(now) - now.monotonic_ms >= ttl_ms
                # Without a heartbeat, the last answer may be older than a forced release may go unnoticed.
                if is_long_enough and self._has_heartbeat and now.monotonic_ms < self._stops_at_ms:
                    # The store is not asked, so nothing else would give the event loop a turn.
                    await asyncio.sleep(0)
                    return self._lease.held
            future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

            def done(answer: Optional[bool], error: Optional[HoldfastError]) -> None:
                if future.done():
                    return
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(bool(answer))

            if never_shorten:
                self._lengthen(ttl_ms, done)
            else:
                self._renew_once(ttl_ms, done)
            return await future
        finally:
            extensions.remove(ttl_ms)

    def start_heartbeat(self) -> None:
        if not self._has_heartbeat:
            self._has_heartbeat = True
            now = self._lease.context.clock.now()
            self.renew_at_ms = self._next_renewal(now)
            self._reschedule(now)
            if self._thread is not None:
                self._thread.cover(self)

    def check(self) -> None:
        """Asks the store whether it still has the lease, after a message that says that it has not."""
        self.confirm(self._checked)

    def confirm(self, done: Done) -> None:
        """Asks the store whether it still has the lease. If not, the lease is lost. The store is not asked about one
        that has ended.

        It is a renewal: with a heartbeat an early one, otherwise one that leaves the end of the lease unchanged. One is
        in flight at a time. It says nothing about what happens after it was sent, so those who ask meanwhile share
        the next one.
        """
        if self._confirming is not None:
            if done not in self._confirming:
                self._confirming.append(done)
            return
        lease = self._lease
        now_ms = lease.context.clock.monotonic() * 1_000
        is_heartbeat = self._has_heartbeat and now_ms < self._stops_at_ms
        ttl_ms = lease.ttl_ms if is_heartbeat else self.deadline.ends_at_ms - now_ms
        if not lease.held or ttl_ms <= 0:
            done(None, None)
            return
        self._confirming = []
        renew_at_ms = self.renew_at_ms

        def answered(answer: Optional[bool], error: Optional[HoldfastError]) -> None:
            following, self._confirming = self._confirming, None
            done(answer, error)
            if not is_heartbeat:
                self.renew_at_ms = renew_at_ms
            if following:
                self.confirm(_for_each(following))

        self._lengthen(ttl_ms, answered)

    def end(self) -> None:
        """Stops renewing."""
        self._lease.context.scheduler.clear(self)
        if self._thread is not None and self._lock is not None:
            self._thread.forget(self)
            # What the thread has sent before is among `_sent` then, and it sends nothing more.
            with self._lock:
                self._ended = True

    async def settled(self, *, lengthening: bool = False) -> None:
        """Returns when no renewal is in flight. `lengthening`: none that shortens no extension."""
        # A copy in one step, because a heartbeat thread may add to it.
        while waiting := [each for each in list(self._sent or ()) if each.lengthens or not lengthening]:
            for sent in waiting:
                await sent.settled()

    def _send_heartbeat(self, now_ms: float) -> None:
        # The next try does not wait for the answer to this one: a renewal that hangs must not use up the lease.
        self.renew_at_ms = now_ms + self._retry_pause_ms()
        self._lengthen(self._lease.ttl_ms, self._background_done)

    def _retry_pause_ms(self) -> float:
        jitter = 1 - self._lease.context.random.fraction() * _JITTER
        return min(self._lease.ttl_ms / _RETRIES_PER_TTL, MAX_RENEWAL_PAUSE_MS) * jitter

    def _checked(self, answer: Optional[bool], error: Optional[HoldfastError]) -> None:
        if answer:
            self._lease.loss_refuted()
        self._background_done(answer, error)

    def _background_done(self, answer: Optional[bool], error: Optional[HoldfastError]) -> None:
        lease = self._lease
        if error is None or not lease.held:
            return
        # One failed renewal is not a loss: with a `StoreError` the result is unknown, and the next try may succeed. Any
        # other error would only happen again.
        if isinstance(error, StoreError):
            events = lease.context.events
            if events.hears(RenewalFailed):
                events.emit(RenewalFailed(*lease.event_base, error))
        else:
            lease.lose("the driver failed to renew it", error)

    def _lengthen(self, ttl_ms: float, done: Done) -> None:
        """A renewal that shortens no extension: it covers the longest one in flight, and later ones wait for it."""
        longest_ms = max(ttl_ms, *self._extensions_ms) if self._extensions_ms else ttl_ms
        self._renew_once(longest_ms, done, lengthens=True)

    def _renew_once(self, ttl_ms: float, done: Done, *, lengthens: bool = False) -> None:
        lease = self._lease
        # A stalled process must not renew its way past a loss that it has not noticed. So this is checked before
        # sending, and again after the answer.
        if not lease.held:
            done(False, None)
            return
        now = lease.context.clock.now()
        end_ms = self.deadline.at.monotonic_ms
        renewal = self.deadline.sending(now, ttl_ms)
        # A renewal that shortens the lease may never be answered. So the next renewal moves to before the new deadline.
        if self.deadline.at.monotonic_ms < end_ms:
            self.renew_at_ms = min(self.renew_at_ms, self._next_renewal(now))
        self._reschedule(now)
        among = self._sent = set() if self._sent is None else self._sent
        sent = SentRenewal(self, renewal, done, among, lengthens)
        among.add(sent)
        lease.context.in_flight.begin()
        request = Renewal(lease.lock_name, lease.claim.claim_id, lease.fencing_token, ttl_ms)
        lease.context.store.renew(request, sent)

    def confirmed(self, renewal: RenewalInFlight, took_ms: float) -> None:
        self.deadline.confirmed(renewal)
        now = self._lease.context.clock.now()
        self.renew_at_ms = self._next_renewal(now)
        self._reschedule(now)
        self._emit_renewed(took_ms)

    def _next_renewal(self, now: Instant) -> float:
        """When two thirds of the TTL are left, rounded down to the scheduler's grid. If less than the TTL is left
        anyway, after a third of what is left: a renewal that proved less than its TTL must not be followed by the next
        one at once. After 5 s at the latest: it is how a holder learns of a forced release."""
        if not self._has_heartbeat:
            return math.inf
        context = self._lease.context
        end_ms = self.deadline.at.due_at_ms(now)
        remaining_ms = max(1.0, min(self._lease.ttl_ms, end_ms - now.monotonic_ms))
        jitter = context.random.fraction() * _JITTER
        soon_ms = now.monotonic_ms + MAX_RENEWAL_PAUSE_MS * (1 - jitter)
        due_ms = min(soon_ms, end_ms - remaining_ms * (2 / 3 + jitter))
        # Steps are powers of two, so that leases with slightly different remaining times share a grid.
        step_ms = 2.0 ** math.floor(math.log2(min(remaining_ms, 3 * MAX_RENEWAL_PAUSE_MS) / _GRID_POINTS))
        return context.scheduler.round(due_ms, step_ms)

    def _reschedule(self, now: Instant) -> None:
        at_ms = min(self.deadline.at.due_at_ms(now) - TIMER_GRAIN_MS, self.renew_at_ms)
        self._lease.context.scheduler.set(self, at_ms)
        if self._thread is not None:
            self._thread.moved(self)

    @property
    def lease(self) -> HeldLease:
        return self._lease

    @property
    def covered_at_ms(self) -> float:
        """When the heartbeat thread renews the lease, unless the event loop has done so before."""
        return self.renew_at_ms + min(self._lease.ttl_ms / _GRID_POINTS, _MAX_GRACE_MS)

    def send_for(self, now: Instant) -> Optional[SentRenewal]:
        """Called in the heartbeat thread, which then sends the renewal. None: it must not be sent any more."""
        assert self._sent is not None and self._lock is not None
        with self._lock:
            if self._ended or now.monotonic_ms >= self._stops_at_ms:
                self.renew_at_ms = math.inf
                return None
            ttl_ms = max(self._lease.ttl_ms, *(self._extensions_ms or ()), 0)
            self.renew_at_ms = now.monotonic_ms + self._retry_pause_ms()
            sent = SentRenewal(self, self.deadline.sending(now, ttl_ms), self._background_done, self._sent, True)
            self._sent.add(sent)
            return sent

    def answered_in_thread(self, renewal: RenewalInFlight, answer: RenewAnswer, now: Instant) -> None:
        # The answer may say "renewed" about a lease whose loss was already reported, or which was released.
        if not self._lease.peek_held():
            return
        if answer == "lost":
            self.loss = NOT_IN_STORE
            self.deadline.end()
        else:
            self.deadline.confirmed(renewal)
            self.renew_at_ms = self._next_renewal(now)

    def noticed(self, took_ms: float, error: Optional[HoldfastError]) -> None:
        """The event loop runs again, after the thread got an answer."""
        lease = self._lease
        # It reports a loss.
        if not lease.held:
            return
        self._reschedule(lease.context.clock.now())
        if error is not None:
            self._background_done(None, error)
        else:
            self._emit_renewed(took_ms)

    def _emit_renewed(self, took_ms: float) -> None:
        events = self._lease.context.events
        if events.hears(Renewed):
            events.emit(Renewed(*self._lease.event_base, took_ms))


class SentRenewal:
    """A renewal that was sent. Receives its answer."""

    __slots__ = ("lengthens", "_renewer", "_renewal", "_done", "_among", "_waiting")

    def __init__(
        self, renewer: Renewer, renewal: RenewalInFlight, done: Done, among: set[SentRenewal], lengthens: bool
    ) -> None:
        self.lengthens = lengthens
        """Whether it shortens no extension. Extensions wait for it."""
        self._renewer = renewer
        self._renewal = renewal
        self._done = done
        self._among = among
        self._waiting: Optional[list[asyncio.Future[None]]] = []

    def answered(self, answer: RenewAnswer, sent: Instant, now: Instant) -> None:
        lease = self._renewer.lease
        # The answer may say "renewed" about a lease whose loss was already reported, or which was released.
        if not lease.held:
            self._settle(lease.is_handed_over and answer != "lost", None)
        elif answer == "lost":
            lease.lose(NOT_IN_STORE)
            self._settle(False, None)
        else:
            self._renewer.confirmed(self._renewal, now.monotonic_ms - sent.monotonic_ms)
            self._settle(True, None)

    def failed(self, error: HoldfastError, sent: Instant) -> None:
        self._renewer.deadline.unanswered(self._renewal)
        self._settle(None, error)

    def late(self, answer: RenewAnswer) -> None:
        pass

    @property
    def ttl_ms(self) -> float:
        return self._renewal.ttl_ms

    def answered_in_thread(self, answer: RenewAnswer, now: Instant) -> None:
        """If the heartbeat thread has sent it. `settled_in_thread` follows in the event loop."""
        self._renewer.answered_in_thread(self._renewal, answer, now)

    def failed_in_thread(self) -> None:
        self._renewer.deadline.unanswered(self._renewal)

    def settled_in_thread(self, took_ms: float, error: Optional[HoldfastError]) -> None:
        self._wake_waiting()
        self._renewer.noticed(took_ms, error)

    async def settled(self) -> None:
        if self._waiting is not None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def _wake_waiting(self) -> None:
        self._among.discard(self)
        waiting, self._waiting = self._waiting or [], None
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _settle(self, answer: Optional[bool], error: Optional[HoldfastError]) -> None:
        self._wake_waiting()
        self._done(answer, error)
        self._renewer.lease.context.in_flight.end()


def _for_each(waiting: Sequence[Done]) -> Done:
    def done(answer: Optional[bool], error: Optional[HoldfastError]) -> None:
        for each in waiting:
            each(answer, error)

    return done
