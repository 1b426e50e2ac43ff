"""The claims and leases of one instance."""

from __future__ import annotations

import asyncio
import math
import os
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence, Union

from ..errors import ClosedError, HoldfastError, InvalidArgumentError, OverloadError, StoreError
from .claim_ids import Chain, ClaimIds, is_outermost
from .clock import Clock, Random
from .deadline import ttl_ms_for
from .deadlock.watch import DeadlockWatch
from .driver import (
    Capabilities,
    Claim,
    Driver,
    Grant,
    InspectPage,
    InspectQuery,
    LeaseRecord,
    LeaseRef,
    Metadata,
    Mode,
    RateAnswer,
    RateRequest,
    Refusal,
    Renewal,
)
from .emitter import Emitter
from .events import Acquired as AcquiredEvent
from .events import AcquireFailed, ForceReleased, LossReason, Requested, Restored
from .events import Refused as RefusedEvent
from .hand_over import HandOver
from .heartbeat_thread import HeartbeatThread
from .in_flight import InFlight
from .lease import HeldLease, Lease, LeaseContext, OwnClaim
from .limits import MAX_PENDING_CLAIMS, MAX_TTL_MS, PING_TTL_MS
from .pending_claim import Granted, Outcome, PendingClaim, holder_of
from .renewer import NOT_IN_STORE
from .restore import restore
from .scheduler import Scheduler
from .store_client import (
    AcquireAnswer,
    StoreClient,
    close_store_client,
    fail_store_client,
    forget_store_client,
    open_store_client,
    unsupported,
)


@dataclass
class ClaimRequest:
    """A claim as a primitive describes it. The arguments have been checked."""

    lock_name: str
    ttl_ms: float
    wait_ms: float = 0
    mode: Mode = "exclusive"
    limit: Optional[int] = None
    permits: int = 1
    metadata: Optional[Metadata] = None
    heartbeat: bool = False
    min_hold_ms: float = 0
    max_hold_ms: float = math.inf
    force_up_to: Optional[int] = None
    group: Optional[str] = None
    """All claims of one group must be made in one step, without an `await` between them."""
    under: Optional[Lease] = None
    """A lease that the caller keeps until the claim has ended, outside of a block."""
    chain: Optional[Chain] = None
    """The block inside which the claim is made, or the lease that it is made under."""
    shared_chain: Optional[Chain] = None
    """The block of the lease, if it shares the block with leases that are acquired together with it."""


@dataclass(frozen=True)
class Refused:
    """Why a claim got no lease, and how long it waited."""

    refusal: Refusal
    waited_ms: float


ClaimResult = Union[HeldLease, Refused]
OnEnd = Callable[[HeldLease], None]


class Holder:
    """Makes the claims of one instance, keeps their leases, and releases all of them on close.

    It belongs to the event loop in which it was made.
    """

    def __init__(
        self,
        driver: Driver,
        holder_id: str,
        *,
        clock: Clock,
        random: Random,
        call_timeout_ms: float,
        waiter_ttl_ms: float,
        events: Optional[Emitter] = None,
        deadlock_after_ms: float = 0,
        thread: Optional[HeartbeatThread] = None,
    ) -> None:
        """`deadlock_after_ms`: how long a nested claim waits before it looks for a deadlock. 0: it never looks."""
        self.holder_id = holder_id
        self.clock = clock
        self.random = random
        self.events = Emitter() if events is None else events
        self.leases: dict[HeldLease, None] = {}
        self.loop = asyncio.get_running_loop()
        self._waiter_ttl_ms = waiter_ttl_ms
        self._ids = ClaimIds(random)
        self._store = open_store_client(driver, clock, random, call_timeout_ms)
        self._scheduler = Scheduler(clock, random)
        self._in_flight = InFlight()
        self._thread = thread
        if thread is not None:
            thread.events = self.events
        self._context = LeaseContext(self._store, self._scheduler, self._in_flight, self.events, thread)
        self._deadlocks: Optional[DeadlockWatch] = None
        # Whether the store shows who waits: its own queue, or the sessions that a database server reports. Without
        # that, no deadlock can be found.
        if deadlock_after_ms > 0 and (driver.capabilities.queue or self._store.ends_with_session):
            self._deadlocks = DeadlockWatch(
                self._context,
                lambda: open_store_client(driver, clock, random, call_timeout_ms, "markers"),
                deadlock_after_ms,
            )
        self._pending: dict[PendingClaim, ClaimRequest] = {}
        self._held = InFlight()
        """Leases that have not ended."""
        self.running = InFlight()
        """Blocks that run under a lease."""
        self._ended: Optional[str] = None
        self.abandoned = False
        _holders.add(self)

    @property
    def capabilities(self) -> Capabilities:
        return self._store.driver.capabilities

    @property
    def driver_name(self) -> str:
        return self._store.driver.name

    @property
    def longest_ttl_ms(self) -> float:
        longest = self._store.driver.longest_ttl_ms
        return MAX_TTL_MS if longest is None else longest

    def assert_supports(self, what: str) -> None:
        """Raises `UnsupportedError` if the driver does not have `shared`, `limit`, `rate` or `force`."""
        if not getattr(self.capabilities, what):
            raise unsupported(self._store.driver, what)

    async def acquire(self, request: ClaimRequest, on_end: Optional[OnEnd] = None) -> ClaimResult:
        """Makes a claim, and returns when it is granted or refused. If it returns no lease, or is cancelled, the claim
        is withdrawn from the store.

        Raises `StoreError`, `ClosedError`, `OverloadError`, `UnsupportedError`.
        """
        acquiring = self.begin(request, on_end)
        try:
            result = await acquiring.future
        except asyncio.CancelledError:
            acquiring.cancel()
            await acquiring.withdrawn()
            raise
        except HoldfastError:
            if request.wait_ms > 0:
                await acquiring.withdrawn()
            raise
        if request.wait_ms > 0 and isinstance(result, Refused):
            await acquiring.withdrawn()
        return result

    def begin(self, request: ClaimRequest, on_end: Optional[OnEnd] = None) -> Acquiring:
        """Makes a claim without waiting for its end. The caller awaits its future, or cancels it."""
        self._assert_open()
        if request.mode == "shared":
            self.assert_supports("shared")
        if request.limit is not None:
            self.assert_supports("limit")
        if request.force_up_to is not None and self.capabilities.force != "claim":
            raise unsupported(self._store.driver, "force")
        if request.min_hold_ms > self.longest_ttl_ms:
            longest = f"{self.longest_ttl_ms / 1_000:g}"
            rule = f"at most {longest}, the longest that the {self.driver_name} driver keeps anything"
            raise InvalidArgumentError("min_hold_seconds", request.min_hold_ms / 1_000, rule)
        self.assert_room(1)
        own = OwnClaim(self._claim_of(request), self.events)
        acquiring = Acquiring(self, self._context, own, request, on_end)
        self._pending[acquiring.pending] = request
        if self.events.hears(Requested):
            self.events.emit(Requested(*own.event_base, request.wait_ms > 0))
        # A claim that waits while no lock is held around it can be part of no deadlock.
        if self._deadlocks is not None and request.wait_ms > 0 and (request.chain or request.shared_chain):
            self._deadlocks.watch(acquiring.pending)
        acquiring.pending.start()
        return acquiring

    def ended(self, pending: PendingClaim) -> None:
        self._pending.pop(pending, None)
        if self._deadlocks is not None:
            self._deadlocks.forget(pending)

    def assert_room(self, claims: int) -> None:
        """A group checks first, because it must not be requested in part. Raises `OverloadError`."""
        if max(len(self._pending), self._in_flight.count) + claims > MAX_PENDING_CLAIMS:
            raise OverloadError(f"an instance can have at most {MAX_PENDING_CLAIMS} claims in flight or waiting")

    def create_claim(self, request: ClaimRequest) -> Claim:
        """Forms a claim for `ask`: for a lease that has to outlive this process. All others use `acquire`."""
        return self._claim_of(request)

    async def ask(self, claim: Claim) -> AcquireAnswer:
        """Sends a claim once. This holder neither renews nor releases the lease. After an error it is unknown whether
        the store granted it: send the same claim again, which gets the same lease."""
        return await self._store.ask(claim)

    async def release(self, lease: LeaseRef) -> bool:
        """Ends a lease that this holder does not keep. True if the store had it."""
        return await self._store.end(lease)

    async def confirm(self, lease: HeldLease) -> bool:
        """Renews a lease of this holder. True if the store still has it. If not, the lease is lost. A lease that was
        extended beyond its TTL is not shortened: this process relies on it for longer."""
        ref = lease.ref
        relied_on_ms = ttl_ms_for(lease.remaining_seconds * 1_000)
        ttl_ms = min(max(lease.ttl_ms, relied_on_ms), self.longest_ttl_ms)
        renewal = Renewal(ref.lock_name, ref.claim_id, lease.fencing_token, ttl_ms)
        answer = await self._store.confirm(renewal)
        if answer == "lost":
            lease.lose(NOT_IN_STORE)
        return answer != "lost"

    async def force_release(
        self, leases: Sequence[LeaseRecord], *, by: str, end_session: bool
    ) -> Sequence[Union[bool, HoldfastError]]:
        """Ends leases of other holders, with a driver that has no forced claims. See `ForcingDriver`."""
        self._assert_open()
        self._in_flight.begin()
        try:
            answers = await self._store.force_release(leases, by=by, end_session=end_session)
        finally:
            self._in_flight.end()
        cause = StoreError(f"it was ended by {by}")
        for lease, answer in zip(leases, answers):
            if answer is not True:
                continue
            if self.events.hears(ForceReleased):
                base = lease.lock_name, self.holder_id, lease.claim_id, lease.fencing_token
                self.events.emit(ForceReleased(*base, {"forcedBy": by}))
            # A holder in this process learns of it without a message of the store.
            own = self._store.lease_of(lease.claim_id)
            if own is not None:
                own.on_loss_message(cause)
        return answers

    async def inspect(self, query: InspectQuery) -> InspectPage:
        self._assert_open()
        return await self._store.inspect(query)

    async def consume(self, request: RateRequest) -> RateAnswer:
        self._assert_open()
        return await self._store.consume(request)

    async def ping(self) -> None:
        """Acquires and releases a lock whose name is random: proof that the store is reachable, has what the driver
        needs and accepts writes. Raises what the store reports, and `ClosedError`."""
        self._assert_open()
        ttl_ms = min(PING_TTL_MS, self.longest_ttl_ms)
        claim = self._claim_of(ClaimRequest(f"ping:{self.random.id()}", ttl_ms))
        try:
            answer = await self._store.ask(claim)
            if not isinstance(answer, Grant):
                raise StoreError(f"the {self.driver_name} store refused a claim on an unused lock name")
            if not await self._store.end(LeaseRef(claim.lock_name, claim.claim_id, answer.fencing_token)):
                raise StoreError(f"the {self.driver_name} store lost a lease that it had just granted")
        except BaseException as error:
            # A permanent failure, such as a wrong password, has written nothing.
            if not (isinstance(error, StoreError) and not error.retryable):
                self._store.withdraw(claim)
            raise

    def new_chain(self) -> Chain:
        """For leases that are acquired together, outside of any block."""
        return self._ids.new_chain()

    async def drain(self, drain_ms: float) -> None:
        """Waits at most `drain_ms` until every lease has ended and every block under one has, too. Ends waiting claims
        with `ClosedError`, except those made inside the block of a lease."""
        self._end_pending(lambda request: request.chain is None)
        idle = asyncio.gather(self._held.idle(), self.running.idle())
        await _within(drain_ms, idle)

    async def close(self, settle_ms: float = 0) -> None:
        """Ends every pending claim, asks running blocks to stop and waits at most `settle_ms` for them, then releases
        every lease. Returns when no request is in flight any more."""
        if self._ended is None:
            self._ended = "the instance is closed"
        self._end_pending(lambda request: True)
        if self.running.count > 0:
            for lease in list(self.leases):
                lease.ask_to_stop("its instance is being closed")
            await _within(settle_ms, asyncio.ensure_future(self.running.idle()))
        cause = ClosedError("the instance was closed")
        ends = [lease.begin_revoke("its instance was closed", cause) for lease in list(self.leases)]
        await asyncio.gather(*ends, return_exceptions=True)
        await self._in_flight.idle()
        if self._thread is not None:
            await self._thread.close()
        self._scheduler.close()
        for store in self._stores:
            await close_store_client(store)

    def force_close(self) -> None:
        """For a `close` that takes too long: fails every request that the store has not answered."""
        for store in self._stores:
            fail_store_client(store, ClosedError("the instance was closed before the store had answered"))

    def abandon(self, reason: str, kind: Optional[LossReason]) -> None:
        """The event loop or the process of this holder is gone: its leases can neither be renewed nor released. `kind`
        as in `HeldLease.lose_silently`."""
        self.abandoned = True
        self._ended = reason
        for lease in list(self.leases):
            lease.lose_silently(reason, kind)
        self.leases.clear()

    def stop_sending(self, reason: str) -> None:
        """For a child process that ends the copy of the event loop: that cancels all tasks. What they would send, such
        as the withdrawal of a claim that waits, concerns claims of the parent, which may hold a lock by now."""
        for store in self._stores:
            store.stop_sending(ClosedError(reason))

    def forget_store(self) -> None:
        """Lets the garbage collector close the connections of an event loop that was closed. Not in a child process: it
        shares their sockets, and closing a stream would also end the parent's watch on it."""
        for store in self._stores:
            forget_store_client(store)
        if self._thread is not None:
            self._thread.close_soon()

    @property
    def _stores(self) -> Sequence[StoreClient]:
        markers = None if self._deadlocks is None else self._deadlocks.opened
        return (self._store,) if markers is None else (markers, self._store)

    def forced(self, lease: HeldLease) -> None:
        """Earlier holders that share the store client lose their leases at once. All others learn of it from the
        store: from a message, or from the answer to their next renewal."""
        if self.events.hears(ForceReleased):
            self.events.emit(ForceReleased(*lease.event_base, lease.metadata))
        for other in list(self._store.wake_ups.leases.values()):
            if (
                isinstance(other, HeldLease)
                and other.lock_name == lease.lock_name
                and other.fencing_token < lease.fencing_token
            ):
                other.lose(f"it was force-released by {lease.holder_id}", None, "force-released")

    def _claim_of(self, request: ClaimRequest) -> Claim:
        if request.shared_chain is not None:
            claim_id = request.shared_chain.next_member_id()
        elif request.chain is not None:
            claim_id = request.chain.next_claim_id()
        else:
            claim_id = self._ids.next()
        return Claim(
            request.lock_name,
            claim_id,
            self.holder_id,
            request.ttl_ms,
            request.mode,
            request.limit,
            request.permits,
            request.metadata,
            self._waiter_ttl_ms if request.wait_ms > 0 else 0,
            request.force_up_to,
            request.group,
        )

    def hold(self, own: OwnClaim, granted: Granted, request: ClaimRequest, on_end: Optional[OnEnd]) -> HeldLease:
        lease = HeldLease(
            self._context,
            own,
            granted.grant,
            granted.sent,
            granted.answered,
            unanswered_ms=granted.unanswered_ms,
            heartbeat=request.heartbeat,
            min_hold_ms=request.min_hold_ms,
            max_hold_ms=request.max_hold_ms,
            shared_chain=request.shared_chain,
            on_end=self._ended_by(on_end),
        )
        self._began(lease)
        return lease

    async def restore(
        self, handed_over: HandOver, *, heartbeat: bool, ttl_ms: Optional[int], on_end: OnEnd
    ) -> HeldLease:
        """Continues a lease that another process has handed over. Raises what `restore` of core/restore.py raises, and
        `ClosedError`."""
        self._assert_open()
        ttl_ms = handed_over.ttl_ms if ttl_ms is None else ttl_ms
        restored = await restore(self._context, handed_over, ttl_ms)
        self._assert_open()
        name, claim_id, metadata = handed_over.lock_name, handed_over.claim_id, handed_over.metadata
        lease = HeldLease(
            self._context,
            OwnClaim(Claim(name, claim_id, handed_over.holder_id, ttl_ms, metadata=metadata), self.events),
            Grant(handed_over.fencing_token, restored.granted_ms, handed_over.acquired_at_ms),
            restored.sent,
            restored.answered,
            unanswered_ms=restored.unanswered_ms,
            heartbeat=heartbeat,
            min_hold_ms=handed_over.min_hold_ms,
            max_hold_ms=handed_over.max_hold_ms,
            # The blocks around its claim run in another process.
            shared_chain=None if is_outermost(claim_id) else self.new_chain(),
            store_at_ms=handed_over.store_at_ms,
            on_end=self._ended_by(on_end),
        )
        self._began(lease)
        if self.events.hears(Restored):
            self.events.emit(Restored(*lease.event_base))
        return lease

    def _began(self, lease: HeldLease) -> None:
        self.leases[lease] = None
        self._held.begin()

    def _ended_by(self, on_end: Optional[OnEnd]) -> OnEnd:
        def ended(lease: HeldLease) -> None:
            if lease in self.leases:
                del self.leases[lease]
                self._held.end()
            if on_end is not None:
                on_end(lease)

        return ended

    def _end_pending(self, matches: Callable[[ClaimRequest], bool]) -> None:
        for pending, request in list(self._pending.items()):
            if matches(request):
                pending.give_up(ClosedError("the instance was closed while the claim waited"))

    def _assert_open(self) -> None:
        if self._ended is not None:
            raise ClosedError(self._ended)


class Acquiring:
    """A claim that was made and has not ended."""

    __slots__ = ("future", "pending", "_holder", "_store", "_request", "_on_end", "_events")

    def __init__(
        self, holder: Holder, context: LeaseContext, own: OwnClaim, request: ClaimRequest, on_end: Optional[OnEnd]
    ) -> None:
        self.future: asyncio.Future[ClaimResult] = holder.loop.create_future()
        self.pending = PendingClaim(context, own, request.wait_ms, self._settle)
        self._holder = holder
        self._store = context.store
        self._request = request
        self._on_end = on_end
        self._events = holder.events

    def cancel(self) -> None:
        """The caller does not want it any more. Nothing stays in the store."""
        future = self.future
        # The grant may have come in the same turn of the event loop as the cancellation.
        if future.done() and not future.cancelled() and future.exception() is None:
            result = future.result()
            if isinstance(result, HeldLease):
                result.discard_in_background()
        future.cancel()
        self.pending.give_up(_CANCELLED)

    async def withdrawn(self) -> None:
        """Waits a moment until a claim that was given up has left the store."""
        await self.pending.own.wait_withdrawn()

    def _settle(self, outcome: Outcome) -> None:
        """The lease is made at once, so that a `close` before the caller runs again finds it."""
        self._holder.ended(self.pending)
        future, request = self.future, self._request
        if isinstance(outcome, Granted):
            if not future.done():
                lease = self._holder.hold(self.pending.own, outcome, request, self._on_end)
                future.set_result(lease)
                if self._events.hears(AcquiredEvent):
                    self._events.emit(AcquiredEvent(*lease.event_base, self.pending.waited_ms))
                if request.force_up_to is not None:
                    self._holder.forced(lease)
                return
            # The caller was cancelled in this turn of the event loop, and has not run since.
            self.pending.own.withdraw(self._store)
            self._emit_failed(asyncio.CancelledError())
        elif future.done():
            self._emit_failed(asyncio.CancelledError())
        elif isinstance(outcome, Refusal):
            if self._events.hears(RefusedEvent):
                event = RefusedEvent(*self.pending.own.event_base, self.pending.waited_ms, holder_of(outcome))
                self._events.emit(event)
            # A claim that does not wait reports 0: the round trip to the store is not waiting.
            future.set_result(Refused(outcome, self.pending.waited_ms if request.wait_ms > 0 else 0.0))
        else:
            self._emit_failed(outcome)
            future.set_exception(outcome)

    def _emit_failed(self, error: BaseException) -> None:
        if self._events.hears(AcquireFailed):
            self._events.emit(AcquireFailed(*self.pending.own.event_base, self.pending.waited_ms, error))


async def _within(timeout_ms: float, work: asyncio.Future[Any]) -> bool:
    """Whether the work, which may be cancelled, ended in time."""
    try:
        done, _ = await asyncio.wait({work}, timeout=timeout_ms / 1_000)
        return bool(done)
    finally:
        work.cancel()


_CANCELLED = ClosedError("the caller was cancelled")
_holders: "weakref.WeakSet[Holder]" = weakref.WeakSet()


def _after_fork() -> None:
    """The leases belong to the parent process. If the child relied on them, two processes would hold one lock; if it
    released them, the parent would lose them without notice."""
    for holder in list(_holders):
        holder.abandon("the process was forked, and the lease stayed with the parent process", None)
        holder.stop_sending("the process was forked, and its claims stayed with the parent process")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

