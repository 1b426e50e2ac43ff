"""A limited number of holders at a time."""

from __future__ import annotations

from typing import Optional, Unpack

from ._block import LeaseBlock
from ._claims import Claims
from ._instance import DEFAULT_STORE, Closable, Instance, Store
from ._options import InstanceOptions, LockOptions, Share
from ._result import LockResult
from .core.arguments import check_whole
from .core.lease import Lease
from .core.limits import MAX_PERMITS

__all__ = ["Semaphore"]


class Semaphore(Closable):
    """Limits the number of holders at a time, over all processes. Each lease is one or more permits with a time to
    live. The permits of a process that died come back when that time has passed.

    The limit is stored with each claim and applies only to that claim: it is granted if the held permits and its own
    are within its own limit. So you can change the limit while old and new instances run side by side.

    Needs a driver with limits; others raise an `UnsupportedError` with the reason. Nothing waits unless you ask for
    it::

        exports = Semaphore("redis://localhost:6379", limit=3)
        async with exports.permits("exports", blocking=True):
            await export_report()
    """

    def __init__(
        self,
        store: Store = DEFAULT_STORE,
        *,
        limit: int,
        defaults: Optional[LockOptions] = None,
        **options: Unpack[InstanceOptions],
    ) -> None:
        """Opens nothing yet: the first call does.

        `limit`: how many permits of a name may be held at once, over all processes. From 1 to 1,000,000. The other
        arguments are those of `DistributedLock`.
        """
        self._instance = Instance("Semaphore", store, options, ("limit", "defaults"))
        self.limit = check_whole("limit", limit, 1, MAX_PERMITS)
        self._claims = Claims(self._instance, defaults)

    async def __aenter__(self) -> Semaphore:
        return self

    async def acquire(
        self, lock_name: str, *, permits: int = 1, **options: Unpack[LockOptions]
    ) -> LockResult:
        """Asks for `permits`, all or none. Contention is a value: the result is false, with one of the holders if the
        store knows it. Unless it returns a lease, nothing is left behind in the store, also if the task is cancelled.

        The lease is not renewed unless `heartbeat` is true. The other options are those of `DistributedLock.acquire`.

        Raises `UnsupportedError` for a driver without limits, and what `DistributedLock.acquire` raises.
        """
        return await self._claims.acquire(lock_name, self._share(permits), options)

    async def hold(
        self, lock_name: str, *, permits: int = 1, **options: Unpack[LockOptions]
    ) -> Lease:
        """Like `acquire`, with a heartbeat by default, and raises `NotAcquiredError` on contention."""
        return await self._claims.hold(lock_name, self._share(permits), options)

    def permits(
        self, lock_name: str, *, permits: int = 1, **options: Unpack[LockOptions]
    ) -> LeaseBlock[Lease]:
        """`async with semaphore.permits("name") as lease:` holds permits while the block runs. A heartbeat renews the
        lease.

        If the lease is lost, the block is cancelled and raises `LeaseLostError`. Permits are counted: the same name
        inside the block takes further permits. Waiting for more than the limit allows beside those that the block holds
        raises a `DeadlockError` at once.

        Raises `NotAcquiredError` if the permits were not acquired in time, and what `acquire` raises.
        """
        return self._claims.block(lock_name, self._share(permits), options)

    def _share(self, permits: int) -> Share:
        return Share("shared", self.limit, check_whole("permits", permits, 1, self.limit))
