"""What locks, read-write locks and semaphores have in common: the three ways to claim, and re-entry."""

from __future__ import annotations

import asyncio
from typing import Optional, Sequence, Union

from ._block import LeaseBlock
from ._instance import Instance
from ._options import LockOptions, Share, check_defaults, request_from
from ._reentry import Reentry
from ._result import Acquired, LockResult, not_acquired, not_acquired_error
from .core.hand_over import HandOver
from .core.holder import ClaimRequest, ClaimResult, Holder
from .core.lease import HeldLease, Lease
from .errors import NotAcquiredError


class Claims:
    """The claims of one primitive."""

    def __init__(self, instance: Instance, defaults: Optional[LockOptions] = None) -> None:
        self.instance = instance
        self.reentry = Reentry()
        self.defaults = check_defaults(defaults)
        self.own: dict[str, HeldLease] = {}
        """The newest lease of each name: `release(lock_name)` and `extend(lock_name)` name a lock, not a lease."""

    @property
    def holder(self) -> Optional[Holder]:
        return self.instance.holder

    def request(self, lock_name: str, share: Share, heartbeat_by_default: bool, options: LockOptions) -> ClaimRequest:
        """Checks everything. Raises `InvalidArgumentError`."""
        return request_from(lock_name, share, self.defaults, options, heartbeat_by_default=heartbeat_by_default)

    async def acquire(self, lock_name: str, share: Share, options: LockOptions) -> LockResult:
        """Returns contention as a value. Without a heartbeat by default."""
        return await self._acquire(self.request(lock_name, share, False, options), share)

    async def hold(self, lock_name: str, share: Share, options: LockOptions) -> Lease:
        """Raises `NotAcquiredError` on contention. With a heartbeat by default."""
        result = await self._acquire(self.request(lock_name, share, True, options), share)
        if result.lease is not None:
            return result.lease
        raise NotAcquiredError(lock_name, result.error, result.holder)

    def block(self, lock_name: str, share: Share, options: LockOptions) -> LeaseBlock[Lease]:
        """Holds the lock while a block runs. With a heartbeat by default."""
        return _SingleBlock(self, share, self.request(lock_name, share, True, options))

    def named(self, lock_name: str) -> Optional[Lease]:
        """The lease that a release or an extension by name means: the innermost of the block that runs here, or outside
        of any the newest of the instance."""
        lease = self.reentry.innermost(lock_name)
        if lease is not None:
            return lease
        newest = self.own.get(lock_name)
        return newest if newest is not None and self.reentry.means(newest) else None

    def begin_end(self, lease: HeldLease, why: str) -> asyncio.Future[bool]:
        """Releases a lease on a caller's request, by its name or with all others. Other blocks that run under it lose
        their lock; the calling block and those around it do not."""
        if lease.users == self.reentry.depth_on(lease):
            return lease.begin_release()
        return lease.begin_revoke(why)

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """Asks the store, even if this instance already holds the lock."""
        holder = self.instance.holder or await self.instance.open()
        result = await holder.acquire(request, self.lease_ended)
        if isinstance(result, HeldLease):
            self.taken(result)
        return result

    def taken(self, lease: HeldLease) -> None:
        """A lease was granted."""
        if not lease.ended:
            self.own[lease.lock_name] = lease

    async def restore(self, handed_over: HandOver, *, heartbeat: bool, ttl_ms: Optional[int]) -> Lease:
        """Continues a lease that another process has handed over."""
        holder = self.instance.holder or await self.instance.open()
        lease = await holder.restore(handed_over, heartbeat=heartbeat, ttl_ms=ttl_ms, on_end=self.lease_ended)
        self.taken(lease)
        return lease

    async def take(self, request: ClaimRequest) -> Union[ClaimResult, Lease]:
        """Like `claim`. `reacquire="extend"` does something else first."""
        return await self.claim(request)

    def prepared(self, request: ClaimRequest) -> ClaimRequest:
        """The request with the block that it is made in. Raises `ClosedError`."""
        request.chain = self.reentry.chain_under(request.under) or self.reentry.chain
        # Work that has begun may need more locks to finish.
        if request.chain is None:
            self.instance.assert_open()
        else:
            self.instance.assert_not_ended()
        return request

    async def _acquire(self, request: ClaimRequest, share: Share) -> LockResult:
        self.prepared(request)
        entered = self.reentry.enter(request, share)
        if entered is not None:
            # The store is not asked, so nothing else would give the event loop a turn.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                await entered.release()
                raise
            return Acquired(entered)
        result = await self.take(request)
        if not isinstance(result, Lease):
            return not_acquired(request.lock_name, result)
        self.reentry.acquired(result)
        return Acquired(result)

    def lease_ended(self, lease: HeldLease) -> None:
        if self.own.get(lease.lock_name) is lease:
            del self.own[lease.lock_name]


class _SingleBlock(LeaseBlock[Lease]):
    def __init__(self, claims: Claims, share: Share, request: ClaimRequest) -> None:
        super().__init__(claims, share)
        self._request = request

    async def _take(self) -> tuple[Sequence[Lease], Lease]:
        claims, request = self._claims, self._claims.prepared(self._request)
        entered = claims.reentry.enter(request, self._share)
        if entered is not None:
            self._keep(entered)
            return (entered,), entered
        result = await claims.take(request)
        if isinstance(result, Lease):
            return (result,), result
        raise not_acquired_error(request.lock_name, result)
