"""Several locks, all or none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Union

from ._block import LeaseBlock
from ._options import EXCLUSIVE
from ._result import not_acquired_error
from .core.arguments import check_lock_name
from .core.clock import BLOCKED_MS, READING_TURNS, Clock
from .core.holder import ClaimRequest, Holder, Refused
from .core.lease import HeldLease, Lease
from .core.limits import MAX_LOCKS_AT_ONCE
from .core.store_client import is_outage
from .errors import HoldfastError, InvalidArgumentError, LeaseLostError, NotAcquiredError, StoreError

if TYPE_CHECKING:
    from ._claims import Claims


def check_names(lock_names: Sequence[str]) -> list[str]:
    if isinstance(lock_names, str) or not isinstance(lock_names, (list, tuple)):
        raise InvalidArgumentError("lock_names", lock_names, "a list of lock names")
    if not 1 <= len(lock_names) <= MAX_LOCKS_AT_ONCE:
        raise InvalidArgumentError("lock_names", lock_names, f"a list of 1 to {MAX_LOCKS_AT_ONCE} lock names")
    return [check_lock_name(name, f"lock_names[{index}]") for index, name in enumerate(lock_names)]


def in_order(lock_names: Sequence[str]) -> list[str]:
    """All clients, in any language, wait in the order of UTF-8 bytes. So two of them never wait for each other."""
    return sorted(set(lock_names), key=lambda name: name.encode())


class SeveralBlock(LeaseBlock[List[Lease]]):
    """First asks for all at once, as one group. If that is refused and it may wait, it takes one after the other."""

    def __init__(self, claims: Claims, lock_names: Sequence[str], requests: Sequence[ClaimRequest]) -> None:
        """`requests` are in the order of `in_order`."""
        super().__init__(claims, EXCLUSIVE)
        self._names = lock_names
        self._requests = requests

    async def _take(self) -> tuple[Sequence[Lease], list[Lease]]:
        claims = self._claims
        requests = [claims.prepared(request) for request in self._requests]
        entered: dict[str, Lease] = {}
        for request in requests:
            lease = claims.reentry.enter(request, EXCLUSIVE)
            if lease is not None:
                self._keep(lease)
                entered[request.lock_name] = lease
        wanted = [request for request in requests if request.lock_name not in entered]
        taken: Sequence[HeldLease] = ()
        if wanted:
            holder = claims.holder or await claims.instance.open()
            taken = await _Taking(claims, holder, list(entered.values()), wanted).run()
        by_name = {**entered, **{lease.lock_name: lease for lease in taken}}
        return list(by_name.values()), [by_name[name] for name in self._names]


class _Taking:
    def __init__(self, claims: Claims, holder: Holder, entered: list[Lease], wanted: list[ClaimRequest]) -> None:
        self._claims = claims
        self._holder = holder
        self._entered = entered
        chain = wanted[0].chain
        shared = holder.new_chain() if chain is None else chain.new_shared_chain()
        self._wanted = [replace(request, shared_chain=shared) for request in wanted]
        has_groups = holder.capabilities.groups and len(wanted) > 1
        self._group: Optional[str] = shared.id if has_groups else None
        self._limit = _Limit(holder.clock, wanted[0].wait_ms)

    async def run(self) -> Sequence[HeldLease]:
        taken = await self._at_once()
        if taken is None:
            taken = await self._one_by_one()
        try:
            for lease in (*self._entered, *taken):
                lease.assert_held()
        except HoldfastError:
            await self._discard(taken)
            raise
        return taken

    async def _at_once(self) -> Optional[Sequence[HeldLease]]:
        """With a driver that has groups, all are taken in one step: if one is held, no other process sees the others
        taken. None: one is held, or there was an outage, and there is time to wait."""
        wanted, limit = self._wanted, self._limit
        # A group is sent complete or not at all.
        self._holder.assert_room(len(wanted))
        started = [
            self._holder.begin(replace(request, wait_ms=0, group=self._group), self._claims.lease_ended)
            for request in wanted
        ]
        try:
            # Without waiting, each call has its own deadline.
            await asyncio.wait([each.future for each in started], timeout=limit.left_ms / 1_000 or None)
            for _ in range(READING_TURNS if limit.is_late else 0):
                # The event loop was blocked, and the answers may have arrived.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            for each in started:
                each.cancel()
            await asyncio.gather(*(each.withdrawn() for each in started))
            raise
        ends: list[Union[HeldLease, Refused, BaseException]] = []
        for request, each in zip(wanted, started):
            if each.future.done():
                ends.append(each.future.exception() or each.future.result())
            else:
                each.cancel()
                ends.append(StoreError(f'the store did not answer a claim of "{request.lock_name}" in time{limit}'))
        taken = [end for end in ends if isinstance(end, HeldLease)]
        for lease in taken:
            self._claims.taken(lease)
        if len(taken) == len(wanted):
            return taken
        await self._discard(taken)
        may_wait = limit.left_ms > 0
        # Contention is reported before an outage: a known holder says more than an unknown outcome.
        for request, end in zip(wanted, ends):
            if isinstance(end, Refused) and not may_wait and not end.refusal.free:
                raise not_acquired_error(request.lock_name, replace(end, waited_ms=limit.waited_ms))
        for end in ends:
            # A short outage does not end the wait, as with a single lock.
            if isinstance(end, BaseException) and not (may_wait and is_outage(end)):
                raise end
        return None

    async def _one_by_one(self) -> Sequence[HeldLease]:
        taken: list[HeldLease] = []
        lost: asyncio.Future[LeaseLostError] = asyncio.get_running_loop().create_future()

        def on_loss(error: LeaseLostError) -> None:
            if not lost.done():
                lost.set_result(error)

        for lease in self._entered:
            lease.add_loss_callback(on_loss)
        try:
            for request in self._wanted:
                lease = await self._take_one(request, lost)
                taken.append(lease)
                lease.add_loss_callback(on_loss)
            return taken
        except asyncio.CancelledError:
            for lease in taken:
                lease.discard_in_background()
            await asyncio.gather(*(lease.own.wait_withdrawn() for lease in taken))
            raise
        except HoldfastError:
            await self._discard(taken)
            raise
        finally:
            for each in (*self._entered, *taken):
                each.remove_loss_callback(on_loss)

    async def _take_one(self, request: ClaimRequest, lost: asyncio.Future[LeaseLostError]) -> HeldLease:
        wait_ms, name = self._limit.left_ms, request.lock_name
        if wait_ms <= 0:
            raise NotAcquiredError(name, f'"{name}" was not asked for{self._limit}')
        acquiring = self._holder.begin(replace(request, wait_ms=wait_ms), self._claims.lease_ended)
        try:
            # When a lease is lost, waiting for the rest is pointless.
            either: set[asyncio.Future[Any]] = {acquiring.future, lost}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            acquiring.cancel()
            await acquiring.withdrawn()
            raise
        if not acquiring.future.done():
            acquiring.cancel()
            raise lost.result()
        try:
            result = acquiring.future.result()
        except HoldfastError:
            await acquiring.withdrawn()
            raise
        if isinstance(result, HeldLease):
            self._claims.taken(result)
            return result
        await acquiring.withdrawn()
        raise not_acquired_error(name, replace(result, waited_ms=self._limit.waited_ms))

    async def _discard(self, taken: Sequence[HeldLease]) -> None:
        """Waits for the releases, because a caller that is refused should find none of its own leases left. But not
        much longer than the caller asked for: they go on in the background."""
        releases = [lease.begin_discard() for lease in taken]
        if releases:
            timeout_ms = max(self._limit.left_ms, _GRACE_MS) if self._limit.wait_ms > 0 else None
            await asyncio.wait(releases, timeout=None if timeout_ms is None else timeout_ms / 1_000)


class _Limit:
    """The one waiting time of all claims. 0: none waits."""

    def __init__(self, clock: Clock, wait_ms: float) -> None:
        self.wait_ms = wait_ms
        self._clock = clock
        self._started_ms = clock.monotonic() * 1_000

    @property
    def waited_ms(self) -> float:
        return 0.0 if self.wait_ms == 0 else self._clock.monotonic() * 1_000 - self._started_ms

    @property
    def is_late(self) -> bool:
        """The waiting time has passed, and no timer could run then."""
        return self.waited_ms - self.wait_ms > BLOCKED_MS

    @property
    def left_ms(self) -> float:
        return max(0.0, self.wait_ms - self.waited_ms)

    def __str__(self) -> str:
        return "" if self.wait_ms == 0 else f" (waited {self.waited_ms / 1_000:.1f} s)"


_GRACE_MS = 250
